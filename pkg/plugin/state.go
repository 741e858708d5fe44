package plugin

import (
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const stateKey fwk.StateKey = Name

// cycle is what PreFilter found out about a pod that is ours, and what PreBind got for it. Its presence in the cycle
// state means: ours.
type cycle struct {
	assignment rdma.Assignment
	// needs is the assignment by pool. Filter and Score read it for every node.
	needs []need
	// narrowedTo is how many candidates PreFilter named; 0 means that all nodes are looked at.
	narrowedTo int
	// shortage is the last text that Filter made: most nodes of a cluster lack the same.
	shortage atomic.Pointer[shortage]
	// ensured is made by PreBind for Bind, which follows it in the same goroutine.
	ensured ensured
}

// need is what a pod takes from one pool.
type need struct {
	pool  corev1.ResourceName
	count int64
}

func newCycle(assignment rdma.Assignment) *cycle {
	c := &cycle{assignment: assignment}
	for _, pool := range assignment.Pools() {
		c.needs = append(c.needs, need{pool: pool, count: assignment.Total(pool)})
	}
	return c
}

// ensured is the annotation for a pod on one node.
type ensured struct {
	node     string
	networks string
	// asked is when the tenant-controller was asked; zero means that PreBind did not run.
	asked time.Time
}

// Clone implements fwk.StateData. The assignment never changes and depends on no node, so the simulations of preemption
// share it.
func (c *cycle) Clone() fwk.StateData {
	return &cycle{assignment: c.assignment, needs: c.needs, narrowedTo: c.narrowedTo}
}

// readCycle returns nil without error for a pod whose PreFilter decided that it is not ours, or never ran.
func readCycle(state fwk.CycleState) (*cycle, error) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, nil //nolint:nilerr // the only error is that the key is missing
	}
	c, ok := data.(*cycle)
	if !ok {
		return nil, fmt.Errorf("cycle state %s has type %T", stateKey, data)
	}
	return c, nil
}
