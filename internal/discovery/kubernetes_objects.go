package discovery

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Only the fields that decide are decoded: discovery.k8s.io/v1 and core/v1 promise not
// to change them, and unknown ones are ignored.

type slice struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	AddressType string `json:"addressType"` // IPv4, IPv6 or FQDN
	Endpoints   []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready       *bool `json:"ready"`
			Serving     *bool `json:"serving"`
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		Hostname  string `json:"hostname"`
		TargetRef *struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"targetRef"`
	} `json:"endpoints"`
	Ports []struct {
		Name *string `json:"name"`
		Port *int    `json:"port"`
	} `json:"ports"`
}

type sliceKind struct{}

func (sliceKind) read(raw json.RawMessage) (string, any, error) {
	s := new(slice)
	err := json.Unmarshal(raw, s)
	return s.Metadata.Name, s, err
}

// endpoints merges all slices of the service: an engine stands in one slice per family
// of addresses, and for a moment in two of the same while slices are rebalanced.
func (sliceKind) endpoints(k *Kubernetes, objects map[string]any) ([]Endpoint, error) {
	m := merger{k: k, found: map[string]candidate{}}
	for _, key := range sortedKeys(objects) {
		s := objects[key].(*slice)
		port, ok := s.port(k.Port)
		if !ok {
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 || e.Addresses[0] == "" {
				continue
			}
			// The first address is the one that counts (the API calls the others fungible).
			addr := e.Addresses[0]
			name := e.Hostname
			if e.TargetRef != nil && e.TargetRef.Name != "" {
				name = e.TargetRef.Name
			}
			// Absent means true for ready and serving, false for terminating.
			terminating := e.Conditions.Terminating != nil && *e.Conditions.Terminating
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			m.add(name, addr, port, ready, terminating, time.Time{})
		}
	}
	return m.set()
}

// port finds the wanted port: by name, by number, or the only one.
func (s *slice) port(want string) (int, bool) {
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		if want == "" && len(s.Ports) == 1 || p.Name != nil && *p.Name == want && want != "" || strconv.Itoa(*p.Port) == want {
			return *p.Port, true
		}
	}
	return 0, false
}

type pod struct {
	Metadata struct {
		Name              string    `json:"name"`
		DeletionTimestamp *string   `json:"deletionTimestamp"`
		CreationTimestamp time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Containers []struct {
			Ports []struct {
				Name          string `json:"name"`
				ContainerPort int    `json:"containerPort"`
			} `json:"ports"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIP  string `json:"podIP"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

type podKind struct{}

func (podKind) read(raw json.RawMessage) (string, any, error) {
	p := new(pod)
	err := json.Unmarshal(raw, p)
	return p.Metadata.Name, p, err
}

func (podKind) endpoints(k *Kubernetes, objects map[string]any) ([]Endpoint, error) {
	m := merger{k: k, found: map[string]candidate{}}
	for _, key := range sortedKeys(objects) {
		p := objects[key].(*pod)
		port, ok := p.port(k.Port)
		if !ok || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		ready := slices.ContainsFunc(p.Status.Conditions, func(c struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		}) bool {
			return c.Type == "Ready" && c.Status == "True"
		})
		ips := []string{p.Status.PodIP}
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		for _, ip := range ips {
			if ip != "" { // an eviction may clear the address and keep the pod (field case B61)
				m.add(p.Metadata.Name, ip, port, ready, p.Metadata.DeletionTimestamp != nil, p.Metadata.CreationTimestamp)
			}
		}
	}
	return m.set()
}

func (p *pod) port(want string) (int, bool) {
	if n, err := strconv.Atoi(want); err == nil && n > 0 && n < 65536 {
		return n, true // declaring a port is optional in Kubernetes
	}
	only, count := 0, 0
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if want != "" && port.Name == want {
				return port.ContainerPort, true
			}
			only = port.ContainerPort
			count++
		}
	}
	return only, want == "" && count == 1
}

// candidate is an engine under construction.
type candidate struct {
	addr        netip.Addr
	host        string // for a FQDN slice
	port        int
	ready, term bool
	born        time.Time
}

// merger makes one endpoint of all that is said about an engine.
type merger struct {
	k     *Kubernetes
	found map[string]candidate
}

func (m *merger) add(name, addr string, port int, ready, terminating bool, born time.Time) {
	c := candidate{host: addr, port: port, ready: ready, term: terminating, born: born}
	if ip, err := netip.ParseAddr(addr); err == nil {
		c.addr = ip.Unmap()
		if v6 := c.addr.Is6(); m.k.Family == "4" && v6 || m.k.Family == "6" && !v6 {
			return
		}
	}
	if name == "" {
		name = addr + ":" + strconv.Itoa(port)
		if c.addr.Is6() {
			name = "[" + addr + "]:" + strconv.Itoa(port)
		}
	}
	old, ok := m.found[name]
	if !ok || better(c, old) {
		m.found[name] = c
	}
}

// better prefers what is not on its way out, then IPv4, then the smaller address, so
// that every router decides alike.
func better(a, b candidate) bool {
	if a.term != b.term {
		return b.term
	}
	if a.ready != b.ready {
		return a.ready
	}
	if a.addr.Is4() != b.addr.Is4() {
		return a.addr.Is4()
	}
	return a.addr.Less(b.addr)
}

// set returns the endpoints. An address belongs to one engine: a pod that has lost its
// address to a younger one, and whose end was missed, must not share it (field case
// B61).
func (m *merger) set() ([]Endpoint, error) {
	owner := map[string]string{}
	for _, name := range sortedKeys(m.found) {
		c := m.found[name]
		at := c.host + "|" + strconv.Itoa(c.port)
		other, taken := owner[at]
		if !taken || younger(c, m.found[other]) {
			owner[at] = name
		}
	}
	out := make([]Endpoint, 0, len(owner))
	for _, name := range owner {
		c := m.found[name]
		out = append(out, Endpoint{Name: name, URL: at(m.k.Scheme, c.host, strconv.Itoa(c.port)), ServerName: m.k.ServerName,
			Ready: c.ready && !c.term, Terminating: c.term})
	}
	return out, nil
}

func younger(a, b candidate) bool {
	if a.term != b.term {
		return b.term
	}
	return a.born.After(b.born)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// message is the message of a Status body, or what can be shown of another.
func message(b []byte) string {
	var s struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &s) == nil && s.Message != "" {
		return s.Message
	}
	return fmt.Sprintf("%.200q", strings.TrimSpace(string(b)))
}
