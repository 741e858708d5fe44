// Package relay forwards connections between a TCP address and a Unix socket. Loopback addresses are different ones in
// each network namespace, while a Unix socket on a shared file system is the same in all.
package relay

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const dialTimeout = 5 * time.Second

// Serve forwards each connection of the listener to an address, until the listener is closed.
func Serve(listener net.Listener, network, address string) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go forward(client, network, address)
		}
	}
}

func forward(client net.Conn, network, address string) {
	defer client.Close() //nolint:errcheck // whatever happened, it is over
	server, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		wg.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.Close() // the other direction ends too: HTTP has no use for half a connection
		})
	}
	wg.Wait()
}
