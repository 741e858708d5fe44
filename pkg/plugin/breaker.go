package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Scopes of a breaker.
const (
	scopeAll    = "all"
	scopeTenant = "tenant"
)

// breaker is one circuit with the pods that wait for it. Its circuit has a lock of its own, which is taken while mu is
// held but never the other way round.
type breaker struct {
	owner   *breakers
	scope   string
	tenant  string
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu      sync.Mutex
	waiting map[podUID]*corev1.Pod
	// hungry are pods that no node has room for unless others are evicted.
	hungry map[podUID]*corev1.Pod
	// probe is the pod, or its gang, that has a node and is about to call while the circuit is half open; claimed is since
	// when. Empty if there is none.
	probe   string
	claimed time.Time
	// preempted is when others were last evicted for a pod that waited.
	preempted time.Time
	armed     bool
	discarded bool
	lastErr   string
	// verdict is closed when the next call ends.
	verdict chan struct{}
}

func newBreaker(owner *breakers, scope, tenantName string) *breaker {
	one := &breaker{owner: owner, scope: scope, tenant: tenantName, waiting: map[podUID]*corev1.Pod{},
		hungry: map[podUID]*corev1.Pod{}, verdict: make(chan struct{})}
	one.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](owner.settings(one))
	return one
}

func (one *breaker) pause() time.Duration { return one.owner.args.Pause.Duration }

// reason says why pods wait.
func (one *breaker) reason() string {
	if one.scope == scopeAll {
		return fmt.Sprintf("the tenant-controller does not answer (%s); pods with RDMA networks wait, one is tried every %v", one.lastErr, one.pause())
	}
	return fmt.Sprintf("the tenant-controller does not serve tenant %s (%s); its pods with RDMA networks wait, one is tried every %v", one.tenant, one.lastErr, one.pause())
}

// blocked returns why the pod has to wait for this breaker.
func (one *breaker) blocked(claimant string, pod *corev1.Pod) string {
	one.mu.Lock()
	defer one.mu.Unlock()
	state := one.circuit.State()
	delete(one.waiting, pod.UID)
	delete(one.hungry, pod.UID)
	if state == gobreaker.StateClosed || state == gobreaker.StateHalfOpen && one.free(claimant) {
		return ""
	}
	return one.hold(one.waiting, pod)
}

// free reports whether the claimant may be the probe. One that is not heard of for a pause loses its place: it may be
// held up by another plugin.
func (one *breaker) free(claimant string) bool {
	return one.probe == "" || one.probe == claimant || one.owner.clock.Since(one.claimed) >= one.pause()
}

// hold has the pod wait among others.
func (one *breaker) hold(others map[podUID]*corev1.Pod, pod *corev1.Pod) string {
	others[pod.UID] = pod
	one.arm(one.pause())
	return one.reason()
}

// mayPreempt returns why the pod has to wait for this breaker before others are evicted for it.
func (one *breaker) mayPreempt(pod *corev1.Pod) string {
	one.mu.Lock()
	defer one.mu.Unlock()
	state := one.circuit.State()
	if state == gobreaker.StateClosed || state == gobreaker.StateHalfOpen && one.owner.clock.Since(one.preempted) >= one.pause() {
		return ""
	}
	return one.hold(one.hungry, pod)
}

func (one *breaker) preempts() {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.preempted = one.owner.clock.Now()
}

func (one *breaker) claim(claimant string) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.circuit.State() == gobreaker.StateHalfOpen && one.free(claimant) && one.probe != claimant {
		one.probe, one.claimed = claimant, one.owner.clock.Now()
	}
}

func (one *breaker) yield(claimant string) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.probe == claimant {
		one.probe = ""
	}
}

// allow asks the circuit for one call, and waits while a probe's call is under way.
func (one *breaker) allow(ctx context.Context) (func(error), error) {
	for {
		one.mu.Lock()
		verdict, reason := one.verdict, one.reason()
		done, err := one.circuit.Allow()
		one.mu.Unlock()
		if err == nil {
			return func(err error) { one.done(done, err) }, nil
		}
		if !errors.Is(err, gobreaker.ErrTooManyRequests) {
			return nil, fmt.Errorf("%s: %w", reason, err)
		}
		select {
		case <-verdict:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", reason, errors.Join(err, ctx.Err()))
		}
	}
}

// done tells the circuit how a call went, and then those that wait for that.
func (one *breaker) done(done func(error), err error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if err != nil && !errors.Is(err, errNoVerdict) {
		one.lastErr = err.Error()
	}
	done(err)
	close(one.verdict)
	one.verdict = make(chan struct{})
}

func (one *breaker) hasWaiting() bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.dropGone()
	return len(one.waiting)+len(one.hungry) > 0
}

func (one *breaker) dropGone() {
	gone := func(_ podUID, pod *corev1.Pod) bool { return !one.owner.waits(pod) }
	maps.DeleteFunc(one.waiting, gone)
	maps.DeleteFunc(one.hungry, gone)
}

// arm starts the timer that looks after those that wait, unless it runs already.
func (one *breaker) arm(after time.Duration) {
	if one.armed {
		return
	}
	one.armed = true
	timer := one.owner.clock.NewTimer(after)
	go func() {
		<-timer.C()
		one.mu.Lock()
		one.armed = false
		one.mu.Unlock()
		one.tick()
	}()
}

// tick wakes those that wait if they may be tried, and lets the breaker be forgotten that nobody waits for.
func (one *breaker) tick() {
	wake, abandoned := one.due()
	if len(wake) > 0 {
		one.owner.activate(wake)
	}
	if abandoned && !one.owner.forget(one) {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.arm(one.pause())
	}
}

// due returns the pods to be woken, and whether the breaker is not closed although nobody waits for it.
func (one *breaker) due() (wake map[string]*corev1.Pod, abandoned bool) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.dropGone()
	state := one.circuit.State()
	if state == gobreaker.StateClosed {
		one.probe = ""
	}
	if len(one.waiting)+len(one.hungry) == 0 {
		return nil, state != gobreaker.StateClosed && one.scope == scopeTenant
	}
	switch {
	case state == gobreaker.StateOpen: // it opened again after the timer was started
		one.arm(one.pause() / 8)
		return nil, false
	case state == gobreaker.StateHalfOpen && !one.free(""):
		one.arm(one.pause() - one.owner.clock.Since(one.claimed))
		return nil, false
	}
	wake = map[string]*corev1.Pod{}
	release(wake, one.waiting, nil)
	if state == gobreaker.StateClosed {
		release(wake, one.hungry, nil)
		return wake, false
	}
	// Not all: only one of them may preempt, and a cluster that is full has many.
	release(wake, one.hungry, first(one.hungry))
	one.arm(one.pause())
	return wake, false
}

// release moves pods to those that are woken: all of them, or the one that is named.
func release(wake map[string]*corev1.Pod, from map[podUID]*corev1.Pod, only *corev1.Pod) {
	for uid, pod := range from {
		if only == nil || only == pod {
			wake[pod.Namespace+"/"+pod.Name] = pod
			delete(from, uid)
		}
	}
}

// first is the pod that kube-scheduler would look at first, nil if there is none.
func first(pods map[podUID]*corev1.Pod) *corev1.Pod {
	var best *corev1.Pod
	for _, pod := range pods {
		if best == nil || corev1helpers.PodPriority(pod) > corev1helpers.PodPriority(best) ||
			corev1helpers.PodPriority(pod) == corev1helpers.PodPriority(best) && pod.CreationTimestamp.Before(&best.CreationTimestamp) {
			best = pod
		}
	}
	return best
}

// changed is called by the circuit, whose lock is held, and perhaps mu.
func (one *breaker) changed(from, to gobreaker.State) {
	gauge := sharedMetrics().breakers.WithLabelValues(one.scope)
	switch {
	case from == gobreaker.StateClosed:
		gauge.Inc()
		go one.watch()
	case to == gobreaker.StateClosed:
		gauge.Dec()
		go one.tick()
	}
}

// watch looks after a tenant's breaker that has opened, so that it does not count as open after its last pod is gone.
func (one *breaker) watch() {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.scope == scopeTenant {
		one.arm(one.pause())
	}
}

// discard takes a breaker that is not used any more out of the metric.
func (one *breaker) discard() {
	one.mu.Lock()
	defer one.mu.Unlock()
	if !one.discarded && one.circuit.State() != gobreaker.StateClosed {
		sharedMetrics().breakers.WithLabelValues(one.scope).Dec()
	}
	one.discarded = true
}
