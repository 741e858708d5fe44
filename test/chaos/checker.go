package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// class is what an invariant's breach counts as.
type class string

const (
	leaked        class = "leaked"        // networks that nobody gives back
	double        class = "double"        // a network in two live pods, or taken from a live one
	wrong         class = "wrong"         // a placed pod without its N networks
	stuck         class = "stuck"         // a pod that waits although it fits, or that does not go away
	overcommitted class = "overcommitted" // a placement beyond a node's allocatable
	drift         class = "drift"         // the ledger differs from a recount
)

type violation struct {
	Class class
	UID   string
	Pod   string
	Text  string
}

// visible is how long a change of a node has been there before a placement has to respect it.
const visible = 2 * time.Second

const schedulerAccount = "webhook-system:tenant-scheduler"

// life is all that is known of one pod.
type life struct {
	uid, pod string
	created  *event
	bound    *event
	// stopped ends the use of networks, freed that of devices; zero while that goes on.
	stopped, freed     time.Time
	ensures, givenBack []event
}

// checker judges a history. It asks nobody: what it knows are the events that it was given.
type checker struct {
	lives      map[string]*life
	nodesGone  map[string][]event
	offers     map[string][]event
	times      map[kind][]event // blind, sighted and unlabelled
	made       map[string]bool
	deleted    map[string][]event
	handedOut  map[string]map[string]event // network, UID: the first ensure
	violations []violation
}

// verdict is what a history comes to.
type verdict struct {
	Placed, Released int
	Violations       []violation
}

// checkHistory looks for breaches of what must hold at any time. gone says of a pod UID whose networks seem to be left
// over that neither the tenant-controller nor the cluster shows them: logs lose lines when their writers are killed. It
// is nil while the history goes on.
func checkHistory(events []event, gone func(uid string) bool) verdict {
	c := &checker{
		lives: map[string]*life{}, nodesGone: map[string][]event{}, offers: map[string][]event{}, made: map[string]bool{}, times: map[kind][]event{},
		deleted: map[string][]event{}, handedOut: map[string]map[string]event{},
	}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b event) int { return a.From.Compare(b.From) })
	for i := range events {
		c.read(&events[i])
	}
	ends := newEnds(events)
	v := verdict{}
	for _, l := range c.lives {
		c.end(l, ends)
		if len(l.givenBack) > 0 {
			v.Released++
		}
		if l.placed() {
			v.Placed++
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.lives)) {
		l := c.lives[uid]
		c.wasAdmitted(l)
		if l.placed() {
			c.hasItsNetworks(l)
			c.keepsItsNetworks(l)
			c.fitsOnItsNode(l)
		}
		if gone != nil && c.leftOver(l) && !gone(uid) {
			c.failf(leaked, l, "its networks were handed out and never given back")
		}
	}
	c.oneUserEach()
	c.oneOwnerEach()
	v.Violations = c.violations
	return v
}

func (c *checker) failf(class class, l *life, format string, args ...any) {
	c.violations = append(c.violations, violation{class, l.uid, l.pod, fmt.Sprintf(format, args...)})
}

func (l *life) placed() bool {
	return l.bound != nil && l.created != nil && l.created.Ours
}

func (c *checker) life(e *event) *life {
	l := c.lives[e.UID]
	if l == nil {
		l = &life{uid: e.UID}
		c.lives[e.UID] = l
	}
	l.pod = cmp.Or(l.pod, e.Pod)
	return l
}

// read takes in one event, in the order of time.
func (c *checker) read(e *event) {
	switch e.Kind {
	case podCreated:
		l := c.life(e)
		l.created = preferred(l.created, e)
	case podBound:
		l := c.life(e)
		l.bound = preferred(l.bound, e)
	case ensured:
		l := c.life(e)
		l.ensures = append(l.ensures, *e)
		for _, network := range e.Networks {
			if c.handedOut[network] == nil {
				c.handedOut[network] = map[string]event{}
			}
			if _, ok := c.handedOut[network][e.UID]; !ok {
				c.handedOut[network][e.UID] = *e
			}
		}
	case released:
		l := c.life(e)
		l.givenBack = append(l.givenBack, *e)
	case nodeRemoved:
		c.nodesGone[e.Node] = append(c.nodesGone[e.Node], *e)
		c.offers[e.Node] = append(c.offers[e.Node], *e)
	case nodeOffers:
		c.offers[e.Node] = append(c.offers[e.Node], *e)
	case blind, sighted, unlabelled:
		c.times[e.Kind] = append(c.times[e.Kind], *e)
	case networkMade:
		c.made[e.Networks[0]] = true
	case networkDeleted:
		c.deleted[e.Networks[0]] = append(c.deleted[e.Networks[0]], *e)
	case podDeleting, podTerminal, podStopped, podRemoved, note:
	}
}

// preferred is the audit log's word where there is one: it is exact.
func preferred(have, e *event) *event {
	if have == nil || have.Source != fromAudit && e.Source == fromAudit {
		return e
	}
	return have
}

// ends are the first times of what ends a pod's use, by source.
type ends map[string]map[kind]map[string]time.Time

func newEnds(events []event) ends {
	all := ends{}
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case podTerminal, podStopped, podRemoved:
			if all[e.UID] == nil {
				all[e.UID] = map[kind]map[string]time.Time{podTerminal: {}, podStopped: {}, podRemoved: {}}
			}
			if e.From.IsZero() {
				continue
			}
			if t, ok := all[e.UID][e.Kind][e.Source]; !ok || e.From.Before(t) {
				all[e.UID][e.Kind][e.Source] = e.From
			}
		default:
		}
	}
	return all
}

// at is when it happened to the pod, or zero. The watch and the object know it to the second, rounded down; the audit log is exact,
// but it may lack the first write of several.
func (all ends) at(uid string, k kind) time.Time {
	exact, seen := all[uid][k][fromAudit], earliest(all[uid][k][fromWatch], all[uid][k][fromObject])
	if exact.IsZero() || !seen.IsZero() && seen.Add(time.Second).Before(exact) {
		return seen
	}
	return exact
}

// end finds out when the pod's use of networks and devices ended.
func (c *checker) end(l *life, all ends) {
	removed := all.at(l.uid, podRemoved)
	nodeGone := c.nodeGone(l)
	l.stopped = earliest(all.at(l.uid, podStopped), removed, nodeGone)
	l.freed = earliest(all.at(l.uid, podTerminal), removed, nodeGone)
	// The API server's log of deleted networks is the second witness of a release.
	for _, e := range l.ensures {
		for _, network := range e.Networks {
			for _, d := range c.deleted[network] {
				if len(c.handedOut[network]) == 1 && !slices.ContainsFunc(l.givenBack, func(r event) bool {
					return !d.To.Before(r.From) && !d.From.After(r.To)
				}) {
					l.givenBack = append(l.givenBack, d)
				}
			}
		}
	}
}

// nodeGone is when the pod's node went away under it. A pod that was bound to a node that was gone already never began to
// use anything there.
func (c *checker) nodeGone(l *life) time.Time {
	if l.bound == nil {
		return time.Time{}
	}
	for _, e := range slices.Backward(c.offers[l.bound.Node]) {
		if e.From.After(l.bound.From) {
			continue
		}
		if e.Kind == nodeRemoved {
			return l.bound.From
		}
		break
	}
	for _, e := range c.nodesGone[l.bound.Node] {
		if !e.To.Before(l.bound.From) {
			return e.From
		}
	}
	return time.Time{}
}

func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
