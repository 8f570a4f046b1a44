package admin

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Access says who may use the port.
type Access struct {
	// Tokens are those in force; nil, or a function that returns nil, means that there are none.
	Tokens func() *Tokens
	// ClientCerts says that a client certificate is enough. The listener has checked it.
	ClientCerts bool
	// Audit gets one line per change and per refusal. Nil means slog's default.
	Audit *slog.Logger
}

// operatorHeader names the operator where nothing else does: on a port without tokens.
const operatorHeader = "X-Prefixring-Operator"

// guard is what every request passes before its handler.
type guard struct {
	Access
	mux    *http.ServeMux
	routes map[string]*endpoint // by pattern
	cross  *http.CrossOriginProtection
}

func (g *guard) tokens() *Tokens {
	if g.Tokens == nil {
		return nil
	}
	return g.Tokens()
}

// protected says that a credential is needed.
func (g *guard) protected() bool { return g.ClientCerts || g.tokens() != nil }

// ServeHTTP lets a request through to its handler, or refuses it. Whoever changes
// something, or tries to, is in the log.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, pattern := g.mux.Handler(r)
	e := g.routes[pattern]
	who, known := g.operator(r)
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	switch {
	case e != nil && e.open:
		g.mux.ServeHTTP(rec, r.WithContext(withOperator(r.Context(), who, known || !g.protected())))
	case !known && g.protected():
		h.Set("WWW-Authenticate", `Bearer realm="prefixring"`)
		refuse(rec, http.StatusUnauthorized, "this port needs a credential: a client certificate, or Authorization: Bearer TOKEN")
	case !g.protected() && !localHost(r.Host):
		refuse(rec, http.StatusMisdirectedRequest, "without a token this port answers to an IP address or localhost only; the name in Host may be another site's")
	case g.foreign(r, e):
		refuse(rec, http.StatusForbidden, "a page of another site may not use this port")
	case e == nil:
		g.unknown(rec, r)
	case e.changes && who == "":
		refuse(rec, http.StatusForbidden, "the header "+operatorHeader+" is missing; set it to your name")
	case e.limit > 0 && !isJSON(r.Header.Get("Content-Type")):
		refuse(rec, http.StatusUnsupportedMediaType, "send the body with Content-Type: application/json")
	default:
		if e.limit > 0 {
			r.Body = http.MaxBytesReader(rec, r.Body, e.limit)
		}
		g.mux.ServeHTTP(rec, r.WithContext(withOperator(r.Context(), who, true)))
	}
	g.audit(r, e, pattern, who, rec.status)
}

// operator is who asks, as far as a credential tells; without one it is what the client
// says of itself, and not known.
func (g *guard) operator(r *http.Request) (name string, known bool) {
	if g.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		cert := r.TLS.VerifiedChains[0][0]
		switch {
		case cert.Subject.CommonName != "":
			return cert.Subject.CommonName, true
		case len(cert.URIs) > 0:
			return cert.URIs[0].String(), true
		case len(cert.DNSNames) > 0:
			return cert.DNSNames[0], true
		}
		return "certificate", true
	}
	if t := g.tokens(); t != nil {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if strings.EqualFold(scheme, "Bearer") {
			name = t.Whose(strings.TrimSpace(token))
		}
		return name, name != ""
	}
	return clip(r.Header.Get(operatorHeader), 64), false
}

// foreign says that a browser sends this for a page of another site. Such pages may lead
// a person to the page here, and nothing else: reads cost work, too (profiles).
func (g *guard) foreign(r *http.Request, e *endpoint) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return g.cross.Check(r) != nil
	}
	return !(e != nil && e.page && r.Header.Get("Sec-Fetch-Mode") == "navigate")
}

// unknown answers for a path or a method that is not served, in the port's own form.
func (g *guard) unknown(w http.ResponseWriter, r *http.Request) {
	probe := &bare{header: http.Header{}}
	g.mux.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		refuse(w, http.StatusMethodNotAllowed, "this path takes "+allow)
		return
	}
	refuse(w, http.StatusNotFound, "no such path; /api/v1/openapi.json lists what there is")
}

// audit writes the line of a change, made or refused, and of every failed credential.
func (g *guard) audit(r *http.Request, e *endpoint, pattern, who string, status int) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	changes := e != nil && e.changes
	refused := status >= 400
	if !(changes || (refused && !reads) || status == http.StatusUnauthorized || status == http.StatusForbidden) {
		return
	}
	if pattern == "" {
		pattern = "none"
	}
	level, what := slog.LevelInfo, "admin change"
	if refused {
		level, what = slog.LevelWarn, "admin request refused"
	}
	log := g.Audit
	if log == nil {
		log = slog.Default()
	}
	log.LogAttrs(r.Context(), level, what, slog.String("operator", who), slog.String("remote", r.RemoteAddr),
		slog.String("method", clip(r.Method, 16)), slog.String("route", pattern), slog.String("path", clip(r.URL.Path, 200)), slog.Int("status", status))
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// localHost says that the name in Host cannot be that of another site: one could point
// its own name at this machine (DNS rebinding), but not an address.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(kind), "application/json")
}

// recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
	wrote  bool
}

func (r *recorder) WriteHeader(status int) {
	if !r.wrote {
		r.status, r.wrote = status, true
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.wrote = true
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// bare takes an answer that nobody reads but for its headers.
type bare struct{ header http.Header }

func (b *bare) Header() http.Header         { return b.header }
func (b *bare) Write(p []byte) (int, error) { return len(p), nil }
func (b *bare) WriteHeader(int)             {}
