package plugin

import (
	"errors"
	"fmt"
	"maps"
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
	args  BreakerArgs
	clock clock.Clock
	// waits reports whether a pod still wants to be scheduled: one that was deleted is no probe.
	waits    func(*corev1.Pod) bool
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
	// probe is the one pod that passes while the circuit is half open, and chosen is since when.
	probe   podUID
	chosen  time.Time
	armed   bool
	lastErr string
}

func newBreakers(args BreakerArgs, c clock.Clock, waits func(*corev1.Pod) bool, activate func(map[string]*corev1.Pod)) *breakers {
	b := &breakers{args: args, clock: c, waits: waits, activate: activate, byTenant: map[string]*breaker{}}
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
	reason, probing := b.all.blocked(pod, false)
	if reason == "" {
		// Silence opens both breakers. The probe of the one for all is its tenant's too: if each chose a pod of its own,
		// each would block the other's.
		reason, _ = b.of(tenantName).blocked(pod, probing)
	}
	return reason
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
			doneAll(answered(err))
			if aboutThePod(err) {
				doneTenant(errNoVerdict)
				return
			}
			one.failed(err)
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

// answered tells a refusal by the tenant-controller, which shows that it is there, from one by the client, which sent
// nothing.
func answered(err error) error {
	var refusal *tenant.Error
	if errors.As(err, &refusal) && refusal.Status == 0 {
		return errNoVerdict
	}
	return nil
}

// aboutThePod tells a refusal of this one ask from one of its tenant: other pods of the tenant may fare better.
func aboutThePod(err error) bool {
	var refusal *tenant.Error
	return errors.As(err, &refusal) && (refusal.Reason == tenant.ReasonPodChanged || refusal.Reason == tenant.ReasonInvalid)
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

// blocked returns why the pod has to wait for this breaker. Once the pause is over one pod passes as the probe, which is
// the second result. A preferred pod becomes the probe whoever was it before.
func (one *breaker) blocked(pod *corev1.Pod, preferred bool) (string, bool) {
	one.mu.Lock()
	defer one.mu.Unlock()
	switch one.circuit.State() {
	case gobreaker.StateClosed:
		return "", false
	case gobreaker.StateHalfOpen:
		if preferred || one.probe == pod.UID || one.owner.clock.Since(one.chosen) >= one.owner.args.Pause.Duration {
			one.choose(pod.UID)
			return "", true
		}
	case gobreaker.StateOpen:
	}
	one.waiting[pod.UID] = pod
	one.arm(one.owner.args.Pause.Duration)
	return one.reasonLocked(), false
}

// choose makes the pod the probe. A probe that is not heard of for a pause, because it was deleted or fits no node,
// loses its place to another.
func (one *breaker) choose(uid podUID) {
	if one.probe != uid {
		one.probe, one.chosen = uid, one.owner.clock.Now()
	}
	delete(one.waiting, uid)
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

// tick wakes one pod as the probe, or all when the circuit has closed.
func (one *breaker) tick() {
	one.mu.Lock()
	one.armed = false
	wake := map[string]*corev1.Pod{}
	maps.DeleteFunc(one.waiting, func(_ podUID, pod *corev1.Pod) bool { return !one.owner.waits(pod) })
	switch one.circuit.State() {
	case gobreaker.StateOpen: // it opened again after the timer was started
		one.arm(one.owner.args.Pause.Duration / 8)
	case gobreaker.StateHalfOpen:
		for uid, pod := range one.waiting {
			wake[pod.Namespace+"/"+pod.Name] = pod
			one.choose(uid)
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
