package relay

import (
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// echo answers each line-free message with itself, and ends.
func echo(t *testing.T, listener net.Listener) {
	t.Helper()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		buffer := make([]byte, 5)
		if _, err := io.ReadFull(connection, buffer); err == nil {
			_, _ = connection.Write(buffer)
		}
		_ = connection.Close()
	}
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestServe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	server, front := listen(t, "unix", socket), listen(t, "tcp", "127.0.0.1:0")
	go echo(t, server)
	go Serve(front, "unix", socket)

	for range 3 {
		client, err := net.Dial("tcp", front.Addr().String())
		require.NoError(t, err)
		_, err = client.Write([]byte("hello"))
		require.NoError(t, err)
		answer, err := io.ReadAll(client) // the server's end ends ours
		require.NoError(t, err)
		require.Equal(t, "hello", string(answer))
		require.NoError(t, client.Close())
	}
}

func TestWithoutAServerTheClientIsNotLeftWaiting(t *testing.T) {
	front := listen(t, "tcp", "127.0.0.1:0")
	go Serve(front, "unix", filepath.Join(t.TempDir(), "nobody"))

	client, err := net.Dial("tcp", front.Addr().String())
	require.NoError(t, err)
	answer, err := io.ReadAll(client)
	require.NoError(t, err)
	require.Empty(t, answer)
}
