package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// TenantOptions describes one tenant of a Keyring. Zero limits mean none.
type TenantOptions struct {
	Name              string     // stable; only its digest is used
	Keys              [][32]byte // SHA-256 of the client keys
	RequestsPerMinute int
	TokensPerMinute   int // prompt tokens when admitted, what the engine counted when settled
	Concurrent        int
	Class             int // see Tenant.Class
}

// Keyring is the built-in Admission: hashed keys and token buckets.
type Keyring struct {
	byKey     map[[32]byte]*tenant
	anonymous *tenant
}

// NewKeyring builds a keyring. A tenant without keys is who comes without one; there
// can be one such. Two tenants with one key are an error.
func NewKeyring(tenants []TenantOptions, now time.Time) (*Keyring, error) {
	k := &Keyring{byKey: map[[32]byte]*tenant{}}
	names := map[string]bool{}
	for _, o := range tenants {
		if o.Name == "" || names[o.Name] {
			return nil, fmt.Errorf("cannot use tenant %q: names must be unique and not empty", o.Name)
		}
		names[o.Name] = true
		if o.RequestsPerMinute < 0 || o.TokensPerMinute < 0 || o.Concurrent < 0 {
			return nil, fmt.Errorf("cannot use tenant %q: a limit is negative", o.Name)
		}
		t := newTenant(o, now)
		if len(o.Keys) == 0 {
			if k.anonymous != nil {
				return nil, fmt.Errorf("cannot use tenant %q: another one has no key either", o.Name)
			}
			k.anonymous = t
		}
		for _, key := range o.Keys {
			if have := k.byKey[key]; have != nil && have != t {
				return nil, fmt.Errorf("cannot use tenant %q: another one has the same key", o.Name)
			}
			k.byKey[key] = t
		}
	}
	return k, nil
}

// HashKey is how keys are kept.
func HashKey(key []byte) [32]byte { return sha256.Sum256(key) }

// Identify implements Admission. What is looked up is a hash that the client cannot
// steer octet by octet, and it is compared in constant time.
func (k *Keyring) Identify(credential []byte) Tenant {
	if len(credential) == 0 {
		if k.anonymous == nil {
			return nil
		}
		return k.anonymous
	}
	h := sha256.Sum256(credential)
	t := k.byKey[h]
	if t == nil {
		return nil
	}
	for i := range t.keys {
		if subtle.ConstantTimeCompare(t.keys[i][:], h[:]) == 1 {
			return t
		}
	}
	return nil
}

// tenant implements Tenant.
type tenant struct {
	scope    uint64
	class    int
	keys     [][32]byte
	most     int64
	running  atomic.Int64
	requests *bucket
	tokens   *bucket
}

func newTenant(o TenantOptions, now time.Time) *tenant {
	h := sha256.Sum256([]byte("prefixring tenant\x00" + o.Name))
	t := &tenant{
		scope: binary.LittleEndian.Uint64(h[:]), class: o.Class, keys: o.Keys, most: int64(o.Concurrent),
	}
	if o.RequestsPerMinute > 0 {
		t.requests = newBucket(o.RequestsPerMinute, now)
	}
	if o.TokensPerMinute > 0 {
		t.tokens = newBucket(o.TokensPerMinute, now)
	}
	return t
}

func (t *tenant) Scope() uint64 { return t.scope }
func (t *tenant) Class() int    { return t.class }

// Admit takes from all limits or from none.
func (t *tenant) Admit(now time.Time, promptTokens int64) *Refusal {
	if n := t.running.Add(1); t.most > 0 && n > t.most {
		t.running.Add(-1)
		return &Refusal{Limit: LimitConcurrency}
	}
	if wait := t.requests.take(now, 1); wait > 0 {
		t.running.Add(-1)
		return &Refusal{Limit: LimitRate, RetryAfter: wait}
	}
	if wait := t.tokens.take(now, float64(promptTokens)); wait > 0 {
		t.requests.put(now, 1)
		t.running.Add(-1)
		return &Refusal{Limit: LimitTokens, RetryAfter: wait}
	}
	return nil
}

// Settle corrects the estimate by what the engine counted.
func (t *tenant) Settle(now time.Time, estimate, used int64) {
	t.running.Add(-1)
	if used != dialect.Unknown {
		t.tokens.put(now, float64(estimate-used))
	}
}

// Limits implements Tenant.
func (t *tenant) Limits(now time.Time) []LimitState {
	var out []LimitState
	if t.requests != nil {
		out = append(out, t.requests.state(now, LimitRate))
	}
	if t.tokens != nil {
		out = append(out, t.tokens.state(now, LimitTokens))
	}
	return out
}

// bucket is a token bucket that holds one minute's worth. It may go below zero: a
// request that turned out larger than its estimate is paid for by those after it, and
// one larger than the whole bucket passes when it is full. A nil bucket has no limit.
type bucket struct {
	most   float64
	second float64 // earned per second

	mu   sync.Mutex // guards the following
	have float64
	at   time.Time
}

func newBucket(perMinute int, now time.Time) *bucket {
	return &bucket{most: float64(perMinute), second: float64(perMinute) / 60, have: float64(perMinute), at: now}
}

// take takes n, or says how long to wait for it.
func (b *bucket) take(now time.Time, n float64) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earn(now)
	need := min(n, b.most)
	if b.have >= need {
		b.have -= n
		return 0
	}
	return time.Duration(math.Ceil((need - b.have) / b.second * float64(time.Second)))
}

// put gives n back, or takes more if n is negative.
func (b *bucket) put(now time.Time, n float64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.earn(now)
	b.have = min(b.have+n, b.most)
	b.mu.Unlock()
}

// earn adds what time has brought. mu is held.
func (b *bucket) earn(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.have = min(b.have+d.Seconds()*b.second, b.most)
		b.at = now
	}
}

func (b *bucket) state(now time.Time, l Limit) LimitState {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earn(now)
	return LimitState{
		Limit: l, Cap: int64(b.most), Left: int64(b.have),
		Reset: time.Duration((b.most - b.have) / b.second * float64(time.Second)),
	}
}
