package plugin

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Scopes of a breaker.
const (
	scopeAll    = "all"
	scopeTenant = "tenant"
)

// breakers keep pods from being placed while the tenant-controller does not serve them: one breaker for each tenant,
// which any refusal counts against, and one for all, which only silence counts against. While one is not closed its
// pods wait in the scheduling queue; one of them at a time is let through as a probe, and when it closes all are woken.
type breakers struct {
	args     BreakerArgs
	clock    clock.Clock
	activate func(map[string]*corev1.Pod)
	mu       sync.Mutex
	byTenant map[string]*breaker
	all      *breaker
}

// breaker is one circuit with the pods that wait for it. Its circuit has a lock of its own, which is taken while mu is
// held but never the other way round.
type breaker struct {
	owner   *breakers
	scope   string
	tenant  string
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu      sync.Mutex
	waiting map[podUID]*corev1.Pod
	probe   podUID
	armed   bool
	lastErr string
}

func newBreakers(args BreakerArgs, c clock.Clock, activate func(map[string]*corev1.Pod)) *breakers {
	b := &breakers{args: args, clock: c, activate: activate, byTenant: map[string]*breaker{}}
	b.all = b.newBreaker(scopeAll, "")
	return b
}

func (b *breakers) newBreaker(scope, tenantName string) *breaker {
	one := &breaker{owner: b, scope: scope, tenant: tenantName, waiting: map[podUID]*corev1.Pod{}}
	one.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:          scope + " " + tenantName,
		MaxRequests:   1,
		Timeout:       b.args.Pause.Duration,
		ReadyToTrip:   func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= b.args.Failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoVerdict) },
		OnStateChange: func(_ string, from, to gobreaker.State) { one.changed(from, to) },
	})
	return one
}

func (b *breakers) of(tenantName string) *breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, ok := b.byTenant[tenantName]
	if !ok {
		one = b.newBreaker(scopeTenant, tenantName)
		b.byTenant[tenantName] = one
	}
	return one
}

// blocked returns why the pod has to wait, or nothing. A pod that waits is remembered and woken later.
func (b *breakers) blocked(tenantName string, pod *corev1.Pod) string {
	for _, one := range []*breaker{b.all, b.of(tenantName)} {
		if reason := one.blocked(pod); reason != "" {
			return reason
		}
	}
	return ""
}

// errNoVerdict is the result of a call that says nothing about the tenant-controller's health.
var errNoVerdict = errors.New("no verdict")

// allow asks both circuits for one call. The function that it returns must be called with the call's result.
func (b *breakers) allow(tenantName string) (func(error), error) {
	one := b.of(tenantName)
	doneAll, err := b.all.circuit.Allow()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.all.reason(), err)
	}
	doneTenant, err := one.circuit.Allow()
	if err != nil {
		doneAll(errNoVerdict)
		return nil, fmt.Errorf("%s: %w", one.reason(), err)
	}
	return func(err error) {
		switch {
		case tenant.IsUnavailable(err):
			b.all.failed(err)
			one.failed(err)
			doneAll(err)
			doneTenant(err)
		case tenant.IsFinal(err):
			one.failed(err)
			doneAll(nil)
			doneTenant(err)
		case err == nil || tenant.IsConflict(err):
			doneAll(nil)
			doneTenant(nil)
		default: // the call was cancelled from this side
			doneAll(errNoVerdict)
			doneTenant(errNoVerdict)
		}
	}, nil
}

func (one *breaker) failed(err error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.lastErr = err.Error()
}

func (one *breaker) reason() string {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.reasonLocked()
}

func (one *breaker) reasonLocked() string {
	pause := one.owner.args.Pause.Duration
	if one.scope == scopeAll {
		return fmt.Sprintf("the tenant-controller does not answer (%s); pods with RDMA networks wait, one is tried every %v", one.lastErr, pause)
	}
	return fmt.Sprintf("the tenant-controller does not serve tenant %s (%s); its pods with RDMA networks wait, one is tried every %v", one.tenant, one.lastErr, pause)
}

// blocked returns why the pod has to wait for this breaker. Once the pause is over, only the pod that was woken as the
// probe passes.
func (one *breaker) blocked(pod *corev1.Pod) string {
	one.mu.Lock()
	defer one.mu.Unlock()
	state := one.circuit.State()
	if state == gobreaker.StateClosed || state == gobreaker.StateHalfOpen && one.probe == pod.UID {
		return ""
	}
	one.waiting[pod.UID] = pod
	one.arm(one.owner.args.Pause.Duration)
	return one.reasonLocked()
}

// arm starts the timer that wakes the next probe, unless it runs already.
func (one *breaker) arm(after time.Duration) {
	if one.armed {
		return
	}
	one.armed = true
	timer := one.owner.clock.NewTimer(after)
	go func() {
		<-timer.C()
		one.tick()
	}()
}

// tick wakes one pod as the probe, or all when the circuit has closed. A probe that was deleted meanwhile never calls,
// so the next tick takes another.
func (one *breaker) tick() {
	one.mu.Lock()
	one.armed = false
	wake := map[string]*corev1.Pod{}
	switch one.circuit.State() {
	case gobreaker.StateOpen: // it opened again after the timer was started
		one.arm(one.owner.args.Pause.Duration / 8)
	case gobreaker.StateHalfOpen:
		for uid, pod := range one.waiting {
			wake[pod.Namespace+"/"+pod.Name] = pod
			delete(one.waiting, uid)
			one.probe = uid
			break
		}
		if len(one.waiting) > 0 {
			one.arm(one.owner.args.Pause.Duration)
		}
	case gobreaker.StateClosed:
		for _, pod := range one.waiting {
			wake[pod.Namespace+"/"+pod.Name] = pod
		}
		clear(one.waiting)
	}
	one.mu.Unlock()
	if len(wake) > 0 {
		one.owner.activate(wake)
	}
}

// changed is called by the circuit with its lock held.
func (one *breaker) changed(from, to gobreaker.State) {
	gauge := sharedMetrics().breakers.WithLabelValues(one.scope)
	switch {
	case from == gobreaker.StateClosed:
		gauge.Inc()
	case to == gobreaker.StateClosed:
		gauge.Dec()
		go one.tick()
	}
}
