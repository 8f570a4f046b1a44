package config

import "fmt"

// Access says how clients' keys and salts are handled. It holds no secret itself.
type Access struct {
	SaltFile      string `yaml:"salt_file"`       // secret of 16 bytes or more that gives each tenant its own cache_salt; default: none
	PassClientKey bool   `yaml:"pass_client_key"` // to engines without api_key_file; default: a client's key goes no further than here
}

// Tenant is who may use the data port. Without tenants everyone may, without limits.
type Tenant struct {
	Name              string   `yaml:"name"`                // unique and stable: bindings and salts depend on it
	KeyFile           string   `yaml:"key_file"`            // one key per line, plain or sha256:HEX; default: this tenant is who comes without a key
	RequestsPerMinute int      `yaml:"requests_per_minute"` // default none
	TokensPerMinute   int      `yaml:"tokens_per_minute"`   // prompt estimate when admitted, what the engine counted when settled; default none
	Concurrent        int      `yaml:"concurrent"`          // requests at the same time; default none
	Priority          int      `yaml:"priority"`            // -100..100; higher waits less, here and in engines that take a priority; default 0
	Models            []string `yaml:"models"`              // names that it may ask for; default all
}

func (c *Config) checkTenants(v *validator) {
	names, anonymous := map[string]bool{}, ""
	for i := range c.Tenants {
		t, path := &c.Tenants[i], fmt.Sprintf("tenants[%d]", i)
		switch {
		case t.Name == "":
			v.fail(path+".name", "the tenant has no name; give it one that stays")
		case names[t.Name]:
			v.fail(path+".name", "tenant %q is there twice; give each its own name", t.Name)
		}
		names[t.Name] = true
		if t.KeyFile == "" && anonymous != "" {
			v.fail(path+".key_file", "tenant %q has no key file either; one at most is who comes without a key", anonymous)
		}
		if t.KeyFile == "" {
			anonymous = t.Name
		}
		ranged(v, path+".requests_per_minute", t.RequestsPerMinute, 1, 1e9)
		ranged(v, path+".tokens_per_minute", t.TokensPerMinute, 1, 1e12)
		ranged(v, path+".concurrent", t.Concurrent, 1, 1e6)
		ranged(v, path+".priority", t.Priority, -100, 100)
		for _, m := range t.Models {
			if m == "" {
				v.fail(path+".models", "a model name is empty")
			}
		}
	}
	if c.Access.SaltFile != "" && len(c.Tenants) == 0 {
		v.fail("access.salt_file", "salts are per tenant and there are none; name tenants, or leave it out")
	}
}
