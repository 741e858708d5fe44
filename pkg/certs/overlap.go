package certs

import (
	"slices"
	"time"
)

const (
	// overlapTime is how long a CA stays in the caBundle after the Secret has ceased to name it. A replica takes up a new
	// certificate within settle of hearing of it; what is left is for those that do not hear for a while.
	overlapTime = time.Hour
	// maxOld bounds the CAs that are kept like that.
	maxOld = 4
)

// overlap remembers which CAs are on their way out of the caBundle.
type overlap struct {
	since map[string]time.Time // when each was first seen to be superseded, by its DER
}

// next returns what the caBundle should hold, given the Secret's CAs and what it holds now, and when to look again; 0
// means when something changes. Without a CA in the Secret the caBundle is somebody else's and stays. Works tells whether
// the Secret has a certificate by one of its CAs: otherwise replicas serve the one they had, whose CA has to stay.
func (o *overlap) next(own bundle, works bool, present bundle, now time.Time) (bundle, time.Duration) {
	if len(own) == 0 {
		return present, 0
	}
	next := slices.Clone(own)
	since := map[string]time.Time{}
	var again time.Duration
	for _, cert := range present {
		if own.contains(cert) || now.After(cert.NotAfter) || len(next) == len(own)+maxOld {
			continue
		}
		if !works {
			next = append(next, cert)
			continue
		}
		first, ok := o.since[string(cert.Raw)]
		if !ok {
			first = now
		}
		since[string(cert.Raw)] = first
		if left := overlapTime - now.Sub(first); left > 0 {
			next = append(next, cert)
			again = max(again, left)
		}
	}
	o.since = since
	return next, again
}
