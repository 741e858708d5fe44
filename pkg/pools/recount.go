package pools

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Drift says where the incremental state differed from a recount. Both figures should stay 0.
type Drift struct {
	// Sums is the number of per-node and cluster-wide sums that did not follow from the ledger's own charges: a fault
	// in the arithmetic.
	Sums int
	// Missed is the number of pods and nodes whose last event never arrived.
	Missed int
}

// suspects are differences seen once. An informer's store runs ahead of its handlers, so a difference is believed only
// when the next recount sees the same one.
type suspects struct {
	// pods holds the charge that the store showed, the zero Charge for a pod that it no longer showed.
	pods map[types.UID]Charge
	// nodes holds the resource version that the store showed, empty for a node that it no longer showed.
	nodes map[string]string
}

// Recount compares the ledger with everything that the informers' stores show, mends what differs, and returns what it
// had to mend. Differences between store and ledger are mended when they were there at the recount before, too.
func (l *Ledger) Recount(nodes []*corev1.Node, charges []Charge) Drift {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	return Drift{Sums: l.recountSums(), Missed: l.recountObjects(nodes, charges)}
}

// recountSums computes all sums anew from the ledger's own nodes and charges.
func (l *Ledger) recountSums() int {
	fresh := NewLedger(l.now)
	for _, charge := range l.pods {
		fresh.addCharge(charge, 1)
	}
	for _, n := range l.nodes { // after the charges, so that each node's sums are taken over once
		if n.object != nil {
			fresh.setNode(n.object)
		}
	}
	reserved := unplaced{}
	for _, r := range l.byID {
		reserved.add(r.devices, 1)
	}
	wrong := differing(l.totals.allocatable, fresh.totals.allocatable) +
		differing(l.totals.requested, fresh.totals.requested) +
		differing(l.totals.releasing, fresh.totals.releasing) +
		l.totals.unbound.differing(fresh.totals.unbound) +
		l.totals.gated.differing(fresh.totals.gated) +
		l.reserved.differing(reserved)
	for name, n := range fresh.nodes {
		had, ok := l.nodes[name]
		if !ok {
			wrong++
			continue
		}
		wrong += differing(had.requested, n.requested) + differing(had.releasing, n.releasing)
	}
	for name := range l.nodes {
		if _, ok := fresh.nodes[name]; !ok {
			wrong++
		}
	}
	wrong += l.wrongOffers(fresh)
	if wrong > 0 {
		l.nodes, l.offering, l.totals, l.reserved = fresh.nodes, fresh.offering, fresh.totals, reserved
	}
	return wrong
}

// wrongOffers counts the offers that are not as in a fresh ledger, or stand in the wrong part of their list, and the pools
// whose capacities are not.
func (l *Ledger) wrongOffers(fresh *Ledger) int {
	wrong := 0
	for pool, want := range fresh.offering {
		has := l.offering[pool]
		if has == nil {
			wrong += len(want.list)
			continue
		}
		wrong += max(0, len(has.list)-len(want.list))
		if !slices.Equal(has.capacities, want.capacities) {
			wrong++
		}
		for _, e := range want.list {
			i, ok := has.at[l.nodes[e.node.object.Name]]
			if !ok || has.list[i].free != e.free || has.list[i].eventually != e.eventually || (e.eventually > 0) != (i < has.open) {
				wrong++
			}
		}
	}
	return wrong + max(0, len(l.offering)-len(fresh.offering))
}

func (l *Ledger) recountObjects(nodes []*corev1.Node, charges []Charge) int {
	seen := suspects{pods: l.differingPods(charges), nodes: l.differingNodes(nodes)}
	missed := 0
	for uid, charge := range seen.pods {
		if before, ok := l.suspects.pods[uid]; !ok || !before.equal(charge) {
			continue
		}
		missed++
		delete(seen.pods, uid)
		if charge.UID == "" {
			l.deletePod(uid)
		} else {
			l.setPod(charge)
		}
	}
	byName := make(map[string]*corev1.Node, len(seen.nodes))
	for _, object := range nodes {
		byName[object.Name] = object
	}
	for name, version := range seen.nodes {
		if before, ok := l.suspects.nodes[name]; !ok || before != version {
			continue
		}
		missed++
		delete(seen.nodes, name)
		if object := byName[name]; object != nil {
			l.setNode(object)
		} else {
			l.deleteNode(name)
		}
	}
	l.suspects = seen
	return missed
}

func (l *Ledger) differingPods(charges []Charge) map[types.UID]Charge {
	found := map[types.UID]Charge{}
	for _, charge := range charges {
		if has, ok := l.pods[charge.UID]; !ok || !has.equal(charge) {
			found[charge.UID] = charge
		}
	}
	if len(found) == 0 && len(charges) == len(l.pods) {
		return found // the usual case
	}
	shown := make(map[types.UID]struct{}, len(charges))
	for _, charge := range charges {
		shown[charge.UID] = struct{}{}
	}
	for uid := range l.pods {
		if _, ok := shown[uid]; !ok {
			found[uid] = Charge{}
		}
	}
	return found
}

func (l *Ledger) differingNodes(nodes []*corev1.Node) map[string]string {
	found := map[string]string{}
	shown := make(map[string]struct{}, len(nodes))
	for _, object := range nodes {
		shown[object.Name] = struct{}{}
		if n := l.nodes[object.Name]; n == nil || n.object == nil || n.object.ResourceVersion != object.ResourceVersion {
			found[object.Name] = object.ResourceVersion
		}
	}
	for name, n := range l.nodes {
		if _, ok := shown[name]; !ok && n.object != nil {
			found[name] = ""
		}
	}
	return found
}

// differing counts the entries in which two counts differ.
func differing(a, b Counts) int {
	if maps.Equal(a, b) {
		return 0
	}
	n := 0
	for name, count := range a {
		if b[name] != count {
			n++
		}
	}
	for name, count := range b {
		if _, ok := a[name]; !ok && count != 0 {
			n++
		}
	}
	return n
}
