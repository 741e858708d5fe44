package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	dialTimeout = time.Second
	// readyPeriod is how often readiness is asked for. A Service hears of a change about as late.
	readyPeriod = 200 * time.Millisecond
	// silentProbes without an answer in a row mean what one bad answer means: the machine may only be busy. It is the
	// kubelet's failureThreshold.
	silentProbes = 3
)

// backend is one of those behind a balancer.
type backend struct {
	addr string
	// ready is asked again and again. Nil: always.
	ready func(context.Context) error

	unready atomic.Bool
	// waiting counts the connections on which the client has spoken last: over HTTP/1.1, the requests that wait for an
	// answer, and handshakes that have not come to their end.
	waiting atomic.Int64
}

// balancer connects TCP clients with backends as the webhook's Service does, which has sessionAffinity ClientIP: the one
// client, the API server, stays with one backend until that is not ready or takes no more connections, and then with the
// next one. Connections that are made stay, as they do there.
type balancer struct {
	listener net.Listener
	backends []*backend
	present  atomic.Uint64 // index of the backend that took the last connection
	quit     func()

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // what close has to cut; guarded by mu
	closed bool                  // guarded by mu
	wg     sync.WaitGroup
}

// newBalancer listens on addr until close.
func newBalancer(addr string, backends ...*backend) (*balancer, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("balancer: %w", err)
	}
	ctx, quit := context.WithCancel(context.Background())
	b := &balancer{listener: listener, backends: backends, conns: map[net.Conn]struct{}{}, quit: quit}
	b.wg.Go(b.accept)
	for _, backend := range backends {
		if backend.ready != nil {
			b.wg.Go(func() { backend.watch(ctx) })
		}
	}
	return b, nil
}

// watch keeps in mind whether the backend is ready.
func (b *backend) watch(ctx context.Context) {
	silent := 0
	for {
		switch err := b.ready(ctx); {
		case err == nil:
			silent = 0
			b.unready.Store(false)
		case saysNo(err):
			silent = 0
			b.unready.Store(true)
		default:
			if silent++; silent >= silentProbes {
				b.unready.Store(true)
			}
		}
		select {
		case <-time.After(readyPeriod):
		case <-ctx.Done():
			return
		}
	}
}

// saysNo tells a backend that is not ready, or not there, from one that has not answered in time.
func saysNo(err error) bool {
	return errors.As(err, new(*unreadyError)) || errors.Is(err, syscall.ECONNREFUSED)
}

// addr is where the balancer listens.
func (b *balancer) addr() string { return b.listener.Addr().String() }

func (b *balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // out of file descriptors, or reset before accepted: the next one may do better
		}
		b.wg.Go(func() { b.serve(client) })
	}
}

// serve connects a client with the first backend that answers. When none does the client is hung up on, which a caller
// sees as it sees a Service without endpoints.
func (b *balancer) serve(client net.Conn) {
	if !b.track(client) {
		return
	}
	defer b.drop(client)
	to, conn, err := b.dial()
	if err != nil || !b.track(conn) {
		return
	}
	defer b.drop(conn)
	turn := &turn{waiting: &to.waiting}
	defer turn.set(false)

	// Whichever side ends first ends both: half-open connections to a dead replica would keep HTTP/2 clients waiting.
	done := make(chan struct{}, 2)
	forward := func(dst io.Writer, src io.Reader) {
		_, _ = io.Copy(dst, src)
		done <- struct{}{}
	}
	b.wg.Go(func() { forward(conn, speaker{client, turn, true}) })
	b.wg.Go(func() { forward(client, speaker{conn, turn, false}) })
	<-done
}

// turn is who spoke last on a connection.
type turn struct {
	mu      sync.Mutex
	client  bool // guarded by mu
	waiting *atomic.Int64
}

func (t *turn) set(client bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if client == t.client {
		return
	}
	t.client = client
	if client {
		t.waiting.Add(1)
	} else {
		t.waiting.Add(-1)
	}
}

// speaker is one side of a connection.
type speaker struct {
	io.Reader
	turn   *turn
	client bool
}

func (s speaker) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n > 0 {
		s.turn.set(s.client)
	}
	return n, err
}

// dial connects with a backend that is ready; while none is known to be, with any: one may have become ready just now.
func (b *balancer) dial() (*backend, net.Conn, error) {
	first, count := b.present.Load(), uint64(len(b.backends))
	var errs []error
	for _, unready := range []bool{false, true} {
		for i := range count {
			index := (first + i) % count
			to := b.backends[index]
			if to.unready.Load() != unready {
				continue
			}
			conn, err := net.DialTimeout("tcp", to.addr, dialTimeout)
			if err == nil {
				b.present.CompareAndSwap(first, index)
				return to, conn, nil
			}
			errs = append(errs, err)
		}
	}
	return nil, nil, errors.Join(errs...)
}

// track remembers a connection for close, or closes it at once when close came first.
func (b *balancer) track(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = conn.Close()
		return false
	}
	b.conns[conn] = struct{}{}
	return true
}

func (b *balancer) drop(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, conn)
	_ = conn.Close()
}

// close stops listening, cuts what is open and waits until nothing of the balancer runs.
func (b *balancer) close() error {
	b.quit()
	err := b.listener.Close()
	b.mu.Lock()
	b.closed = true
	for conn := range b.conns {
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
	return err
}
