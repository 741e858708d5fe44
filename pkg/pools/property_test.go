package pools

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	shared   = corev1.ResourceName("rdma/shared")
	simPools = "a.com/first type=vf\nb.com/second type=vf\nc.com/phys type=pf\nrdma/shared"
	gang     = "gang"
)

var simNames = []corev1.ResourceName{first, second, phys, shared, gpu}

// simReservation is an admission whose pod has not appeared.
type simReservation struct {
	entry   rdma.Entry
	group   string
	name    string
	expires time.Time
}

// sim is a small cluster whose every event goes to a ledger, as package feed would bring it. Its own arithmetic starts
// from nothing each time, and from the objects.
type sim struct {
	ledger   *Ledger
	cfg      *Config
	now      time.Time
	nodes    map[string]*corev1.Node
	pods     map[string]*corev1.Pod
	reserved map[string]simReservation
	sequence int
}

func newSim(t *rapid.T) *sim {
	s := &sim{now: time.Unix(1000, 0), nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, reserved: map[string]simReservation{}}
	s.cfg = mustConfig(simPools, fmt.Sprintf("groupKeys: [{label: %s}]\nwhenFull: %s\ngatedPods: %s", gang,
		rapid.SampledFrom([]WhenFull{Queue, Reject}).Draw(t, "whenFull"), rapid.SampledFrom([]GatedPods{CountGated, IgnoreGated}).Draw(t, "gatedPods")))
	s.ledger = NewLedger(func() time.Time { return s.now })
	return s
}

func drawNodeName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"n0", "n1", "n2", "n3"}).Draw(t, "node")
}

func drawPodName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"p0", "p1", "p2", "p3", "p4", "p5", "p6"}).Draw(t, "pod")
}

func (s *sim) next() string { s.sequence++; return fmt.Sprint(s.sequence) }

func (s *sim) setNode(t *rapid.T) {
	var offers, has []any
	for _, name := range simNames {
		allocatable := rapid.IntRange(0, 6).Draw(t, string(name))
		offers = append(offers, name, allocatable)
		has = append(has, name, rapid.SampledFrom([]int{allocatable, 0, 6}).Draw(t, "capacity"))
	}
	n := node(drawNodeName(t), offers...)
	n.Status.Capacity = list(append(has, corev1.ResourceCPU, 64)...)
	n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(int64(rapid.SampledFrom([]int{64, 62}).Draw(t, "cpus")), resource.DecimalSI)
	n.ResourceVersion = s.next()
	n.Spec.Unschedulable = rapid.IntRange(0, 4).Draw(t, "cordoned") == 0
	n.Status.Conditions[0].Status = rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}).Draw(t, "ready")
	s.nodes[n.Name] = n
	s.ledger.SetNode(n)
}

func (s *sim) deleteNode(t *rapid.T) {
	name := drawNodeName(t)
	delete(s.nodes, name)
	s.ledger.DeleteNode(name)
}

// setPod brings an event, and a pod of that name with another UID goes before.
func (s *sim) setPod(name string, p *corev1.Pod) {
	if old := s.pods[name]; old != nil && old.UID != p.UID {
		s.ledger.DeletePod(old.UID)
	}
	p.Name = name
	s.pods[name] = p
	if charge, ok := ChargeOf(p, s.cfg.Policy); ok {
		s.ledger.SetPod(charge)
	} else {
		s.ledger.DeletePod(p.UID)
	}
	delete(s.reserved, p.Annotations[rdma.AdmissionIDAnnotation])
}

func (s *sim) createForeignPod(t *rapid.T) {
	// Nodes have up to 6.
	p := pod(s.next(), "", rapid.SampledFrom(simNames).Draw(t, "resource"), rapid.IntRange(0, 8).Draw(t, "count"))
	switch rapid.SampledFrom([]string{"bound", "waiting", "gated"}).Draw(t, "state") {
	case "bound":
		p.Spec.NodeName = drawNodeName(t)
	case "gated":
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
	}
	p.Spec.InitContainers = pod("i", "", rapid.SampledFrom(simNames).Draw(t, "resource"), rapid.IntRange(0, 4).Draw(t, "count")).Spec.Containers
	s.setPod(drawPodName(t), p)
}

// changePod is any step in a pod's life that the pod can take.
func (s *sim) changePod(t *rapid.T) {
	name := drawPodName(t)
	old := s.pods[name]
	if old == nil {
		return
	}
	p := old.DeepCopy()
	switch rapid.SampledFrom([]string{"bind", "delete", "end", "ungate", "resync", "vanish"}).Draw(t, "step") {
	case "bind":
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0 {
			p.Spec.NodeName = drawNodeName(t)
		}
	case "delete":
		deleting(p)
	case "end":
		p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed, corev1.PodRunning, corev1.PodUnknown}).Draw(t, "phase")
	case "ungate":
		p.Spec.SchedulingGates = nil
	case "vanish":
		delete(s.pods, name)
		s.ledger.DeletePod(p.UID)
		return
	}
	s.setPod(name, p)
}

// admit asks for a pool, compares the answer with the naive one, and remembers the reservation.
func (s *sim) admit(t *rapid.T) {
	ask := rdma.Ask{Type: rapid.SampledFrom(rdma.Types()).Draw(t, "type"), Count: int64(rapid.IntRange(1, 3).Draw(t, "count"))}
	d := Demand{Intent: rdma.Intent{ask}, Pod: pod("new", "", gpu, rapid.IntRange(0, 2).Draw(t, "gpus"),
		corev1.ResourceCPU, rapid.SampledFrom([]int{1, 1, 63}).Draw(t, "cpus"))}
	if rapid.Bool().Draw(t, "selects") {
		d.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: drawNodeName(t)}
	}
	group := rapid.SampledFrom([]string{"", "", "g0", "g1"}).Draw(t, "group")
	if group != "" {
		d.Group = Group{Namespace: "tenant-a", Key: gang, Name: group}
	}
	switch rapid.SampledFrom([]string{"new", "new", "dry", "again"}).Draw(t, "pass") {
	case "new":
		d.AdmissionID = "id" + s.next()
	case "again":
		if ids := slices.Sorted(maps.Keys(s.reserved)); len(ids) > 0 {
			d.AdmissionID = rapid.SampledFrom(ids).Draw(t, "id")
		}
	}
	if d.Name = rapid.SampledFrom([]string{"", "", "tenant-a/x", "tenant-a/y"}).Draw(t, "name"); d.Name != "" && d.AdmissionID != "" {
		maps.DeleteFunc(s.reserved, func(id string, r simReservation) bool { return r.name == d.Name && id != d.AdmissionID })
	}
	want := s.naive(d, ask, group)
	choice, err := s.ledger.Choose(s.cfg, d)
	got := "refused"
	if err == nil {
		got = fmt.Sprintf("%v outcome %d from group %t", choice.Assignment, choice.Outcome, choice.FromGroup)
	}
	require.Equal(t, want, got, "admission of %v, group %q", ask, group)
	if err == nil && d.AdmissionID != "" {
		s.reserved[d.AdmissionID] = simReservation{choice.Assignment[0], group, d.Name, s.now.Add(s.cfg.Policy.Reservation())}
	}
}

// appear lets the pod of an admission show up in the informer.
func (s *sim) appear(t *rapid.T) {
	ids := slices.Sorted(maps.Keys(s.reserved))
	if len(ids) == 0 {
		return
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	r := s.reserved[id]
	p := injected(s.next(), "", id, r.entry.Pool)
	maps.Copy(p.Annotations, rdma.Assignment{r.entry}.Annotations())
	p.Spec.Containers[0].Resources.Requests = list(r.entry.Pool, int(r.entry.Count))
	if r.group != "" {
		p.Labels = map[string]string{gang: r.group}
	}
	if rapid.IntRange(0, 3).Draw(t, "gated") == 0 {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
	}
	s.setPod(drawPodName(t), p)
}

func (s *sim) pass(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
	for id, r := range s.reserved {
		if !s.now.Before(r.expires) {
			delete(s.reserved, id)
		}
	}
}

func (s *sim) check(t *rapid.T) {
	for _, name := range simNames {
		if diff := cmp.Diff(s.usage(name), s.ledger.UsageOf(name)); diff != "" {
			t.Fatalf("usage of %s (- naive, + ledger):\n%s", name, diff)
		}
		for _, got := range s.ledger.NodeUsage(name) {
			n := s.nodes[got.Node]
			held, releasing := s.onNode(got.Node, name)
			allocatable := quantity(n.Status.Allocatable, name)
			require.Equal(t, NodeUsage{Node: got.Node, Pool: name, Eligible: eligible(n), Allocatable: allocatable,
				Requested: held, Releasing: releasing, Free: max(allocatable-held-releasing, 0)}, got)
		}
		require.GreaterOrEqual(t, s.ledger.reserved[name].devices, int64(0))
	}
	var charges []Charge
	for _, p := range s.pods {
		if charge, ok := ChargeOf(p, s.cfg.Policy); ok {
			charges = append(charges, charge)
		}
	}
	for range 2 {
		require.Equal(t, Drift{}, s.ledger.Recount(slices.Collect(maps.Values(s.nodes)), charges), "nothing drifts in normal operation")
	}
	known := map[string]types.UID{}
	for _, c := range charges {
		if c.AdmissionID != "" {
			known[c.AdmissionID] = c.UID
		}
	}
	require.Equal(t, known, s.ledger.admitted)
}

func assertEmpty(t assert.TestingT, l *Ledger) {
	assert.Empty(t, l.nodes)
	assert.Empty(t, l.pods)
	assert.Empty(t, l.offering)
	assert.Equal(t, newTotals(), l.totals)
	assert.Empty(t, l.byID)
	assert.Empty(t, l.byName)
	assert.Empty(t, l.order)
	assert.Empty(t, l.reserved)
	assert.Empty(t, l.groups)
	assert.Empty(t, l.admitted)
	assert.Empty(t, l.suspects.pods)
	assert.Empty(t, l.suspects.nodes)
	assert.Empty(t, l.Usage())
}

// TestTheLedgerIsTheSumOfItsEvents: cases S30, S53 of docs/cases.md.
func TestTheLedgerIsTheSumOfItsEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		for range 3 {
			s.setNode(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":           s.check,
			"setNode":    s.setNode,
			"deleteNode": s.deleteNode,
			"foreignPod": s.createForeignPod,
			"changePod":  s.changePod,
			"changePod2": s.changePod,
			"admit":      s.admit,
			"admit2":     s.admit,
			"appear":     s.appear,
			"pass":       s.pass,
		})
		for _, p := range s.pods {
			s.ledger.DeletePod(p.UID)
		}
		for name := range s.nodes {
			s.ledger.DeleteNode(name)
		}
		s.now = s.now.Add(time.Hour)
		s.ledger.Recount(nil, nil)
		assertEmpty(t, s.ledger)
		if t.Failed() {
			t.FailNow()
		}
	})
}
