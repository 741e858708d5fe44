package release

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Defaults of SweepConfig.
const (
	DefaultSweepPeriod = time.Minute
	DefaultSweepGrace  = time.Minute
	// DefaultUnboundAfter is well over the 30 s for which the scheduler binds by one answer of the tenant-controller plus
	// the 34 s for which the API server works on one binding at most: none that is on its way can arrive any more.
	DefaultUnboundAfter = 5 * time.Minute
	// leastSweepTime lets a sweep come to its end even if they follow closely.
	leastSweepTime = 20 * time.Second
)

// A sweep that would release more than both of these stops and waits for a person: after a restored etcd, with a wrong
// cluster id or an empty list it would take a cluster's networks away.
const (
	sweepMaxShare = 0.2
	sweepMaxCount = 10
)

// Allocations is what the sweep asks of the tenant-controller; see tenant.API.
type Allocations interface {
	List(ctx context.Context, cluster string) ([]tenant.Allocation, error)
	Get(ctx context.Context, cluster string, podUID types.UID) (*tenant.Allocation, error)
	Ensure(ctx context.Context, podUID types.UID, ask tenant.EnsureRequest) (*tenant.Allocation, error)
	ReleaseUnused(ctx context.Context, cluster string, podUID types.UID, generation int64, minAge time.Duration) error
}

// SweepConfig says what a Sweeper works with. Zero durations stand for the defaults.
type SweepConfig struct {
	// Client reads pods and nodes from memory.
	Client client.Client
	// Live reads from the API server. No network is taken away by what memory says alone.
	Live        client.Reader
	Allocations Allocations
	Recorder    Recorder
	Cluster     string
	// Period between sweeps.
	Period time.Duration
	// Grace is how long ago an allocation's last ensure must be before it is taken as left behind.
	Grace time.Duration
	// UnboundAfter is the same for an allocation whose pod exists but is not bound.
	UnboundAfter time.Duration
	// Confirm allows one sweep to release up to that many allocations beyond the usual limit.
	Confirm int
	// Repair asks again for the networks of bound pods whose allocation is missing or names another node.
	Repair bool
	// SandboxWait and ForceAfter as in Config.
	SandboxWait, ForceAfter time.Duration
	Clock                   clock.WithTicker
	Registerer              prometheus.Registerer
}

// Sweeper compares both worlds regularly: allocations without a live pod are released, bound pods without an allocation
// are reported and repaired. The finalizer is for the normal way; the sweep is for what a dead process left.
type Sweeper struct {
	cfg     SweepConfig
	policy  policy
	metrics *sweepMetrics
}

// NewSweeper returns a sweeper, to be added to the manager.
func NewSweeper(cfg SweepConfig) (*Sweeper, error) {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&cfg.Period, DefaultSweepPeriod}, {&cfg.Grace, DefaultSweepGrace},
		{&cfg.UnboundAfter, DefaultUnboundAfter}, {&cfg.SandboxWait, DefaultSandboxWait},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	metrics, err := newSweepMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Sweeper{cfg: cfg, metrics: metrics, policy: policy{sandboxWait: cfg.SandboxWait, forceAfter: cfg.ForceAfter}}, nil
}

// NeedLeaderElection tells controller-runtime that the leader alone sweeps.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(s.cfg.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := s.sweep(ctx); err != nil {
			s.metrics.failures.Inc()
			klog.FromContext(ctx).Error(err, "sweep of allocations did not come to its end")
			continue
		}
		s.metrics.lastSuccess.Set(float64(s.cfg.Clock.Now().Unix()))
	}
}

// sweep is one round. It bounds itself by the period: the next round starts from fresh lists.
func (s *Sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.cfg.Period, leastSweepTime))
	defer cancel()
	allocations, err := s.cfg.Allocations.List(ctx, s.cfg.Cluster)
	if err != nil {
		return fmt.Errorf("listing allocations: %w", err)
	}
	var pods corev1.PodList
	if err := s.cfg.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	byUID := make(map[types.UID]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		byUID[pods.Items[i].UID] = &pods.Items[i]
	}
	byAllocation := make(map[types.UID]*tenant.Allocation, len(allocations))
	for i := range allocations {
		byAllocation[allocations[i].PodUID] = &allocations[i]
	}
	// Side by side: neither thousands of allocations that wait for a person nor repairs that hang keep the other part waiting.
	var releaseErr, reportErr error
	var parts sync.WaitGroup
	parts.Go(func() { releaseErr = s.releaseLeftBehind(ctx, allocations, byUID) })
	parts.Go(func() { reportErr = s.report(ctx, pods.Items, byAllocation) })
	parts.Wait()
	return errors.Join(releaseErr, reportErr)
}

// orphan is an allocation that nobody uses, and why.
type orphan struct {
	allocation tenant.Allocation
	reason     string
	// minAge is what the tenant-controller must confirm when it releases.
	minAge time.Duration
}

func (s *Sweeper) releaseLeftBehind(ctx context.Context, allocations []tenant.Allocation, byUID map[types.UID]*corev1.Pod) error {
	left, err := s.leftBehind(ctx, allocations, byUID)
	if ctx.Err() != nil {
		return err // what was found is not all, so it says nothing about whether it is suspiciously much
	}
	return errors.Join(err, s.release(ctx, left, len(allocations)))
}

// leftBehind returns the allocations without a pod that uses them, each after a live look.
func (s *Sweeper) leftBehind(ctx context.Context, allocations []tenant.Allocation, byUID map[types.UID]*corev1.Pod) ([]orphan, error) {
	var unused []tenant.Allocation
	for _, a := range allocations {
		if a.Age() < s.cfg.Grace {
			continue
		}
		if pod := byUID[a.PodUID]; pod != nil && pod.Spec.NodeName != "" && hasFinalizer(pod) {
			continue // the usual case; the release controller looks after it
		}
		unused = append(unused, a)
	}
	var mu sync.Mutex
	var found []orphan
	err := each(ctx, unused, func(a tenant.Allocation) string { return a.Namespace }, func(ctx context.Context, a tenant.Allocation) error {
		o, err := s.judge(ctx, a)
		if o != nil {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, *o)
		}
		return err
	})
	return found, err
}

// judge looks at the allocation's pod in the API server; nil means that it is in use.
func (s *Sweeper) judge(ctx context.Context, a tenant.Allocation) (*orphan, error) {
	pod := &corev1.Pod{}
	err := s.cfg.Live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Pod}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return &orphan{a, "the pod does not exist", s.cfg.Grace}, nil
	case err != nil:
		return nil, fmt.Errorf("reading pod %s/%s of allocation %s: %w", a.Namespace, a.Pod, a.PodUID, err)
	case pod.UID != a.PodUID:
		return &orphan{a, "the pod was replaced by another of its name", s.cfg.Grace}, nil
	case hasFinalizer(pod) && (pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil):
		return nil, nil // the release controller looks after it
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil:
		if a.Age() < s.cfg.UnboundAfter {
			return nil, nil
		}
		return &orphan{a, "the pod has not been bound for long", s.cfg.UnboundAfter}, nil
	}
	// Without our finalizer, removed by hand or by an earlier release, the pod's own state decides.
	node := &corev1.Node{}
	if err := s.cfg.Live.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil && pod.Spec.NodeName != "" {
		return nil, fmt.Errorf("reading node %s of allocation %s: %w", pod.Spec.NodeName, a.PodUID, err)
	}
	if v := s.policy.stopped(pod, node, s.cfg.Clock.Now()); v.stopped {
		return &orphan{a, v.reason, s.cfg.Grace}, nil
	}
	return nil, nil
}

// release gives the allocations back, unless they are suspiciously many.
func (s *Sweeper) release(ctx context.Context, left []orphan, total int) error {
	s.metrics.orphans.Set(float64(len(left)))
	limit := max(sweepMaxCount, int(sweepMaxShare*float64(total)), s.cfg.Confirm)
	if len(left) > limit {
		s.metrics.blocked.Set(1)
		return fmt.Errorf("%d of %d allocations have no live pod, which is more than %d: nothing is released; "+
			"if that is right, restart tenant-webhook with --sweep-confirm=%d", len(left), total, limit, len(left))
	}
	s.metrics.blocked.Set(0)
	return each(ctx, left, func(o orphan) string { return o.allocation.Namespace }, func(ctx context.Context, o orphan) error {
		a := o.allocation
		err := s.cfg.Allocations.ReleaseUnused(ctx, s.cfg.Cluster, a.PodUID, a.Generation, o.minAge)
		if tenant.IsConflict(err) {
			return nil // it was asked for again meanwhile
		}
		if err != nil {
			return fmt.Errorf("releasing allocation %s of pod %s/%s: %w", a.PodUID, a.Namespace, a.Pod, err)
		}
		s.metrics.released.Inc()
		klog.FromContext(ctx).Info("allocation swept", "allocation", a.PodUID, "pod", klog.KRef(a.Namespace, a.Pod), "reason", o.reason)
		return nil
	})
}
