package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// probe takes the time at which the first and the last of the pods to be measured were bound. The suite's own collector
// looks once a second, which is too coarse for a run of some seconds. Both profiles have the probe.
type probe struct {
	placed, pods int

	mu          sync.Mutex
	bound       int
	first, last time.Time
}

var _ fwk.PostBindPlugin = &probe{}

func (p *probe) newPlugin(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return p, nil
}

// Name implements fwk.Plugin.
func (p *probe) Name() string { return probeName }

// PostBind implements fwk.PostBindPlugin.
func (p *probe) PostBind(context.Context, fwk.CycleState, *corev1.Pod, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound++
	switch p.bound {
	case p.placed + 1:
		p.first = time.Now()
	case p.placed + p.pods:
		p.last = time.Now()
	}
}

// String tells how many pods were bound a second, from the first to the last of those to be measured.
func (p *probe) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.IsZero() || p.pods < 2 {
		return fmt.Sprintf("probe: %d pods were bound, %d and %d were expected", p.bound, p.placed, p.pods)
	}
	return fmt.Sprintf("probe: throughput=%.2f", float64(p.pods-1)/p.last.Sub(p.first).Seconds())
}
