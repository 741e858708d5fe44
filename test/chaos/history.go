package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// kind is what happened.
type kind string

const (
	podCreated     kind = "created"     // the pod's devices and the number of its own networks are known
	podBound       kind = "bound"       // it has a node, and uses its networks from here on
	podDeleting    kind = "deleting"    // its deletion began
	podTerminal    kind = "terminal"    // its devices are free
	podStopped     kind = "stopped"     // terminal, and its sandbox is gone: its networks are free
	podRemoved     kind = "removed"     // the object is gone
	nodeRemoved    kind = "node gone"   // the node object is gone
	nodeOffers     kind = "node offers" // a node's allocatable devices
	ensured        kind = "ensured"     // the tenant-controller has made sure of networks
	released       kind = "released"    // the tenant-controller has given networks back
	networkMade    kind = "network made"
	networkDeleted kind = "network deleted"
	blind          kind = "blind"      // the scheduler could not see what happened, from From to To
	sighted        kind = "sighted"    // the scheduler watches nodes again
	unlabelled     kind = "unlabelled" // the namespace may have been without its label from From to To
	note           kind = "note"       // for people
)

// Where an event was read. The API server's audit log and the driver's own watch see the same things; where an API
// server was killed between the write and the log line, only the watch does. A write whose answer was an error may have
// been made all the same; then the object itself tells in a later write's answer, dated by its own timestamps.
const (
	fromAudit  = "audit"
	fromObject = "object"
	fromMock   = "mock"
	fromWatch  = "watch"
	fromDriver = "driver"
)

// event is one line of the history. It happened at some moment from From to To.
type event struct {
	Kind     kind
	Source   string
	From, To time.Time
	UID      string
	Pod      string // namespace/name
	Node     string
	// Networks of a binding are all that the annotation names, of an ensure or release those handed out.
	Networks []string
	// Pools of an ensure are the pools of its networks.
	Pools []string
	// Devices of a pod are its requests, of a node its allocatable.
	Devices map[string]int64
	// Wants says that the pod asks for devices, Ours that it went through admission. Own is the number of networks that
	// its user named.
	Wants, Ours bool
	Own         int
	// Fault is the rule of the mock's that was applied.
	Fault string
	Text  string
}

func (e event) String() string {
	parts := []string{e.From.UTC().Format("15:04:05.000"), fmt.Sprintf("%-6s", e.Source), string(e.Kind), e.Pod}
	if e.Node != "" {
		parts = append(parts, "node="+e.Node)
	}
	if len(e.Devices) > 0 {
		parts = append(parts, fmt.Sprint(e.Devices))
	}
	if len(e.Networks) > 0 {
		parts = append(parts, strings.Join(e.Networks, ","))
	}
	return strings.Join(append(parts, e.Text), " ")
}

// journal collects events while the run goes on. Its zero value is ready.
type journal struct {
	mu     sync.Mutex
	events []event
}

func (j *journal) add(events ...event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, events...)
}

func (j *journal) all() []event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}
