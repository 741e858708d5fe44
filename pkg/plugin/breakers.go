package plugin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// breakers keep pods from being placed while the tenant-controller does not serve them: one breaker for each tenant,
// which any refusal counts against, and one for all, which only silence counts against. While one is open its pods wait
// in the scheduling queue. After a pause it is half open: all that wait are tried, and the first that has a node is the
// probe. Not before it has one: most of those that wait may fit nowhere, and would say nothing about the
// tenant-controller. Its call decides whether the breaker closes, which wakes all, or opens again.
type breakers struct {
	args  BreakerArgs
	clock clock.Clock
	// waits reports whether a pod still wants to be scheduled.
	waits    func(*corev1.Pod) bool
	activate func(map[string]*corev1.Pod)
	all      *breaker
	mu       sync.Mutex
	byTenant map[string]*use // guarded by mu
}

// use is a tenant's breaker, and what tells when it is not needed any more.
type use struct {
	*breaker
	last  time.Time
	calls int // under way
}

// idlePauses is after how many pauses without a pod a tenant's breaker is forgotten: its namespace may be gone.
const idlePauses = 10

func newBreakers(args BreakerArgs, c clock.Clock, waits func(*corev1.Pod) bool, activate func(map[string]*corev1.Pod)) *breakers {
	b := &breakers{args: args, clock: c, waits: waits, activate: activate, byTenant: map[string]*use{}}
	b.all = newBreaker(b, scopeAll, "")
	return b
}

// of returns the breakers that a tenant's pods go by.
func (b *breakers) of(tenantName string) []*breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []*breaker{b.all, b.used(tenantName).breaker}
}

// used is called with mu held.
func (b *breakers) used(tenantName string) *use {
	one, ok := b.byTenant[tenantName]
	if !ok {
		b.forgetIdle()
		one = &use{breaker: newBreaker(b, scopeTenant, tenantName)}
		b.byTenant[tenantName] = one
	}
	one.last = b.clock.Now()
	return one
}

// forgetIdle is called with mu held.
func (b *breakers) forgetIdle() {
	for name, one := range b.byTenant {
		if one.calls == 0 && b.clock.Since(one.last) >= idlePauses*b.args.Pause.Duration && !one.hasWaiting() {
			delete(b.byTenant, name)
			one.discard()
		}
	}
}

// forget looks for breakers that nobody needs, and reports whether this one still is.
func (b *breakers) forget(one *breaker) (forgotten bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetIdle()
	current, ok := b.byTenant[one.tenant]
	return !ok || current.breaker != one
}

// blocked returns why the pod has to wait, or nothing. A pod that waits is remembered and woken later.
func (b *breakers) blocked(tenantName, claimant string, pod *corev1.Pod) string {
	for _, one := range b.of(tenantName) {
		if reason := one.blocked(claimant, pod); reason != "" {
			return reason
		}
	}
	return ""
}

// closed reports whether nothing keeps a tenant's pods waiting.
func (b *breakers) closed(tenantName string) bool {
	return !slices.ContainsFunc(b.of(tenantName), func(one *breaker) bool { return one.circuit.State() != gobreaker.StateClosed })
}

// mayPreempt returns why no other pod is to be evicted for this one, or nothing: while it is not known whether the
// tenant-controller serves again, one pod a pause may have others evicted.
func (b *breakers) mayPreempt(tenantName string, pod *corev1.Pod) string {
	both := b.of(tenantName)
	for _, one := range both {
		if reason := one.mayPreempt(pod); reason != "" {
			return reason
		}
	}
	for _, one := range both {
		one.preempts()
	}
	return ""
}

// claim makes a pod that has a node the probe, where there is to be one.
func (b *breakers) claim(tenantName, claimant string) {
	for _, one := range b.of(tenantName) {
		one.claim(claimant)
	}
}

// yield ends a claim, if there is one.
func (b *breakers) yield(tenantName, claimant string) {
	for _, one := range b.of(tenantName) {
		one.yield(claimant)
	}
}

// errNoVerdict is the result of a call that says nothing about the tenant-controller's health.
var errNoVerdict = errors.New("no verdict")

// allow asks both circuits for one call. While a probe is out others wait for its verdict, those of its own gang above
// all. The function that it returns must be called with the call's result.
func (b *breakers) allow(ctx context.Context, tenantName string) (func(error), error) {
	b.mu.Lock()
	one := b.used(tenantName)
	one.calls++
	b.mu.Unlock()
	end := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		one.calls--
		one.last = b.clock.Now()
	}
	doneAll, err := b.all.allow(ctx)
	if err != nil {
		end()
		return nil, err
	}
	doneTenant, err := one.allow(ctx)
	if err != nil {
		doneAll(errNoVerdict)
		end()
		return nil, err
	}
	return func(err error) {
		doneAll(verdictOfAll(err))
		doneTenant(verdictOfTenant(err))
		end()
	}, nil
}

// verdictOfAll is what a call's result says about whether the tenant-controller is there.
func verdictOfAll(err error) error {
	switch {
	case tenant.IsUnavailable(err):
		return err
	case tenant.IsFinal(err):
		return answered(err)
	case err == nil || tenant.IsConflict(err):
		return nil
	default: // the call was cancelled from this side
		return errNoVerdict
	}
}

// verdictOfTenant is what it says about whether the tenant is served.
func verdictOfTenant(err error) error {
	switch {
	case tenant.IsUnavailable(err):
		return err
	case tenant.IsFinal(err) && !aboutThePod(err):
		return err
	case err == nil || tenant.IsConflict(err):
		return nil
	default:
		return errNoVerdict
	}
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

func (b *breakers) settings(one *breaker) gobreaker.Settings {
	return gobreaker.Settings{
		Name:          one.scope + " " + one.tenant,
		MaxRequests:   1,
		Timeout:       b.args.Pause.Duration,
		ReadyToTrip:   func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= b.args.Failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoVerdict) },
		OnStateChange: func(_ string, from, to gobreaker.State) { one.changed(from, to) },
	}
}
