package config

import (
	"fmt"
	"net/url"
	"strings"
)

// Discovery finds the engines of a pool instead of a list. One of file, dns and
// kubernetes. docs/discovery.md tells what each source knows and how names stay stable.
type Discovery struct {
	File       string      `yaml:"file"` // YAML or JSON list of engines, looked at each 2 s
	DNS        *DNS        `yaml:"dns"`
	Kubernetes *Kubernetes `yaml:"kubernetes"`
	EmptyGrace Duration    `yaml:"empty_grace"` // how long "no engines" must be said before a working set is given up; default 2m; negative = at once
	Limit      Duration    `yaml:"limit"`       // age beyond which the knowledge is reported as stale; default 5m
}

// DNS finds engines by name.
type DNS struct {
	Name   string `yaml:"name"`   // host name, or with srv a service name such as _http._tcp.engines.ns.svc
	SRV    bool   `yaml:"srv"`    // engines keep their host names when addresses change; default: host name
	Port   int    `yaml:"port"`   // of host names, 1..65535; SRV records bring their own
	Scheme string `yaml:"scheme"` // http (default) or https
	Family string `yaml:"family"` // "4", "6"; default: IPv4, and where there is none IPv6
}

// Kubernetes finds engines as the pods of a service or of a label selector.
type Kubernetes struct {
	Namespace  string `yaml:"namespace"`   // default: the router's own
	Service    string `yaml:"service"`     // whose EndpointSlices are read; or
	Selector   string `yaml:"selector"`    // label selector of pods, for example app=vllm
	Port       string `yaml:"port"`        // name or number; default: the only one
	Scheme     string `yaml:"scheme"`      // http (default) or https
	Family     string `yaml:"family"`      // "4", "6"; default: IPv4, and where there is none IPv6
	ServerName string `yaml:"server_name"` // to check https certificates against: a pod is reached by its address
	API        string `yaml:"api"`         // base URL of the API server; default: the one of the pod that the router runs in
	TokenFile  string `yaml:"token_file"`  // default: the pod's, or none where api is set
	CAFile     string `yaml:"ca_file"`     // of the API server; default: the pod's
}

// Is says if there is a source at all.
func (d *Discovery) Is() bool { return d.File != "" || d.DNS != nil || d.Kubernetes != nil }

func (d *Discovery) check(v *validator, path string) {
	sources := 0
	for _, set := range []bool{d.File != "", d.DNS != nil, d.Kubernetes != nil} {
		if set {
			sources++
		}
	}
	if sources > 1 {
		v.fail(path, "file, dns and kubernetes exclude each other; name one")
	}
	if sources == 0 && (d.EmptyGrace != 0 || d.Limit != 0) {
		v.fail(path, "there is no source; name file, dns or kubernetes")
	}
	if d.Limit < 0 {
		v.fail(path+".limit", "%v is negative", d.Limit.D())
	}
	if d.DNS != nil {
		d.DNS.check(v, path+".dns")
	}
	if d.Kubernetes != nil {
		d.Kubernetes.check(v, path+".kubernetes")
	}
}

func (d *DNS) check(v *validator, path string) {
	if d.Name == "" {
		v.fail(path+".name", "there is no name to look up")
	}
	switch {
	case d.SRV && d.Port != 0:
		v.fail(path+".port", "SRV records bring their own port; leave it out")
	case !d.SRV && (d.Port < 1 || d.Port > 65535):
		v.fail(path+".port", "%d is not within 1..65535; a host name needs the engines' port", d.Port)
	}
	scheme(v, path, d.Scheme)
	family(v, path, d.Family)
}

func (k *Kubernetes) check(v *validator, path string) {
	if (k.Service == "") == (k.Selector == "") {
		v.fail(path, "name either service or selector")
	}
	if strings.Contains(k.Service, "/") {
		v.fail(path+".service", "%q is no name of a service; its namespace has a key of its own", k.Service)
	}
	if k.API != "" {
		if u, err := url.Parse(k.API); err != nil || u.Host == "" {
			v.fail(path+".api", "%q is no URL; write for example https://10.0.0.1:6443", k.API)
		}
	}
	scheme(v, path, k.Scheme)
	family(v, path, k.Family)
}

func scheme(v *validator, path, s string) {
	if s != "" && s != "http" && s != "https" {
		v.fail(path+".scheme", "%q is neither http nor https", s)
	}
}

func family(v *validator, path, s string) {
	if s != "" && s != "4" && s != "6" {
		v.fail(path+".family", "%q is neither \"4\" nor \"6\"", s)
	}
}

// String names the source for logs and status.
func (d *Discovery) String() string {
	switch {
	case d.File != "":
		return "file " + d.File
	case d.DNS != nil:
		return "dns " + d.DNS.Name
	case d.Kubernetes != nil && d.Kubernetes.Service != "":
		return fmt.Sprintf("kubernetes service %s", d.Kubernetes.Service)
	case d.Kubernetes != nil:
		return fmt.Sprintf("kubernetes pods %s", d.Kubernetes.Selector)
	}
	return ""
}
