package dialect

import "strings"

// Method is a set of HTTP methods.
type Method uint8

// The methods that engines serve on the data paths. A path that allows GET
// allows HEAD as well.
const (
	GET Method = 1 << iota
	POST
	PUT
)

// Route says how the data port treats one request path.
type Route struct {
	Protocol  Protocol
	Methods   Method // what engines accept on this path
	Multipart bool   // the body is a form with a file, not JSON
	Local     bool   // the router answers from what it knows of the fleet (the model list)
	Stored    bool   // the path names an object in one engine's memory: only that engine can answer
}

// routes is the allow-list of paths without a parameter. Whatever is not here is
// never forwarded: engines serve administration on the same port, mostly without
// a key (engine_contracts 2, 3 and 10), and a deny-list would miss the next one.
var routes = map[string]Route{
	"/v1/chat/completions": {Protocol: Chat, Methods: POST},
	"/v1/completions":      {Protocol: Completions, Methods: POST},
	"/v1/responses":        {Protocol: Responses, Methods: POST},
	"/v1/messages":         {Protocol: Messages, Methods: POST},

	"/v1/chat/completions/batch":  {Methods: POST},
	"/v1/chat/completions/render": {Methods: POST},
	"/v1/completions/render":      {Methods: POST},
	"/v1/messages/count_tokens":   {Methods: POST},
	"/v1/embeddings":              {Methods: POST},
	"/v1/classify":                {Methods: POST},
	"/v1/score":                   {Methods: POST},
	"/v1/rerank":                  {Methods: POST | PUT},
	"/v1/tokenize":                {Methods: POST},
	"/v1/detokenize":              {Methods: POST},
	"/v1/audio/transcriptions":    {Methods: POST, Multipart: true},
	"/v1/audio/translations":      {Methods: POST, Multipart: true},
	"/v1/models":                  {Methods: GET, Local: true},

	// Client paths that vLLM serves outside /v1/.
	"/inference/v1/generate": {Methods: POST},
	"/tokenize":              {Methods: POST},
	"/detokenize":            {Methods: POST},
	"/pooling":               {Methods: POST},
	"/classify":              {Methods: POST},
	"/score":                 {Methods: POST},
	"/rerank":                {Methods: POST},
	"/v2/rerank":             {Methods: POST},
	"/v2/embed":              {Methods: POST},
}

const (
	modelPrefix    = "/v1/models/"
	responsePrefix = "/v1/responses/"
	cancelSuffix   = "/cancel"
)

// RouteOf returns how the data port treats the raw request path (no query, still
// percent-encoded) and whether it forwards that path at all. The match is exact
// and case-sensitive on the raw bytes: "//v1/...", "/v1/../sleep", "/v1/%63hat"
// and a trailing slash are other paths and are refused, because engines and
// intermediaries disagree on how they decode them.
func RouteOf(path string) (Route, bool) {
	if r, ok := routes[path]; ok {
		return r, true
	}
	if id, ok := strings.CutPrefix(path, modelPrefix); ok {
		return Route{Methods: GET, Local: true}, validModelPath(id)
	}
	if id, ok := strings.CutPrefix(path, responsePrefix); ok {
		methods := GET
		if before, cancel := strings.CutSuffix(id, cancelSuffix); cancel {
			id, methods = before, POST
		}
		return Route{Methods: methods, Stored: true}, validID(id)
	}
	return Route{}, false
}

// ProtocolOf maps an exact raw request path to its protocol, and says if the path
// is one that the data port forwards. See RouteOf for the matching rule.
func ProtocolOf(path string) (Protocol, bool) {
	r, ok := RouteOf(path)
	if !ok {
		return Opaque, false
	}
	return r.Protocol, true
}

// Allows reports whether engines accept the HTTP method on this route.
func (r Route) Allows(method string) bool {
	switch method {
	case "POST":
		return r.Methods&POST != 0
	case "GET", "HEAD":
		return r.Methods&GET != 0
	case "PUT":
		return r.Methods&PUT != 0
	default:
		return false
	}
}

// Allow returns the value of the Allow header for an answer with status 405.
func (r Route) Allow() string {
	switch {
	case r.Methods&GET != 0:
		return "GET, HEAD"
	case r.Methods&PUT != 0:
		return "POST, PUT"
	default:
		return "POST"
	}
}

// validID accepts the ids that engines make for stored responses: one path
// segment of letters, digits, '_', '-', '.' or ':', at most 256 bytes, no dot
// segment and no percent escape.
func validID(id string) bool {
	if id == "" || len(id) > 256 || id == "." || id == ".." {
		return false
	}
	for i := 0; i < len(id); i++ {
		if !idByte(id[i]) {
			return false
		}
	}
	return true
}

func idByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '_' || c == '-' || c == '.' || c == ':'
}

// validModelPath accepts a model name after /v1/models/. Names contain slashes
// ("org/model"), which some clients send as %2F. No dot segments.
func validModelPath(name string) bool {
	if len(name) > 512 {
		return false
	}
	name = strings.ReplaceAll(strings.ReplaceAll(name, "%2F", "/"), "%2f", "/")
	name = strings.ReplaceAll(strings.ReplaceAll(name, "%3A", ":"), "%3a", ":")
	for segment := range strings.SplitSeq(name, "/") {
		if !validID(segment) {
			return false
		}
	}
	return true
}

// Paths returns the allow-list without the parametrised paths, for documentation
// and tests. The order is not defined.
func Paths() []string {
	out := make([]string, 0, len(routes))
	for p := range routes {
		out = append(out, p)
	}
	return out
}
