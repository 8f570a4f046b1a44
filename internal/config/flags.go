package config

import (
	"fmt"
	"strings"
)

// FromFlags builds a configuration from --engine values of the form
// "URL[,name=N][,dialect=vllm or sglang][,model=M]", one pool per model named.
func FromFlags(engines []string, listen, admin string) (*Config, error) {
	c := &Config{Listen: listen, Admin: admin, dir: "."}
	at := map[string]int{}
	for _, spec := range engines {
		e, model, err := parseEngine(spec)
		if err != nil {
			return nil, err
		}
		i, ok := at[model]
		if !ok {
			i = len(c.Pools)
			at[model] = i
			p := Pool{}
			if model != "" {
				p.Models = []string{model}
			}
			c.Pools = append(c.Pools, p)
		}
		c.Pools[i].Engines = append(c.Pools[i].Engines, e)
	}
	v := &validator{name: "flags"}
	c.check(v)
	if err := v.err(); err != nil {
		return nil, err
	}
	c.fill()
	return c, nil
}

func parseEngine(spec string) (e Engine, model string, err error) {
	parts := strings.Split(spec, ",")
	e.URL = parts[0]
	for _, part := range parts[1:] {
		key, value, ok := strings.Cut(part, "=")
		if !ok || value == "" {
			return e, "", fmt.Errorf("cannot read --engine %q: %q is not key=value", spec, part)
		}
		switch key {
		case "name":
			e.Name = value
		case "dialect":
			e.Dialect = value
		case "model":
			model = value
		default:
			return e, "", fmt.Errorf("cannot read --engine %q: unknown key %q; known are name, dialect and model", spec, key)
		}
	}
	return e, model, nil
}
