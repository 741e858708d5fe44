package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// wasAdmitted: a pod that asks for devices in a labelled namespace does not slip in as a plain one.
func (c *checker) wasAdmitted(l *life) {
	if l.created == nil || !l.created.Wants || l.created.Ours {
		return
	}
	namespace, _, _ := strings.Cut(l.pod, "/")
	excused := slices.ContainsFunc(c.times[unlabelled], func(e event) bool {
		return e.Pod == namespace && !l.created.From.Before(e.From) && !l.created.From.After(e.To.Add(visible))
	})
	if !excused && slices.Contains(namespaces, namespace) {
		c.failf(wrong, l, "it asks for devices, its namespace is labelled, and it was created as a plain pod")
	}
}

// hasItsNetworks: a placed pod has the networks that it asked for, all of them made for it.
func (c *checker) hasItsNetworks(l *life) {
	var want int64
	for _, n := range l.created.Devices {
		want += n
	}
	if got := int64(len(l.bound.Networks) - l.created.Own); got != want {
		c.failf(wrong, l, "it was bound with %d networks for %d devices", got, want)
		return
	}
	ours := l.bound.Networks[l.created.Own:]
	if len(slices.Compact(slices.Sorted(slices.Values(ours)))) != len(ours) {
		c.failf(wrong, l, "it was bound with one network twice")
	}
	perPool := map[string]int64{}
	known := true
	for _, network := range ours {
		switch e, ok := c.handedOut[network][l.uid]; {
		case ok:
			perPool[e.Pools[slices.Index(e.Networks, network)]]++
		case len(c.handedOut[network]) > 0:
			c.failf(double, l, "it was bound with network %s, which was handed out to others only", network)
			known = false
		case !c.made[network]:
			c.failf(wrong, l, "it was bound with network %s, which was never made", network)
		default:
			known = false // the mock was killed before it wrote down whom the network was made for
		}
	}
	if known && !maps.Equal(perPool, l.created.Devices) {
		c.failf(wrong, l, "it was bound with networks of %v for devices of %v", perPool, l.created.Devices)
	}
}

// keepsItsNetworks: from the binding on until the use has ended nothing was given back.
func (c *checker) keepsItsNetworks(l *life) {
	for _, r := range l.givenBack {
		if !l.stopped.IsZero() && !r.From.Before(l.stopped) {
			continue
		}
		if r.From.Before(l.bound.From) {
			again := slices.ContainsFunc(l.ensures, func(e event) bool { return !e.To.Before(r.From) && !e.From.After(l.bound.To) })
			if !again {
				c.failf(double, l, "its networks were given back at %s, before it was bound with them", clock(r.From))
			}
			continue
		}
		c.failf(double, l, "its networks were given back at %s, while it used them from %s to %s", clock(r.From), clock(l.bound.From), clock(l.stopped))
	}
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "now"
	}
	return t.UTC().Format("15:04:05.000")
}

// fitsOnItsNode: when the pod was bound, it and the pods that surely held devices there then did not exceed what the node
// offered at any time while the change could still be news to the scheduler.
func (c *checker) fitsOnItsNode(l *life) {
	b := l.bound
	if !strings.Contains(b.Text, schedulerAccount) {
		return
	}
	held := maps.Clone(l.created.Devices)
	var holders []string
	for _, other := range c.lives {
		if other == l || !other.heldAt(b) {
			continue
		}
		holders = append(holders, other.pod)
		for pool, n := range other.created.Devices {
			held[pool] += n
		}
	}
	since := c.couldSee(b.From)
	for pool := range l.created.Devices {
		if most, known := c.offered(b.Node, pool, since, b.To.Add(visible)); known && held[pool] > most {
			slices.Sort(holders)
			c.failf(overcommitted, l, "it was bound to %s, which offered %d of %s since %s at the latest, and held %d with it; others there: %v",
				b.Node, most, pool, clock(since), held[pool], holders)
		}
	}
}

// heldAt says whether the pod surely held devices on the node of another's binding when that was made.
func (l *life) heldAt(b *event) bool {
	if l.bound == nil || l.created == nil || l.bound.Node != b.Node || l.bound.From.After(b.From) {
		return false
	}
	if l.bound.Source != fromAudit && l.bound.To.After(b.From) {
		return false
	}
	return l.freed.IsZero() || l.freed.After(b.To)
}

// couldSee is since when the scheduler may not have heard any more of what happened up to a moment: it works at a
// distance, and while its process stands still or its watch is broken it hears nothing at all.
func (c *checker) couldSee(moment time.Time) time.Time {
	since := moment.Add(-visible)
	for _, window := range slices.Backward(c.times[blind]) {
		end := window.To
		for _, again := range c.times[sighted] {
			if again.From.After(window.From) && strings.Contains(window.Text, devcluster.APIServer) {
				if back := again.From.Add(time.Second); back.After(end) {
					end = back
				}
				break
			}
		}
		if end.After(since) && window.From.Before(moment) {
			since = earliest(since, window.From.Add(-visible))
		}
	}
	return since
}

// offered is the most that a node offered of a pool in a time.
func (c *checker) offered(node, pool string, from, to time.Time) (most int64, known bool) {
	for _, e := range c.offers[node] {
		if !known && e.Kind == nodeRemoved {
			continue
		}
		if !e.From.After(from) || !known { // the value in force at the beginning
			most, known = e.Devices[pool], true
		} else if !e.From.After(to) {
			most = max(most, e.Devices[pool])
		}
	}
	return most, known
}

// leftOver says whether networks were handed out after the last time that they were given back.
func (c *checker) leftOver(l *life) bool {
	return slices.ContainsFunc(l.ensures, func(e event) bool {
		return len(e.Networks) > 0 && !slices.ContainsFunc(l.givenBack, func(r event) bool { return !r.To.Before(e.From) })
	})
}

// oneUserEach: no network is in two live pods.
func (c *checker) oneUserEach() {
	users := map[string][]*life{}
	for _, uid := range slices.Sorted(maps.Keys(c.lives)) {
		l := c.lives[uid]
		if l.bound == nil {
			continue
		}
		for _, network := range l.bound.Networks {
			if c.made[network] || len(c.handedOut[network]) > 0 { // else it is a user's own
				users[network] = append(users[network], l)
			}
		}
	}
	for _, network := range slices.Sorted(maps.Keys(users)) {
		for i, a := range users[network] {
			for _, b := range users[network][:i] {
				if (a.stopped.IsZero() || b.bound.To.Before(a.stopped)) && (b.stopped.IsZero() || a.bound.To.Before(b.stopped)) && a != b {
					c.failf(double, a, "network %s was in it and in pod %s (%s) at the same time", network, b.pod, b.uid)
				}
			}
		}
	}
}

// oneOwnerEach: no network is handed out to a second pod before the first has given it back.
func (c *checker) oneOwnerEach() {
	for _, network := range slices.Sorted(maps.Keys(c.handedOut)) {
		owners := slices.SortedFunc(maps.Values(c.handedOut[network]), func(a, b event) int { return a.From.Compare(b.From) })
		for i := 1; i < len(owners); i++ {
			first := c.lives[owners[i-1].UID]
			if !slices.ContainsFunc(first.givenBack, func(r event) bool { return r.From.Before(owners[i].To) }) {
				c.failf(double, c.lives[owners[i].UID], "network %s was handed out to it while pod %s (%s) held it", network, first.pod, first.uid)
			}
		}
	}
}
