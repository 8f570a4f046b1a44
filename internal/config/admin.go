package config

import (
	"fmt"
	"net"
	"path/filepath"
)

// AdminAccess says who may use the admin port. On a loopback address nothing is needed;
// on any other one of token_file and client_ca_file is. Where both are set, either will do.
type AdminAccess struct {
	TokenFile    string `yaml:"token_file"`     // lines of NAME TOKEN, the token plain (16 characters or more) or sha256:HEX; read anew when it changes; default none
	CertFile     string `yaml:"cert_file"`      // PEM chain: the admin port speaks TLS; read anew when it changes; default none
	KeyFile      string `yaml:"key_file"`       // PEM key of cert_file
	ClientCAFile string `yaml:"client_ca_file"` // PEM roots: a client certificate under one of them is as good as a token; needs cert_file; default none
}

// Protected says that not everyone who reaches the admin port may use it.
func (a *AdminAccess) Protected() bool { return a.TokenFile != "" || a.ClientCAFile != "" }

func (c *Config) checkAdmin(v *validator) {
	address(v, "admin", c.Admin, true)
	a := &c.AdminAccess
	if (a.CertFile == "") != (a.KeyFile == "") {
		v.fail("admin_access", "cert_file and key_file go together; set both or none")
	}
	if a.ClientCAFile != "" && a.CertFile == "" {
		v.fail("admin_access.client_ca_file", "client certificates need TLS; set cert_file and key_file as well")
	}
	if c.Admin != "" && c.Admin != "off" && !stays(c.Admin) && !a.Protected() {
		v.fail("admin", "%q can be reached from other machines and nobody is asked who they are; "+
			"set admin_access.token_file (or --admin-token-file), or admin_access.client_ca_file, or listen on %s", c.Admin, DefaultAdmin)
	}
}

// stays says if only this machine reaches an address. Names other than localhost count as
// reachable: what they lead to may change.
func stays(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || loopback(host) // what is no address at all is told elsewhere
}

// SetAdmin puts flags in the place of what a file says; an empty one changes nothing. A
// token file's path is relative to the working directory.
func (c *Config) SetAdmin(address, tokenFile string) error {
	if address != "" {
		c.Admin = address
	}
	if tokenFile != "" {
		path, err := filepath.Abs(tokenFile)
		if err != nil {
			return fmt.Errorf("cannot use --admin-token-file: %w", err)
		}
		c.AdminAccess.TokenFile = path
	}
	v := &validator{name: "flags"}
	c.checkAdmin(v)
	return v.err()
}
