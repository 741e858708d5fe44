package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Networks keeps the networks of allocations where pods find them. Calls for one allocation never overlap, those for
// different ones do.
type Networks interface {
	// Create makes every network of the allocation exist and remember it. It is called for each ensure that changes
	// something or that must finish an earlier one: what exists already and is the allocation's own is no error.
	// An error that is ErrRefused will not get better by itself.
	Create(ctx context.Context, allocation tenant.Allocation) error
	// Delete removes the networks. What is gone already, or is somebody else's by now, is no error.
	Delete(ctx context.Context, allocation tenant.Allocation) error
}

// ErrRefused marks a failure of Networks that will be the same next time, such as a namespace that does not exist.
var ErrRefused = errors.New("refused")

// NoNetworks is Networks without a cluster.
type NoNetworks struct{}

// Create implements Networks.
func (NoNetworks) Create(context.Context, tenant.Allocation) error { return nil }

// Delete implements Networks.
func (NoNetworks) Delete(context.Context, tenant.Allocation) error { return nil }

// Options of an engine; the zero value is one without a cluster.
type Options struct {
	// Networks defaults to NoNetworks.
	Networks Networks
	// Clock defaults to the real one.
	Clock clock.Clock
	// Generation is the number before the first. One that is larger than any handed out in an earlier life keeps
	// the promise that none is used twice.
	Generation int64
	// RequestLog, if not nil, gets one JSON line per request to the contract's paths.
	RequestLog *RequestLog
}

// Engine holds the allocations.
type Engine struct {
	networks Networks
	clock    clock.Clock
	log      *RequestLog
	faults   faults

	// keys serialises the calls for one pod, which may wait for Kubernetes; mu is only held for map accesses.
	keys keyLocks

	mu          sync.Mutex
	allocations map[key]*entry
	generation  int64
}

// New returns an engine without allocations.
func New(options Options) *Engine {
	e := &Engine{
		networks: options.Networks, clock: options.Clock, log: options.RequestLog,
		generation: options.Generation, allocations: map[key]*entry{},
	}
	if e.networks == nil {
		e.networks = NoNetworks{}
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	return e
}

// Restore takes over the allocations of an earlier life. Their age starts at 0: too young delays a release, too old
// would take networks from a pod that is being bound.
func (e *Engine) Restore(allocations []tenant.Allocation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range allocations {
		e.allocations[key{a.Cluster, a.PodUID}] = &entry{allocation: a, ensured: e.clock.Now(), handedOut: true}
		e.generation = max(e.generation, a.Generation)
	}
}

// Ensure is the contract's ensure. Errors are *RefusalError, or the context's.
func (e *Engine) Ensure(ctx context.Context, podUID types.UID, ask tenant.EnsureRequest) (*tenant.Allocation, error) {
	if err := validate(podUID, ask); err != nil {
		return nil, err
	}
	k := key{ask.Cluster, podUID}
	unlock, err := e.keys.lock(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()

	old := e.get(k)
	if err := e.admit(old, ask); err != nil {
		return nil, err
	}
	next := e.next(old, k, ask)
	if !next.made {
		e.put(k, next)
		if err := e.networks.Create(ctx, next.allocation); err != nil {
			return nil, e.undo(ctx, k, next, err)
		}
		made := *next
		// The age counts from when the caller can have the answer.
		made.made, made.handedOut, made.ensured = true, true, e.clock.Now()
		next = &made
	}
	e.put(k, next)
	return e.answer(next), nil
}

// admit compares the ask with what is there.
func (e *Engine) admit(old *entry, ask tenant.EnsureRequest) error {
	if old == nil {
		if ask.Generation != 0 {
			return stale(nil, "generation %d: there is no allocation", ask.Generation)
		}
		return nil
	}
	a := &old.allocation
	switch {
	case ask.Generation != a.Generation && (ask.Generation != 0 || ask.Node != a.Node):
		// With 0 the caller has seen no allocation, so it cannot move one: that would let a late request of a scheduler
		// that is gone move the allocation of a pod that its successor has placed.
		return stale(e.answer(old), "generation %d: the present one is %d", ask.Generation, a.Generation)
	case ask.Namespace != a.Namespace || ask.Pod != a.Pod:
		return podChanged("the pod UID belongs to %s/%s, not to %s/%s", a.Namespace, a.Pod, ask.Namespace, ask.Pod)
	case !slices.Equal(ask.Requests, a.Requests):
		return podChanged("the networks were made for other requests and do not change")
	}
	return nil
}

// next is the entry after an admitted ask.
func (e *Engine) next(old *entry, k key, ask tenant.EnsureRequest) *entry {
	next := &entry{ensured: e.clock.Now(), handedOut: old != nil && old.handedOut}
	switch {
	case old == nil:
		next.allocation = tenant.Allocation{
			PodUID: k.podUID, Cluster: k.cluster, Namespace: ask.Namespace, Pod: ask.Pod, Tenant: ask.Tenant,
			Node: ask.Node, Requests: slices.Clone(ask.Requests), Networks: networksFor(k, ask), Generation: e.grow(),
		}
	case old.allocation.Node != ask.Node:
		next.allocation = old.allocation
		next.allocation.Node = ask.Node
		next.allocation.Generation = e.grow()
	default:
		next.allocation = old.allocation
		next.made = old.made
	}
	return next
}

// Release is ReleaseUnused whatever the allocation's age.
func (e *Engine) Release(ctx context.Context, cluster string, podUID types.UID, generation int64) (*tenant.Allocation, error) {
	return e.ReleaseUnused(ctx, cluster, podUID, generation, 0)
}

// ReleaseUnused is the contract's release. It returns what was released, nil if there was nothing.
func (e *Engine) ReleaseUnused(ctx context.Context, cluster string, podUID types.UID, generation int64, minAge time.Duration) (*tenant.Allocation, error) {
	k := key{cluster, podUID}
	if err := validateKey(cluster, podUID); err != nil {
		return nil, err
	}
	if generation < 0 || minAge < 0 {
		return nil, malformed("generation %d and minAgeSeconds %v must not be negative", generation, minAge.Seconds())
	}
	unlock, err := e.keys.lock(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old := e.get(k)
	if old == nil {
		return nil, nil
	}
	if generation != 0 && generation != old.allocation.Generation {
		return nil, stale(e.answer(old), "generation %d: the present one is %d", generation, old.allocation.Generation)
	}
	if age := e.clock.Since(old.ensured); age < minAge {
		return nil, tooYoung(e.answer(old), "the last ensure was %v ago, asked was for %v at least", age, minAge)
	}
	// Some may be deleted when this fails, so a later ensure has to make them again.
	halfway := *old
	halfway.made = false
	e.put(k, &halfway)
	if err := e.networks.Delete(ctx, old.allocation); err != nil {
		return nil, unavailable("deleting networks: %v", err)
	}
	e.remove(k)
	return e.answer(old), nil
}

// Get is the contract's get.
func (e *Engine) Get(cluster string, podUID types.UID) (*tenant.Allocation, error) {
	if err := validateKey(cluster, podUID); err != nil {
		return nil, err
	}
	entry := e.get(key{cluster, podUID})
	if entry == nil {
		return nil, notFound("no allocation for pod UID %s in cluster %s", podUID, cluster)
	}
	return e.answer(entry), nil
}

// List returns up to limit allocations of the cluster whose pod UID is larger than after, in the order of their UIDs,
// and whether there are more.
func (e *Engine) List(cluster string, after types.UID, limit int) (page []tenant.Allocation, more bool) {
	e.mu.Lock()
	var found []*entry
	for k, entry := range e.allocations {
		if k.cluster == cluster && k.podUID > after {
			found = append(found, entry)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(found, func(a, b *entry) int { return cmp.Compare(a.allocation.PodUID, b.allocation.PodUID) })
	more = len(found) > limit
	page = make([]tenant.Allocation, 0, min(len(found), limit))
	for _, entry := range found[:min(len(found), limit)] {
		page = append(page, *e.answer(entry))
	}
	return page, more
}

// Forget drops allocations without deleting their networks, as a tenant-controller does that lost its state: that of
// one pod UID in every cluster, or all if it is empty. It returns how many.
func (e *Engine) Forget(podUID types.UID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.allocations)
	for k := range e.allocations {
		if podUID == "" || k.podUID == podUID {
			delete(e.allocations, k)
		}
	}
	return before - len(e.allocations)
}

// answer is a copy that the caller may keep and change, with the age of this moment.
func (e *Engine) answer(entry *entry) *tenant.Allocation {
	a := entry.allocation
	a.Requests = slices.Clone(a.Requests)
	if entry.handedOut {
		a.Networks = slices.Clone(a.Networks)
	} else {
		a.Networks = []tenant.Network{}
	}
	a.AgeSeconds = max(int64(e.clock.Since(entry.ensured)/time.Second), 0)
	return &a
}

// undo turns a failed creation into an answer. What is refused for good is not left for the sweep, if that can be helped.
func (e *Engine) undo(ctx context.Context, k key, failed *entry, err error) error {
	if !errors.Is(err, ErrRefused) {
		return unavailable("creating networks: %v", err)
	}
	if !failed.handedOut && e.networks.Delete(ctx, failed.allocation) == nil {
		e.remove(k)
	}
	return invalid("creating networks: %v", err)
}
