package pools

import (
	"maps"

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
	for _, n := range l.nodes {
		if n.object != nil {
			fresh.setNode(n.object)
		}
	}
	for _, charge := range l.pods {
		fresh.setPod(charge)
	}
	reserved := Counts{}
	for _, r := range l.byID {
		reserved.add(r.devices, 1)
	}
	wrong := differing(l.totals.allocatable, fresh.totals.allocatable) +
		differing(l.totals.requested, fresh.totals.requested) +
		differing(l.totals.releasing, fresh.totals.releasing) +
		differing(l.totals.unbound, fresh.totals.unbound) +
		differing(l.totals.gated, fresh.totals.gated) +
		differing(l.reserved, reserved)
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
	if wrong > 0 {
		l.nodes, l.offering, l.totals, l.reserved = fresh.nodes, fresh.offering, fresh.totals, reserved
	}
	return wrong
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
	shown := make(map[types.UID]struct{}, len(charges))
	for _, charge := range charges {
		shown[charge.UID] = struct{}{}
		if has, ok := l.pods[charge.UID]; !ok || !has.equal(charge) {
			found[charge.UID] = charge
		}
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
