package pools

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ledger knows how many devices of every extended resource the nodes have and the pods hold. It is kept up to date
// event by event and is safe for concurrent use.
//
// Invariants, which Recount checks: a node's requested and releasing are the sums over the charges bound to it; totals
// are the sums over the eligible nodes, and over the unbound charges; reserved is the sum over the reservations; a pool's
// capacities are those of the nodes that it lists.
type Ledger struct {
	mu    sync.Mutex
	now   func() time.Time
	nodes map[string]*nodeState
	pods  map[types.UID]Charge
	// offering lists the nodes that offer each pool.
	offering map[corev1.ResourceName]*offers
	totals   totals
	reservations
	groups map[Group]map[string]member
	// admitted holds the admission ids of the pods that the informer shows.
	admitted map[string]types.UID
	suspects suspects
}

// totals are cluster-wide sums. The first three are over eligible nodes.
type totals struct {
	allocatable, requested, releasing Counts
	// unbound are pods without a node that are not being deleted, gated the part of them that gates hold back.
	unbound, gated unplaced
}

func newTotals() totals {
	return totals{allocatable: Counts{}, requested: Counts{}, releasing: Counts{}, unbound: unplaced{}, gated: unplaced{}}
}

// nodeState is one node, or the charges bound to a node that is not known (yet, or any more).
type nodeState struct {
	object   *corev1.Node
	eligible bool
	// allocatable is what the node offers now. capacity never falls below it and stays when a device plugin goes away.
	allocatable, capacity Counts
	requested, releasing  Counts
}

// free is what can be used now: allocatable − requested − releasing, at least 0 (a device plugin that restarts
// reports fewer devices than its pods hold).
func (n *nodeState) free(pool corev1.ResourceName, withReleasing bool) int64 {
	free := n.allocatable[pool] - n.requested[pool]
	if !withReleasing {
		free -= n.releasing[pool]
	}
	return max(free, 0)
}

// NewLedger returns an empty ledger. now is the clock for reservations; nil means time.Now.
func NewLedger(now func() time.Time) *Ledger {
	if now == nil {
		now = time.Now
	}
	return &Ledger{
		now:          now,
		nodes:        map[string]*nodeState{},
		pods:         map[types.UID]Charge{},
		offering:     map[corev1.ResourceName]*offers{},
		totals:       newTotals(),
		reservations: newReservations(),
		groups:       map[Group]map[string]member{},
		admitted:     map[string]types.UID{},
	}
}

// SetNode adds or updates a node. The object must not be changed afterwards.
func (l *Ledger) SetNode(object *corev1.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setNode(object)
}

func (l *Ledger) setNode(object *corev1.Node) {
	n := l.node(object.Name)
	l.addNodeTotals(n, -1)
	l.unlist(n)
	n.object = object
	n.eligible = Eligible(object)
	n.allocatable = devices(object.Status.Allocatable)
	n.capacity = devices(object.Status.Capacity)
	for pool, count := range n.allocatable {
		if n.capacity[pool] < count {
			if n.capacity == nil {
				n.capacity = Counts{}
			}
			n.capacity[pool] = count
		}
	}
	l.list(n)
	l.addNodeTotals(n, 1)
}

// DeleteNode forgets a node. Charges bound to it stay until their pods go, and count for nothing meanwhile.
func (l *Ledger) DeleteNode(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleteNode(name)
}

func (l *Ledger) deleteNode(name string) {
	n, ok := l.nodes[name]
	if !ok {
		return
	}
	l.addNodeTotals(n, -1)
	l.unlist(n)
	n.object, n.eligible, n.allocatable, n.capacity = nil, false, nil, nil
	l.dropIfEmpty(name)
}

// SetPod adds or replaces the charge of a pod. A reservation made for the pod's admission ends with it.
func (l *Ledger) SetPod(charge Charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setPod(charge)
}

func (l *Ledger) setPod(charge Charge) {
	if has, ok := l.pods[charge.UID]; ok {
		if has.equal(charge) { // most updates of a pod change nothing here
			return
		}
		l.deletePod(charge.UID)
	}
	l.pods[charge.UID] = charge
	l.addCharge(charge, 1)
	l.joinGroup(charge.Group, string(charge.UID), charge.Assignment, charge.Deleting)
	if charge.AdmissionID != "" {
		l.admitted[charge.AdmissionID] = charge.UID
		l.endReservation(charge.AdmissionID)
	}
}

// Regroup takes over the group of a charge that was decoded anew after the configuration changed. Everything else stays
// as the pod's events left it: the charge comes from a store that may be older or newer than those, and must not bring
// back a pod that is gone.
func (l *Ledger) Regroup(charge Charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.pods[charge.UID]
	known.Group = charge.Group
	if ok && known.equal(charge) {
		l.setPod(charge)
	}
}

// DeletePod forgets a pod that is terminal or gone.
func (l *Ledger) DeletePod(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deletePod(uid)
}

func (l *Ledger) deletePod(uid types.UID) {
	charge, ok := l.pods[uid]
	if !ok {
		return
	}
	delete(l.pods, uid)
	l.addCharge(charge, -1)
	l.leaveGroup(charge.Group, string(uid))
	if l.admitted[charge.AdmissionID] == uid {
		delete(l.admitted, charge.AdmissionID)
	}
}

func (l *Ledger) addCharge(charge Charge, sign int64) {
	if charge.Node == "" {
		if !charge.Deleting { // an unbound pod that is being deleted can never be bound any more
			l.totals.unbound.add(charge.Devices, sign)
			if charge.Gated {
				l.totals.gated.add(charge.Devices, sign)
			}
		}
		return
	}
	n := l.node(charge.Node)
	held, total := n.requested, l.totals.requested
	if charge.Deleting {
		held, total = n.releasing, l.totals.releasing
	}
	held.add(charge.Devices, sign)
	if n.eligible {
		total.add(charge.Devices, sign)
	}
	for pool := range charge.Devices {
		l.offer(n, pool)
	}
	l.dropIfEmpty(charge.Node)
}

func (l *Ledger) node(name string) *nodeState {
	n, ok := l.nodes[name]
	if !ok {
		n = &nodeState{requested: Counts{}, releasing: Counts{}}
		l.nodes[name] = n
	}
	return n
}

func (l *Ledger) dropIfEmpty(name string) {
	if n := l.nodes[name]; n != nil && n.object == nil && len(n.requested) == 0 && len(n.releasing) == 0 {
		delete(l.nodes, name)
	}
}

func (l *Ledger) addNodeTotals(n *nodeState, sign int64) {
	if n.eligible {
		l.totals.allocatable.add(n.allocatable, sign)
		l.totals.requested.add(n.requested, sign)
		l.totals.releasing.add(n.releasing, sign)
	}
}

func (l *Ledger) list(n *nodeState) {
	for pool, capacity := range n.capacity {
		o := l.offering[pool]
		if o == nil {
			o = &offers{at: map[*nodeState]int{}}
			l.offering[pool] = o
		}
		o.set(n.offer(pool))
		o.capacities = o.capacities.add(capacity, 1)
	}
}

func (l *Ledger) unlist(n *nodeState) {
	for pool, capacity := range n.capacity {
		o := l.offering[pool]
		o.remove(n)
		o.capacities = o.capacities.add(capacity, -1)
		if len(o.list) == 0 {
			delete(l.offering, pool)
		}
	}
}

// offer brings a node's offer of one pool up to date, if the node has the pool.
func (l *Ledger) offer(n *nodeState, pool corev1.ResourceName) {
	if n.capacity[pool] > 0 {
		l.offering[pool].set(n.offer(pool))
	}
}

func (n *nodeState) offer(pool corev1.ResourceName) offer {
	if !n.eligible {
		return offer{node: n}
	}
	return offer{node: n, free: n.free(pool, false), eventually: n.free(pool, true)}
}

// Eligible reports whether new pods may be placed on the node: it is Ready and not cordoned.
func Eligible(node *corev1.Node) bool {
	if node.Spec.Unschedulable {
		return false
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status == corev1.ConditionTrue
}

// compareNames orders resource names.
func compareNames(a, b corev1.ResourceName) int { return strings.Compare(string(a), string(b)) }
