package plugin

import (
	"context"
	"errors"
	"fmt"
)

// turn is a pod's permission to ask the tenant-controller: the breakers', and a place among the pods that are asked for at
// the same time.
type turn struct {
	tenant string
	// done takes the result of the next call; nil if that has been made.
	done  func(error)
	leave func()
}

// takeTurn waits, first for the breakers and then for a place. Were it the other way round, a gang that waits for its first
// pod's verdict could have all places, and other tenants' pods would wait with it.
func (p *TenantNetwork) takeTurn(ctx context.Context, namespace string) (*turn, error) {
	bounded, cancel := context.WithTimeout(ctx, p.args.PreBindTimeout.Duration)
	defer cancel()
	tenantName, err := p.ownerOf(bounded, namespace)
	if err != nil {
		return nil, err
	}
	closed := p.breakers.closed(tenantName)
	done, err := p.breakers.allow(bounded, tenantName)
	if err != nil {
		return nil, err
	}
	// First come, first served, and without a time limit: of a thousand pods that ask at once each would be so slow that
	// none got its networks.
	if err := p.asking.Acquire(ctx, 1); err != nil {
		done(errNoVerdict)
		return nil, fmt.Errorf("waiting to ask the tenant-controller: %w", err)
	}
	t := &turn{tenant: tenantName, done: done, leave: func() { p.asking.Release(1) }}
	if closed && !p.breakers.closed(tenantName) {
		t.end()
		return nil, errors.New("the tenant-controller became sick while the pod waited to ask it")
	}
	return t, nil
}

// end gives the place up, and a permission that was not used.
func (t *turn) end() {
	if t.done != nil {
		t.done(errNoVerdict)
		t.done = nil
	}
	t.leave()
}
