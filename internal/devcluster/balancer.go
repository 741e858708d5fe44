package devcluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const dialTimeout = time.Second

// balancer connects TCP clients with backends as the webhook's Service does, which has sessionAffinity ClientIP: the one
// client, the API server, stays with one backend until that takes no more connections, and then with the next one.
type balancer struct {
	listener net.Listener
	backends []string
	present  atomic.Uint64 // index of the backend that took the last connection

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // what close has to cut; guarded by mu
	closed bool                  // guarded by mu
	wg     sync.WaitGroup
}

// newBalancer listens on addr until close.
func newBalancer(addr string, backends ...string) (*balancer, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("balancer: %w", err)
	}
	b := &balancer{listener: listener, backends: backends, conns: map[net.Conn]struct{}{}}
	b.wg.Go(b.accept)
	return b, nil
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
	backend, err := b.dial()
	if err != nil || !b.track(backend) {
		return
	}
	defer b.drop(backend)

	// Whichever side ends first ends both: half-open connections to a dead replica would keep HTTP/2 clients waiting.
	done := make(chan struct{}, 2)
	forward := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		done <- struct{}{}
	}
	b.wg.Go(func() { forward(backend, client) })
	b.wg.Go(func() { forward(client, backend) })
	<-done
}

func (b *balancer) dial() (net.Conn, error) {
	first, count := b.present.Load(), uint64(len(b.backends))
	var errs []error
	for i := range count {
		index := (first + i) % count
		conn, err := net.DialTimeout("tcp", b.backends[index], dialTimeout)
		if err == nil {
			b.present.CompareAndSwap(first, index)
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
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
