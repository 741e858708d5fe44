package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Fault is a rule for misbehaving. Of the rules that match a request the first that is not used up applies, alone.
type Fault struct {
	// Operation is ensure, release, get, list or healthy; empty matches all of them.
	Operation string `json:"operation,omitempty"`
	// Tenant matches the ensure's tenant, or that of the allocation that the request is about; empty matches all.
	Tenant string `json:"tenant,omitempty"`
	// Times is how often the rule applies; 0 is always.
	Times int `json:"times,omitempty"`

	// Hold blocks the request until the rules are replaced or the caller goes; then the rest of the rule applies.
	Hold bool `json:"hold,omitempty"`
	// LatencyMillis delays the request before anything is done.
	LatencyMillis int `json:"latencyMillis,omitempty"`
	// DropRequest cuts the connection without acting.
	DropRequest bool `json:"dropRequest,omitempty"`
	// Status is answered without acting, with a Retry-After header if RetryAfterSeconds is not 0.
	Status            int `json:"status,omitempty"`
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
	// DropReply acts, then cuts the connection.
	DropReply bool `json:"dropReply,omitempty"`
	// Body acts, then spoils the answer: garbage (no JSON) or half (broken off in the middle).
	Body string `json:"body,omitempty"`
	// Networks acts, then falsifies the networks of the answer, not those of the allocation: +1, -1, duplicate,
	// foreign (another pod's), wrongPool or wrongNamespace.
	Networks string `json:"networks,omitempty"`
}

var (
	operations = []string{"", opEnsure, opRelease, opGet, opList, opHealthy}
	bodies     = []string{"", "garbage", "half"}
	networks   = []string{"", "+1", "-1", "duplicate", "foreign", "wrongPool", "wrongNamespace"}
)

// validate names the field that is wrong. A rule that does nothing is wrong too: it was meant to do something.
func (f *Fault) validate() error {
	switch {
	case !slices.Contains(operations, f.Operation):
		return fmt.Errorf("operation: one of %q, not %q", operations, f.Operation)
	case !slices.Contains(bodies, f.Body):
		return fmt.Errorf("body: one of %q, not %q", bodies, f.Body)
	case !slices.Contains(networks, f.Networks):
		return fmt.Errorf("networks: one of %q, not %q", networks, f.Networks)
	case f.Times < 0:
		return fmt.Errorf("times: must not be negative, is %d", f.Times)
	case f.LatencyMillis < 0:
		return fmt.Errorf("latencyMillis: must not be negative, is %d", f.LatencyMillis)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("status: from 200 to 599, is %d", f.Status)
	case f.RetryAfterSeconds < 0 || f.RetryAfterSeconds > 0 && f.Status == 0:
		return errors.New("retryAfterSeconds: only with a status, and not negative")
	}
	return f.validateEffect()
}

func (f *Fault) validateEffect() error {
	switch {
	case f.outcomes() > 1:
		return errors.New("only one of dropRequest, status, dropReply, body and networks can be had")
	case f.outcomes() == 0 && !f.Hold && f.LatencyMillis == 0:
		return errors.New("the rule does nothing")
	}
	return nil
}

func (f *Fault) outcomes() int {
	n := 0
	for _, asked := range []bool{f.DropRequest, f.Status != 0, f.DropReply, f.Body != "", f.Networks != ""} {
		if asked {
			n++
		}
	}
	return n
}

// faults is the present list of rules.
type faults struct {
	mu       sync.Mutex
	rules    []Fault
	used     []int
	replaced chan struct{} // closed when the rules are replaced; nil until somebody waits
}

// SetFaults replaces all rules and lets go of what the old ones held.
func (e *Engine) SetFaults(rules []Fault) error {
	for i := range rules {
		if err := rules[i].validate(); err != nil {
			return malformed("[%d].%v", i, err)
		}
	}
	f := &e.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.used = slices.Clone(rules), make([]int, len(rules))
	if f.replaced != nil {
		close(f.replaced)
		f.replaced = nil
	}
	return nil
}

// Faults returns the rules that can still apply, with the times that are left to them.
func (e *Engine) Faults() []Fault {
	f := &e.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	left := []Fault{}
	for i, rule := range f.rules {
		if rule.Times == 0 {
			left = append(left, rule)
		} else if rule.Times > f.used[i] {
			rule.Times -= f.used[i]
			left = append(left, rule)
		}
	}
	return left
}

// take returns the rule for a request, counted as used, and what tells that the rules were replaced.
func (f *faults) take(operation, tenant string) (*Fault, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, rule := range f.rules {
		if rule.Operation != "" && rule.Operation != operation ||
			rule.Tenant != "" && rule.Tenant != tenant ||
			rule.Times != 0 && f.used[i] >= rule.Times {
			continue
		}
		f.used[i]++
		if f.replaced == nil {
			f.replaced = make(chan struct{})
		}
		return &rule, f.replaced
	}
	return nil, nil
}
