package devcluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// named is a backend that says its name to whoever connects and then echoes.
func named(t *testing.T, name string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // a test's server
				_, _ = fmt.Fprintln(conn, name)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener
}

func balance(t *testing.T, addrs ...string) *balancer {
	t.Helper()
	backends := make([]*backend, len(addrs))
	for i, addr := range addrs {
		backends[i] = &backend{addr: addr}
	}
	return balanceTo(t, backends...)
}

func balanceTo(t *testing.T, backends ...*backend) *balancer {
	t.Helper()
	b, err := newBalancer("127.0.0.1:0", backends...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.close() })
	return b
}

// who connects and returns the name of the backend that answered, "" if hung up on.
func who(t *testing.T, b *balancer) string {
	t.Helper()
	conn, err := net.Dial("tcp", b.addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

func TestTheBalancerStaysWithOneBackend(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	lb := balance(t, a.Addr().String(), b.Addr().String())
	for range 4 {
		require.Equal(t, "a\n", who(t, lb))
	}
}

func TestTheBalancerPassesOverABackendThatIsGone(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	lb := balance(t, a.Addr().String(), b.Addr().String())
	require.NoError(t, a.Close())
	for range 4 {
		require.Equal(t, "b\n", who(t, lb))
	}
}

func TestTheBalancerPassesOverABackendThatIsNotReady(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	var stops atomic.Bool
	ready := func(context.Context) error {
		if stops.Load() {
			return &unreadyError{status: "500 Internal Server Error", body: "stops"}
		}
		return nil
	}
	first := &backend{addr: a.Addr().String(), ready: ready}
	lb := balanceTo(t, first, &backend{addr: b.Addr().String()})
	old, err := net.Dial("tcp", lb.addr())
	require.NoError(t, err)
	defer old.Close() //nolint:errcheck // a test's connection
	require.NoError(t, old.SetDeadline(time.Now().Add(patience)))
	reader := bufio.NewReader(old)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "a\n", line)

	stops.Store(true)
	require.Eventually(t, first.unready.Load, patience, time.Millisecond)
	require.Equal(t, "b\n", who(t, lb))
	_, err = fmt.Fprintln(old, "still here")
	require.NoError(t, err)
	line, err = reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "still here\n", line, "connections that are made stay")
}

func TestABackendIsUnreadyByItsOwnWordOrByLongSilence(t *testing.T) {
	silence := context.DeadlineExceeded
	no := &unreadyError{status: "500 Internal Server Error"}
	for name, tc := range map[string]struct {
		answers []error
		want    []bool
	}{
		"an answer that is not 200 counts at once": {[]error{nil, no, nil}, []bool{false, true, false}},
		"a refused connection counts at once":      {[]error{nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)}, []bool{false, true}},
		"silence counts the third time":            {[]error{nil, silence, silence, silence, nil}, []bool{false, false, false, true, false}},
		"a busy moment must not count":             {[]error{silence, silence, nil, silence, silence, nil}, make([]bool, 6)},
		"silence must not take a word back":        {[]error{no, silence, nil}, []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan error)
				b := &backend{ready: func(context.Context) error { return <-answers }}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go b.watch(ctx)
				for i, answer := range tc.answers {
					answers <- answer
					synctest.Wait()
					require.Equal(t, tc.want[i], b.unready.Load(), "after probe %d", i+1)
				}
			})
		})
	}
}

func TestAProbeTellsAnAnswerFromSilence(t *testing.T) {
	ca, err := newAuthority()
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "stops", http.StatusInternalServerError) }))
	probe := (&Cluster{ca: ca}).probe(server.URL)
	err = probe(t.Context())
	require.ErrorContains(t, err, "500 Internal Server Error stops")
	require.True(t, saysNo(err))
	server.Close()
	require.True(t, saysNo(probe(t.Context())), "nobody listens")

	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hung.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = (&Cluster{ca: ca}).probe(hung.URL)(ctx)
	require.Error(t, err)
	require.False(t, saysNo(err))
}

func TestTheBalancerTriesABackendWhenNoneIsKnownToBeReady(t *testing.T) {
	a := &backend{addr: named(t, "a").Addr().String(), ready: func(context.Context) error { return &unreadyError{body: "starts"} }}
	lb := balanceTo(t, a)
	require.Eventually(t, a.unready.Load, patience, time.Millisecond)
	require.Equal(t, "a\n", who(t, lb))
}

func TestTheBalancerCountsRequestsThatWait(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	to := &backend{addr: server.Listener.Addr().String()}
	lb := balanceTo(t, to)
	answers := make(chan error, 3)
	for range 3 {
		go func() {
			response, err := http.Get("http://" + lb.addr())
			if err == nil {
				err = response.Body.Close()
			}
			answers <- err
		}()
	}
	require.Eventually(t, func() bool { return to.waiting.Load() == 3 }, patience, time.Millisecond)
	close(release)
	for range 3 {
		require.NoError(t, <-answers)
	}
	require.Eventually(t, func() bool { return to.waiting.Load() == 0 }, patience, time.Millisecond)
}

func TestTheBalancerHangsUpWhenNobodyAnswers(t *testing.T) {
	a := named(t, "a")
	lb := balance(t, a.Addr().String())
	require.NoError(t, a.Close())
	require.Empty(t, who(t, lb))
}

func TestTheBalancerCarriesBothWays(t *testing.T) {
	lb := balance(t, named(t, "a").Addr().String())
	conn, err := net.Dial("tcp", lb.addr())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // a test's connection
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprintln(conn, "hello")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	for _, want := range []string{"a\n", "hello\n"} {
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
}

func TestClosingTheBalancerCutsWhatIsOpen(t *testing.T) {
	lb := balance(t, named(t, "a").Addr().String())
	conn, err := net.Dial("tcp", lb.addr())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // a test's connection
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	reader := bufio.NewReader(conn)
	_, err = reader.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, lb.close())
	_, err = reader.ReadString('\n')
	require.Error(t, err)
	_, err = net.Dial("tcp", lb.addr())
	require.Error(t, err)
}
