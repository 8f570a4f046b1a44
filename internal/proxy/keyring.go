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
	Class             int      // see Tenant.Class
	Models            []string // names it may ask for, as clients write them; none = all
}

// Keyring is the built-in Admission: hashed keys and token buckets.
type Keyring struct {
	byKey     map[[32]byte]*tenant
	byName    map[string]*tenant
	anonymous *tenant // who comes without a key; nil = nobody may
}

// NewKeyring builds a keyring. A tenant without keys is who comes without one; there
// can be one such. Two tenants with one key are an error.
func NewKeyring(tenants []TenantOptions, now time.Time) (*Keyring, error) {
	return (*Keyring)(nil).Renew(tenants, now)
}

// Renew builds the keyring that follows k, which may be nil. What a tenant of the same
// name has used up and has running counts on under its new limits. On an error nothing
// has changed.
func (k *Keyring) Renew(tenants []TenantOptions, now time.Time) (*Keyring, error) {
	next := &Keyring{byKey: map[[32]byte]*tenant{}, byName: map[string]*tenant{}}
	for i := range tenants {
		if err := next.add(&tenants[i]); err != nil {
			return nil, err
		}
	}
	for _, o := range tenants {
		t := next.byName[o.Name]
		if k != nil && k.byName[o.Name] != nil {
			t.meter = k.byName[o.Name].meter
		} else {
			t.meter = &meter{}
		}
		t.meter.limit(&o, now)
	}
	return next, nil
}

// add books a tenant, without what it uses.
func (k *Keyring) add(o *TenantOptions) error {
	if o.Name == "" || k.byName[o.Name] != nil {
		return fmt.Errorf("cannot use tenant %q: names must be unique and not empty", o.Name)
	}
	if o.RequestsPerMinute < 0 || o.TokensPerMinute < 0 || o.Concurrent < 0 {
		return fmt.Errorf("cannot use tenant %q: a limit is negative", o.Name)
	}
	t := newTenant(o)
	k.byName[o.Name] = t
	if len(o.Keys) == 0 {
		if k.anonymous != nil {
			return fmt.Errorf("cannot use tenant %q: another one has no key either", o.Name)
		}
		k.anonymous = t
	}
	for _, key := range o.Keys {
		if have := k.byKey[key]; have != nil && have != t {
			return fmt.Errorf("cannot use tenant %q: another one has the same key", o.Name)
		}
		k.byKey[key] = t
	}
	return nil
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
	scope  uint64
	class  int
	keys   [][32]byte
	models map[string]bool // nil = all
	meter  *meter          // shared with the keyrings before and after
}

// meter is what a tenant has taken of its limits.
type meter struct {
	most             atomic.Int64 // at a time; 0 = no limit
	running          atomic.Int64
	requests, tokens bucket
}

func newTenant(o *TenantOptions) *tenant {
	h := sha256.Sum256([]byte("prefixring tenant\x00" + o.Name))
	t := &tenant{scope: binary.LittleEndian.Uint64(h[:]), class: o.Class, keys: o.Keys}
	if len(o.Models) > 0 {
		t.models = map[string]bool{}
		for _, m := range o.Models {
			t.models[m] = true
		}
	}
	return t
}

func (u *meter) limit(o *TenantOptions, now time.Time) {
	u.most.Store(int64(o.Concurrent))
	u.requests.limit(o.RequestsPerMinute, now)
	u.tokens.limit(o.TokensPerMinute, now)
}

func (t *tenant) Scope() uint64            { return t.scope }
func (t *tenant) Class() int               { return t.class }
func (t *tenant) Allows(model string) bool { return t.models == nil || t.models[model] }

// Admit takes from all limits or from none.
func (t *tenant) Admit(now time.Time, promptTokens int64) *Refusal {
	u := t.meter
	n, most := u.running.Add(1), u.most.Load()
	if most > 0 && n > most {
		u.running.Add(-1)
		return &Refusal{Limit: LimitConcurrency, Cap: most}
	}
	if wait, most := u.requests.take(now, 1); wait > 0 {
		u.running.Add(-1)
		return &Refusal{Limit: LimitRate, Cap: most, RetryAfter: wait}
	}
	if wait, most := u.tokens.take(now, float64(promptTokens)); wait > 0 {
		u.requests.put(now, 1)
		u.running.Add(-1)
		return &Refusal{Limit: LimitTokens, Cap: most, RetryAfter: wait}
	}
	return nil
}

// Settle corrects the estimate by what the engine counted.
func (t *tenant) Settle(now time.Time, estimate, counted int64) {
	t.meter.running.Add(-1)
	if counted != dialect.Unknown {
		t.meter.tokens.put(now, float64(estimate-counted))
	}
}

// Limits implements Tenant.
func (t *tenant) Limits(now time.Time) []LimitState {
	var out []LimitState
	if s, ok := t.meter.requests.state(now, LimitRate); ok {
		out = append(out, s)
	}
	if s, ok := t.meter.tokens.state(now, LimitTokens); ok {
		out = append(out, s)
	}
	return out
}

// bucket is a token bucket that holds one minute's worth. It may go below zero: a
// request that turned out larger than its estimate is paid for by those after it, and
// one larger than the whole bucket passes when it is full.
type bucket struct {
	limited atomic.Bool // false: no limit, and what follows is not looked at

	mu     sync.Mutex // guards the following
	most   float64
	second float64 // earned per second
	have   float64
	at     time.Time
}

// limit sets how much a minute brings; 0 = no limit. What is missing from a full bucket
// stays missing, so that a new configuration forgives nothing.
func (b *bucket) limit(perMinute int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := 0.0
	if b.limited.Load() {
		b.earn(now)
		missing = b.most - b.have
	}
	b.most, b.second, b.at = float64(perMinute), float64(perMinute)/60, now
	b.have = b.most - missing
	b.limited.Store(perMinute > 0)
}

// take takes n, or says how long to wait for it and how much a minute brings.
func (b *bucket) take(now time.Time, n float64) (wait time.Duration, most int64) {
	if !b.limited.Load() {
		return 0, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earn(now)
	need := min(n, b.most)
	if b.have >= need {
		b.have -= n
		return 0, 0
	}
	return time.Duration(math.Ceil((need - b.have) / b.second * float64(time.Second))), int64(b.most)
}

// put gives n back, or takes more if n is negative.
func (b *bucket) put(now time.Time, n float64) {
	if !b.limited.Load() {
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

// state is false when there is no limit.
func (b *bucket) state(now time.Time, l Limit) (LimitState, bool) {
	if !b.limited.Load() {
		return LimitState{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.earn(now)
	return LimitState{
		Limit: l, Cap: int64(b.most), Left: int64(b.have),
		Reset: time.Duration((b.most - b.have) / b.second * float64(time.Second)),
	}, true
}
