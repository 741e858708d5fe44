package certs

import (
	"crypto/tls"
	"time"
)

// settle is how long a caBundle must have held a CA before a certificate by it replaces one that works: API servers see
// the change a moment after we do.
const settle = 10 * time.Second

// clients is what the webhook's clients trust.
type clients struct {
	// known is false while there is nothing to judge by: no webhook configuration, or one that leaves the trust to the
	// API server's own roots.
	known   bool
	trusted bundle
}

// chooser decides which certificate a replica serves. It is used by one goroutine.
type chooser struct {
	dnsName string
	serving *tls.Certificate // nil before the first
	// since says when each CA appeared in the caBundle, by its DER; the zero time for those of the first look.
	since map[string]time.Time
}

// choose takes over the candidate, the Secret's certificate, if it is time, and otherwise says how long to wait; 0 means
// until something changes. A nil candidate stands for one that cannot be used.
func (c *chooser) choose(candidate *tls.Certificate, cl clients, now time.Time) (wait time.Duration) {
	c.observe(cl, now)
	switch {
	case candidate == nil || same(candidate, c.serving):
	case c.serving == nil, !cl.known, !cl.trusted.trusts(c.serving, c.dnsName, now):
		c.serving = candidate // nobody's trust is at stake
	case c.settled(cl.trusted, now).trusts(candidate, c.dnsName, now):
		c.serving = candidate
	case cl.trusted.trusts(candidate, c.dnsName, now):
		return settle
	}
	return 0
}

// observe notes new CAs and forgets those that are gone.
func (c *chooser) observe(cl clients, now time.Time) {
	if !cl.known {
		return
	}
	since := make(map[string]time.Time, len(cl.trusted))
	for _, cert := range cl.trusted {
		key := string(cert.Raw)
		if first, ok := c.since[key]; ok || c.since == nil {
			since[key] = first
		} else {
			since[key] = now
		}
	}
	c.since = since
}

func (c *chooser) settled(b bundle, now time.Time) bundle {
	var old bundle
	for _, cert := range b {
		if now.Sub(c.since[string(cert.Raw)]) >= settle {
			old = append(old, cert)
		}
	}
	return old
}

// trusted tells whether clients accept what is served.
func (c *chooser) trusted(cl clients, now time.Time) bool {
	return c.serving != nil && (!cl.known || cl.trusted.trusts(c.serving, c.dnsName, now))
}
