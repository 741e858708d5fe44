package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// drain lets a replica leave without failing a review. A Service goes on sending for a moment to a replica that stops,
// and API servers keep their connections. So the replica first says that it is not ready and has every connection closed
// after its next answer; only after the delay does it stop listening.
type drain struct {
	delay    time.Duration
	stopping atomic.Bool
}

var errStopping = errors.New("the replica stops")

// until returns a context that ends the delay after ctx, or when stop is called.
func (d *drain) until(ctx context.Context) (_ context.Context, stop func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() {
		d.stopping.Store(true)
		select {
		case <-time.After(d.delay):
		case <-later.Done():
		}
		cancel()
	})
	return later, func() { detach(); cancel() }
}

// ready is a readiness check.
func (d *drain) ready(*http.Request) error {
	if d.stopping.Load() {
		return errStopping
	}
	return nil
}

// closing asks clients of a stopping replica to connect anew. Closing idle connections at once instead would race with
// reviews that are on their way.
func (d *drain) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
