package pools

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Demand is what one pod under admission needs.
type Demand struct {
	Intent rdma.Intent
	// Pinned are pools that the pod's containers already request, by type. They are not chosen again.
	Pinned map[rdma.Type]corev1.ResourceName
	// Pod carries node selector, affinity, tolerations and the other requests. It is only read.
	Pod *corev1.Pod
	// Group is the gang the pod belongs to, if any.
	Group Group
	// AdmissionID keys the reservation; empty means none is made, as for a dry run.
	AdmissionID string
	// Name is the pod's namespace/name, empty if the API server makes the name up later. A reservation replaces the one
	// of an earlier admission under the same name.
	Name string
}

// Outcome says how well a chosen pool can serve the pod.
type Outcome int

// The outcomes, the best first.
const (
	// Room: the devices are free now.
	Room Outcome = iota + 1
	// RoomAfterRelease: the devices will be free when pods that are being deleted have gone.
	RoomAfterRelease
	// Waits: a node could serve the pod, but other pods hold or await its devices.
	Waits
	// NoNode: no known node could ever serve the pod.
	NoNode
)

// Choice is the pools chosen for a pod.
type Choice struct {
	Assignment rdma.Assignment
	Outcome    Outcome
	// FromGroup says that the pool was given by other members of the pod's group.
	FromGroup bool
	// Available is what each pool of the assignment had left before this pod, as in Usage.
	Available Counts
}

// RefusalError says why a pod is refused.
type RefusalError struct {
	// Type is the annotation's type that cannot be served, empty if it is all of them together.
	Type   rdma.Type
	Count  int64
	Reason string
}

func (r *RefusalError) Error() string { return r.Reason }

// Choose picks pools for a pod and, if the demand has an admission id, reserves the devices in the same step. The order
// of preference is: the first pools in order of priority with room now; with room once pods being deleted are gone;
// that a node could ever serve; and the first of all. The error is a *RefusalError.
func (l *Ledger) Choose(cfg *Config, d Demand) (Choice, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	l.endPredecessor(d)
	options, fromGroup, err := l.options(cfg, d)
	if err != nil {
		return Choice{}, err
	}
	m := newMatcher(d.Pod, options)
	assignment, outcome := l.best(cfg, d, m, options)
	if assignment == nil {
		return Choice{}, &RefusalError{Reason: "no configured pools can serve vf and pf together; accepted is one of the two"}
	}
	if outcome == NoNode && cfg.Policy.WhenFull == Reject && !fromGroup {
		return Choice{}, &RefusalError{Reason: fmt.Sprintf("no node can hold the pod with %s, even when it is empty; accepted is what fits on one node", describe(options))}
	}
	choice := Choice{Assignment: assignment, Outcome: outcome, FromGroup: fromGroup, Available: Counts{}}
	for _, pool := range assignment.Pools() {
		choice.Available[pool] = max(l.available(pool), 0)
	}
	if d.AdmissionID != "" {
		l.reserve(d, assignment, cfg.Policy.Reservation())
	}
	return choice, nil
}

// KnowsAdmission reports whether a pod with that admission id is in the informer already: a pod under admission that
// carries such an id was copied from that pod.
func (l *Ledger) KnowsAdmission(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.admitted[id]
	return ok
}

// options lists for each ask of the intent the pools that may serve it, the most preferred first.
func (l *Ledger) options(cfg *Config, d Demand) (options [][]rdma.Entry, fromGroup bool, err error) {
	for _, ask := range d.Intent {
		var entries []rdma.Entry
		pinned, isPinned := d.Pinned[ask.Type]
		held, isHeld := l.groupPool(cfg, d.Group, ask.Type, d.AdmissionID)
		switch {
		case isPinned:
			entries = []rdma.Entry{{Type: ask.Type, Pool: pinned, Count: ask.Count}}
		case isHeld:
			fromGroup = true
			entries = []rdma.Entry{{Type: ask.Type, Pool: held, Count: ask.Count}}
		default:
			for _, pool := range cfg.Pools {
				if pool.Serves(ask.Type, ask.Count) {
					entries = append(entries, rdma.Entry{Type: ask.Type, Pool: pool.Name, Count: ask.Count})
				}
			}
		}
		if len(entries) == 0 {
			return nil, false, &RefusalError{Type: ask.Type, Count: ask.Count, Reason: noPool(cfg, ask)}
		}
		if pool, ok := cfg.Lookup(entries[0].Pool); (isPinned || isHeld) && ok && pool.Shared && ask.Count > 1 {
			return nil, false, &RefusalError{Type: ask.Type, Count: ask.Count, Reason: fmt.Sprintf("pool %s is %s", pool.Name, sharedServesOne)}
		}
		options = append(options, entries)
	}
	return options, fromGroup, nil
}

const sharedServesOne = `shared, and a shared device serves one adapter however many are asked for; accepted is "1"`

func noPool(cfg *Config, ask rdma.Ask) string {
	if slices.ContainsFunc(cfg.Pools, func(p Pool) bool { return p.Serves(ask.Type, 1) }) {
		return fmt.Sprintf("all pools of type %s are %s", ask.Type, sharedServesOne)
	}
	return fmt.Sprintf("no configured pool serves type %s; accepted are the types of the pools that an administrator configured", ask.Type)
}

// best goes through the combinations of options by falling quality, and in order of priority within one quality.
func (l *Ledger) best(cfg *Config, d Demand, m matcher, options [][]rdma.Entry) (rdma.Assignment, Outcome) {
	combinations := combine(options, func(a rdma.Assignment) bool { return servesTogether(cfg, a) })
	for _, outcome := range []Outcome{Room, RoomAfterRelease, Waits} {
		for _, assignment := range combinations {
			if l.reaches(outcome, cfg, d, m, bundleOf(assignment)) {
				return assignment, outcome
			}
		}
	}
	if len(combinations) == 0 {
		return nil, NoNode
	}
	return combinations[0], NoNode
}

func (l *Ledger) reaches(outcome Outcome, cfg *Config, d Demand, m matcher, b bundle) bool {
	if outcome == Waits {
		return l.couldEverServe(m, b)
	}
	return l.hasRoom(m, b, l.waiting(cfg, d, b), outcome == RoomAfterRelease)
}

// combine returns the product of the options, the first option varying slowest, without those that do not pass.
func combine(options [][]rdma.Entry, pass func(rdma.Assignment) bool) []rdma.Assignment {
	product := []rdma.Assignment{nil}
	for _, entries := range options {
		var next []rdma.Assignment
		for _, head := range product {
			for _, e := range entries {
				next = append(next, append(slices.Clone(head), e))
			}
		}
		product = next
	}
	return slices.DeleteFunc(product, func(a rdma.Assignment) bool { return !pass(a) })
}

// servesTogether keeps a shared pool from serving both types of one pod: that would be a count of 2.
func servesTogether(cfg *Config, a rdma.Assignment) bool {
	for _, e := range a {
		if pool, ok := cfg.Lookup(e.Pool); ok && pool.Shared && a.Total(e.Pool) > 1 {
			return false
		}
	}
	return true
}

// bundle is what one node must have at once.
type bundle []struct {
	pool  corev1.ResourceName
	count int64
}

func bundleOf(a rdma.Assignment) bundle {
	b := make(bundle, len(a.Pools()))
	for i, pool := range a.Pools() {
		b[i].pool, b[i].count = pool, a.Total(pool)
	}
	return b
}

// slots returns how many such bundles fit into the counts, at least 0.
func (b bundle) slots(count func(corev1.ResourceName) int64) int64 {
	slots := maxDevices
	for _, item := range b {
		slots = min(slots, count(item.pool)/item.count)
	}
	return max(slots, 0)
}

// waiting returns how many bundles are already spoken for by pods without a node and by reservations, rounded up. The
// pod's own reservation, from a first pass of the same admission, does not count against it.
//
// Requests that exceed the capacity of the pool's largest node do not count: nothing that is given back ever serves them, so
// they would keep everybody else off the pool for good. That node need not be eligible now, it may be again; and once a
// larger one comes, they count.
func (l *Ledger) waiting(cfg *Config, d Demand, b bundle) int64 {
	var waiting int64
	own := l.byID[d.AdmissionID].devices
	for _, item := range b {
		largest := l.largest(item.pool)
		demand := l.totals.unbound[item.pool].requests.sum(largest) + l.reserved[item.pool].requests.sum(largest)
		if own[item.pool] <= largest {
			demand -= own[item.pool]
		}
		if cfg.Policy.GatedPods == IgnoreGated {
			demand -= l.totals.gated[item.pool].requests.sum(largest)
		}
		waiting = max(waiting, (demand+item.count-1)/item.count)
	}
	return waiting
}

// largest returns the largest capacity of a node that offers the pool.
func (l *Ledger) largest(pool corev1.ResourceName) int64 {
	if o := l.offering[pool]; o != nil {
		return o.capacities.largest()
	}
	return 0
}

// hasRoom reports whether the candidate nodes have more free slots than are spoken for. Without counting those, a burst
// of pods would all see the same free devices.
func (l *Ledger) hasRoom(m matcher, b bundle, waiting int64, withReleasing bool) bool {
	o := l.offering[b[0].pool]
	if o == nil {
		return false
	}
	var slots int64
	for _, e := range o.list[:o.open] {
		here := e.free / b[0].count
		if withReleasing {
			here = e.eventually / b[0].count
		}
		if here > 0 && len(b) > 1 {
			here = min(here, b[1:].slots(func(pool corev1.ResourceName) int64 { return e.node.free(pool, withReleasing) }))
		}
		if here == 0 || !m.matches(e.node.object, false) {
			continue
		}
		if slots += here; slots > waiting {
			return true
		}
	}
	return false
}

// couldEverServe looks at capacity and also at nodes that are not eligible now.
func (l *Ledger) couldEverServe(m matcher, b bundle) bool {
	o := l.offering[b[0].pool]
	if o == nil {
		return false
	}
	for _, e := range o.list {
		n := e.node
		if b.slots(func(pool corev1.ResourceName) int64 { return n.capacity[pool] }) > 0 && m.matches(n.object, true) {
			return true
		}
	}
	return false
}

// groupPool returns the pool that other members of the group hold for the type. Should they hold several (two replicas
// can disagree for a moment), it is the one of highest priority.
func (l *Ledger) groupPool(cfg *Config, group Group, t rdma.Type, ownID string) (corev1.ResourceName, bool) {
	if group == (Group{}) {
		return "", false
	}
	var held []corev1.ResourceName
	for id, m := range l.groups[group] {
		if id == reservationMember(ownID) {
			continue
		}
		for _, e := range m.assignment {
			if e.Type == t {
				held = append(held, e.Pool)
			}
		}
	}
	if len(held) == 0 {
		return "", false
	}
	rank := func(name corev1.ResourceName) int {
		i := slices.IndexFunc(cfg.Pools, func(p Pool) bool { return p.Name == name })
		if i < 0 {
			return len(cfg.Pools) // a pool taken out of the configuration is still served to its group
		}
		return i
	}
	return slices.MinFunc(held, func(a, b corev1.ResourceName) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return compareNames(a, b)
	}), true
}

// describe names the options for a message, such as "2 of a.com/vf or b.com/vf".
func describe(options [][]rdma.Entry) string {
	parts := make([]string, 0, len(options))
	for _, entries := range options {
		names := make([]string, 0, len(entries))
		for _, e := range entries {
			names = append(names, string(e.Pool))
		}
		parts = append(parts, fmt.Sprintf("%d of %s", entries[0].Count, strings.Join(names, " or ")))
	}
	return strings.Join(parts, " and ")
}
