package engine

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// key is an allocation's identity.
type key struct {
	cluster string
	podUID  types.UID
}

// entry is never changed once it is in the map, only replaced, so readers need no more than mu.
type entry struct {
	allocation tenant.Allocation
	ensured    time.Time
	// made says that the networks exist as the allocation has them. An entry is recorded before, so that a creation
	// that fails halfway is seen by the sweep and cleaned by a release.
	made bool
	// handedOut says that all networks existed once: only then are they shown.
	handedOut bool
}

func (k key) String() string { return fmt.Sprintf("%s/%s", k.cluster, k.podUID) }

func (e *Engine) get(k key) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.allocations[k]
}

func (e *Engine) put(k key, entry *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allocations[k] = entry
}

func (e *Engine) remove(k key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.allocations, k)
}

// grow returns the next generation. One count for all pods cannot start again for a UID that comes back.
func (e *Engine) grow() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.generation++
	return e.generation
}
