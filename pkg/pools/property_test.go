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
	p := pod(s.next(), "", rapid.SampledFrom(simNames).Draw(t, "resource"), rapid.IntRange(0, 4).Draw(t, "count"))
	if rapid.Bool().Draw(t, "bound") {
		p.Spec.NodeName = drawNodeName(t)
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

// requested is the effective request, said in another way than PodRequests: of one init container and one container the
// larger.
func requested(p *corev1.Pod, name corev1.ResourceName) int64 {
	n := p.Spec.Containers[0].Resources.Requests[name]
	most := n.Value()
	for _, c := range p.Spec.InitContainers {
		n := c.Resources.Requests[name]
		most = max(most, n.Value())
	}
	return most
}

func holds(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func eligible(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && n.Status.Conditions[0].Status == corev1.ConditionTrue
}

func quantity(l corev1.ResourceList, name corev1.ResourceName) int64 {
	q := l[name]
	return q.Value()
}

// usage is D5, word by word.
func (s *sim) usage(name corev1.ResourceName) Usage {
	u := Usage{Pool: name}
	for _, n := range s.nodes {
		if !eligible(n) {
			continue
		}
		here := quantity(n.Status.Allocatable, name)
		u.Allocatable += here
		if here > 0 {
			u.Nodes++
		}
		if requested, releasing := s.onNode(n.Name, name); here < requested+releasing {
			u.BelowAllocated = true
		}
	}
	for _, p := range s.pods {
		n, known := s.nodes[p.Spec.NodeName]
		switch count := requested(p, name); {
		case !holds(p):
		case p.Spec.NodeName == "" && p.DeletionTimestamp == nil:
			u.Unbound += count
			u.Requested += count
			if len(p.Spec.SchedulingGates) > 0 {
				u.Gated += count
			}
		case !known || !eligible(n):
		case p.DeletionTimestamp != nil:
			u.Releasing += count
		default:
			u.Requested += count
		}
	}
	for _, r := range s.reserved {
		if r.entry.Pool == name {
			u.Reserved += r.entry.Count
		}
	}
	u.Overcommitted = u.Requested > u.Allocatable
	u.Available = max(u.Allocatable-u.Requested, 0)
	u.Free = max(u.Allocatable-u.Requested-u.Releasing, 0)
	return u
}

func (s *sim) onNode(node string, name corev1.ResourceName) (held, releasing int64) {
	for _, p := range s.pods {
		switch {
		case !holds(p) || p.Spec.NodeName != node:
		case p.DeletionTimestamp != nil:
			releasing += requested(p, name)
		default:
			held += requested(p, name)
		}
	}
	return held, releasing
}

// naive is D6 for one type, word by word.
func (s *sim) naive(d Demand, ask rdma.Ask, group string) string {
	held := s.heldByGroup(group, ask.Type, d.AdmissionID)
	options := s.options(ask, held)
	if len(options) == 0 || options[0] == shared && ask.Count > 1 {
		return "refused"
	}
	say := func(pool corev1.ResourceName, outcome Outcome) string {
		return fmt.Sprintf("%v outcome %d from group %t", rdma.Assignment{{Type: ask.Type, Pool: pool, Count: ask.Count}}, outcome, len(held) > 0)
	}
	for _, outcome := range []Outcome{Room, RoomAfterRelease} {
		for _, pool := range options {
			if s.room(d, ask.Count, pool, outcome == RoomAfterRelease) {
				return say(pool, outcome)
			}
		}
	}
	for _, pool := range options {
		if s.everRoom(d, ask.Count, pool) {
			return say(pool, Waits)
		}
	}
	if s.cfg.Policy.WhenFull == Reject && len(held) == 0 {
		return "refused"
	}
	return say(options[0], NoNode)
}

func (s *sim) options(ask rdma.Ask, held []corev1.ResourceName) []corev1.ResourceName {
	var options []corev1.ResourceName
	for _, pool := range s.cfg.Pools {
		if slices.Contains(held, pool.Name) {
			return []corev1.ResourceName{pool.Name}
		}
		if len(held) == 0 && slices.Contains(pool.Types, ask.Type) && (!pool.Shared || ask.Count == 1) {
			options = append(options, pool.Name)
		}
	}
	return options
}

func (s *sim) everRoom(d Demand, count int64, pool corev1.ResourceName) bool {
	for _, n := range s.nodes {
		ever := func(name corev1.ResourceName) int64 {
			return max(quantity(n.Status.Capacity, name), quantity(n.Status.Allocatable, name))
		}
		if selects(d.Pod, n) && hasCPU(d.Pod, n) && ever(pool) >= count && ever(gpu) >= requested(d.Pod, gpu) {
			return true
		}
	}
	return false
}

func selects(p *corev1.Pod, n *corev1.Node) bool {
	host, ok := p.Spec.NodeSelector[corev1.LabelHostname]
	return !ok || host == n.Name
}

func hasCPU(p *corev1.Pod, n *corev1.Node) bool {
	return quantity(n.Status.Allocatable, corev1.ResourceCPU) >= requested(p, corev1.ResourceCPU)
}

func (s *sim) room(d Demand, count int64, pool corev1.ResourceName, afterRelease bool) bool {
	waiting := s.usage(pool).Unbound
	if s.cfg.Policy.GatedPods == IgnoreGated {
		waiting -= s.usage(pool).Gated
	}
	for id, r := range s.reserved {
		if r.entry.Pool == pool && id != d.AdmissionID {
			waiting += r.entry.Count
		}
	}
	var slots int64
	for _, n := range s.nodes {
		if !eligible(n) || !selects(d.Pod, n) || !hasCPU(d.Pod, n) || quantity(n.Status.Allocatable, gpu) < requested(d.Pod, gpu) {
			continue
		}
		held, releasing := s.onNode(n.Name, pool)
		free := quantity(n.Status.Allocatable, pool) - held
		if !afterRelease {
			free -= releasing
		}
		slots += max(free, 0) / count
	}
	return slots > (waiting+count-1)/count
}

func (s *sim) heldByGroup(group string, t rdma.Type, own string) []corev1.ResourceName {
	var held []corev1.ResourceName
	for _, p := range s.pods {
		if a, ours := rdma.Ours(p); ours && group != "" && p.Labels[gang] == group && holds(p) && p.DeletionTimestamp == nil && a[0].Type == t {
			held = append(held, a[0].Pool)
		}
	}
	for id, r := range s.reserved {
		if group != "" && r.group == group && id != own && r.entry.Type == t {
			held = append(held, r.entry.Pool)
		}
	}
	return held
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
		require.GreaterOrEqual(t, s.ledger.reserved[name], int64(0))
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
