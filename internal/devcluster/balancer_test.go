package devcluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"
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

func balance(t *testing.T, backends ...string) *balancer {
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
