package ring

import (
	"errors"
	"fmt"
	"math"
)

// Options tune placement and bound. The zero value of each field means its default.
// docs/placement.md has the replay that the defaults of the bound come from.
type Options struct {
	// Partitions is the number of partitions, a prime by preference. Default 4093,
	// range 1..65535. All routers of a fleet must have the same.
	Partitions int
	// Replicas is the number of points that a node of weight 1 has on the circle.
	// Default 100, range 1..1000.
	Replicas int
	// PartitionLoad bounds the partitions per node, as a multiple of the mean. It has
	// nothing to do with requests. Default 1.25, range 1.05..10.
	PartitionLoad float64

	// Factor is c: a node may take work while its load stays within c times the mean.
	// Default 1.25, range 1..100.
	Factor float64
	// Floor is the load, in work units, up to which a node may always take work,
	// whatever the mean: at a few requests per node a ratio binds all the time and
	// throws cache hits away. Default DefaultFloor, at least Unit.
	Floor int64
	// Margin is added to the bound, in work units. Default DefaultMargin; a negative
	// value means none.
	Margin int64
	// Hard is the bound, in work units, of picks with Query.Hard (followers of a warm
	// gate that queue on a warm node rather than prefill on a cold one). It never
	// lowers the ordinary bound. Default DefaultHard.
	Hard int64
	// Follow is how many times the ordinary bound a node may hold when a binding names
	// it: to leave a history means to compute it again elsewhere, which costs the fleet
	// more than a longer batch here. Default DefaultFollow, range 1..100; 1 gives
	// bindings the bound of everybody else.
	Follow float64
}

// Defaults of the bound, derived by replay (docs/placement.md).
const (
	DefaultPartitions    = 4093
	DefaultReplicas      = 100
	DefaultPartitionLoad = 1.25
	DefaultFactor        = 1.25
	DefaultFloor         = 8 * Unit
	DefaultMargin        = 1 * Unit
	DefaultHard          = 64 * Unit
	DefaultFollow        = 2.0
)

// maxNodes is what a uint16 can number, less one value kept free.
const maxNodes = math.MaxUint16 - 1

func (o Options) withDefaults() (Options, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Partitions, DefaultPartitions)
	def(&o.Replicas, DefaultReplicas)
	if o.PartitionLoad == 0 {
		o.PartitionLoad = DefaultPartitionLoad
	}
	if o.Factor == 0 {
		o.Factor = DefaultFactor
	}
	if o.Floor == 0 {
		o.Floor = DefaultFloor
	}
	if o.Hard == 0 {
		o.Hard = DefaultHard
	}
	if o.Follow == 0 {
		o.Follow = DefaultFollow
	}
	switch {
	case o.Margin == 0:
		o.Margin = DefaultMargin
	case o.Margin < 0:
		o.Margin = 0
	}
	return o, o.check()
}

func (o Options) check() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(o.Partitions >= 1 && o.Partitions <= math.MaxUint16, "partitions %d is not in 1..65535", o.Partitions)
	bad(o.Replicas >= 1 && o.Replicas <= 1000, "replicas %d is not in 1..1000", o.Replicas)
	bad(o.PartitionLoad >= 1.05 && o.PartitionLoad <= 10, "partition load %g is not in 1.05..10", o.PartitionLoad)
	bad(o.Factor >= 1 && o.Factor <= 100, "factor %g is not in 1..100", o.Factor)
	bad(o.Floor >= Unit, "floor %d is below one request (%d units)", o.Floor, Unit)
	bad(o.Hard >= Unit, "hard bound %d is below one request (%d units)", o.Hard, Unit)
	bad(o.Follow >= 1 && o.Follow <= 100, "follow factor %g is not in 1..100", o.Follow)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot use ring options: %w", err)
	}
	return nil
}
