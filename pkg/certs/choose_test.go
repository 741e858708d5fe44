package certs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func trusting(all ...*testCA) clients {
	cl := clients{known: true}
	for _, ca := range all {
		cl.trusted = append(cl.trusted, ca.cert)
	}
	return cl
}

func TestChoose(t *testing.T) {
	a, b := newTestCA(t), newTestCA(t)
	first, second, other := a.pair(), a.pair(), b.pair()
	// later is a replica that serves the first certificate while clients trust its CA.
	later := func(t *testing.T) *chooser {
		t.Helper()
		c := &chooser{dnsName: testName}
		require.Zero(t, c.choose(first, trusting(a), testNow))
		require.Same(t, first, c.serving)
		return c
	}
	at := func(d time.Duration) time.Time { return testNow.Add(time.Minute + d) }

	t.Run("the first certificate is served whatever clients trust", func(t *testing.T) {
		for _, cl := range []clients{{}, trusting(), trusting(a), trusting(b)} {
			c := &chooser{dnsName: testName}
			require.Zero(t, c.choose(first, cl, testNow))
			require.Same(t, first, c.serving)
		}
	})
	t.Run("nothing is served while there is none", func(t *testing.T) {
		c := &chooser{dnsName: testName}
		require.Zero(t, c.choose(nil, trusting(a), testNow))
		require.Nil(t, c.serving)
	})
	t.Run("a new one by the same CA is served at once", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(second, trusting(a), at(0)))
		require.Same(t, second, c.serving)
	})
	t.Run("a broken one must not replace one that works", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(nil, trusting(a), at(0)))
		require.Same(t, first, c.serving)
	})
	t.Run("one by a CA that clients do not trust must not replace one that works", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(other, trusting(a), at(0)))
		require.Zero(t, c.choose(other, trusting(a), at(time.Hour)))
		require.Same(t, first, c.serving)
	})
	t.Run("one by a new CA must not be served before API servers have heard of it", func(t *testing.T) {
		c := later(t)
		require.Equal(t, settle, c.choose(other, trusting(a, b), at(0)))
		require.Same(t, first, c.serving)
		require.Equal(t, settle, c.choose(other, trusting(b, a), at(settle-1)))
		require.Same(t, first, c.serving)
		require.Zero(t, c.choose(other, trusting(b, a), at(settle)))
		require.Same(t, other, c.serving)
	})
	t.Run("a CA that went and came must settle anew", func(t *testing.T) {
		c := later(t)
		require.Equal(t, settle, c.choose(other, trusting(a, b), at(0)))
		require.Zero(t, c.choose(other, trusting(a), at(settle/2)))
		require.Equal(t, settle, c.choose(other, trusting(a, b), at(settle)))
		require.Same(t, first, c.serving)
	})
	t.Run("one that clients trust replaces one that they do not, at once", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(other, trusting(b), at(0)))
		require.Same(t, other, c.serving)
	})
	t.Run("an expired one is replaced at once", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(other, trusting(a), testNow.Add(366*24*time.Hour)))
		require.Same(t, other, c.serving)
	})
	t.Run("without a webhook configuration nobody's trust is at stake", func(t *testing.T) {
		c := later(t)
		require.Zero(t, c.choose(other, clients{}, at(0)))
		require.Same(t, other, c.serving)
	})
}

func TestOverlap(t *testing.T) {
	a, b, c := newTestCA(t).cert, newTestCA(t).cert, newTestCA(t).cert
	at := testNow.Add
	for _, tc := range []struct {
		name     string
		own      bundle
		broken   bool
		present  bundle
		want     bundle
		wantWait time.Duration
	}{
		{name: "an empty caBundle gets the Secret's CA", own: bundle{a}, want: bundle{a}},
		{name: "what is right stays", own: bundle{a}, present: bundle{a}, want: bundle{a}},
		{name: "all of the Secret's CAs are written", own: bundle{a, b}, present: bundle{b}, want: bundle{a, b}},
		{name: "the old CA stays beside the new one", own: bundle{b}, present: bundle{a}, want: bundle{b, a}, wantWait: overlapTime},
		{name: "without a CA in the Secret the caBundle must not be touched", present: bundle{a}, want: bundle{a}},
		{name: "a Secret whose certificate is broken must not displace the CA of the one that is served", own: bundle{b}, broken: true, present: bundle{a}, want: bundle{b, a}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o overlap
			got, wait := o.next(tc.own, !tc.broken, tc.present, testNow)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.wantWait, wait)
		})
	}
	t.Run("the old CA goes after the overlap and not before", func(t *testing.T) {
		var o overlap
		present := bundle{a}
		var wait time.Duration
		for _, step := range []struct {
			at   time.Duration
			want bundle
			wait time.Duration
		}{
			{0, bundle{b, a}, overlapTime},
			{time.Minute, bundle{b, a}, overlapTime - time.Minute},
			{overlapTime - 1, bundle{b, a}, 1},
			{overlapTime, bundle{b}, 0},
			{2 * overlapTime, bundle{b}, 0},
		} {
			present, wait = o.next(bundle{b}, true, present, at(step.at))
			require.Equal(t, step.want, present, "at %v", step.at)
			require.Equal(t, step.wait, wait, "at %v", step.at)
		}
	})
	t.Run("each old CA has its own hour", func(t *testing.T) {
		var o overlap
		present, _ := o.next(bundle{b}, true, bundle{a}, at(0))
		present, _ = o.next(bundle{c}, true, present, at(overlapTime/2))
		require.Equal(t, bundle{c, b, a}, present)
		present, wait := o.next(bundle{c}, true, present, at(overlapTime))
		require.Equal(t, bundle{c, b}, present)
		require.Equal(t, overlapTime/2, wait)
	})
	t.Run("a broken certificate stops the clock", func(t *testing.T) {
		var o overlap
		present, _ := o.next(bundle{b}, true, bundle{a}, at(0))
		present, _ = o.next(bundle{b}, false, present, at(2*overlapTime))
		require.Equal(t, bundle{b, a}, present)
		present, wait := o.next(bundle{b}, true, present, at(3*overlapTime))
		require.Equal(t, bundle{b, a}, present)
		require.Equal(t, overlapTime, wait)
	})
	t.Run("expired CAs go, and old ones must not pile up", func(t *testing.T) {
		var o overlap
		present, _ := o.next(bundle{b}, true, bundle{a}, testNow.Add(20*365*24*time.Hour))
		require.Equal(t, bundle{b}, present)
		var many bundle
		for range maxOld + 3 {
			many = append(many, newTestCA(t).cert)
		}
		present, _ = o.next(bundle{b}, true, many, testNow)
		require.Equal(t, append(bundle{b}, many[:maxOld]...), present)
	})
}
