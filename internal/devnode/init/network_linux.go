package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"tenant.network/tenant-webhook/internal/devnode/relay"
)

// apiSocket is the host's end of the way to the API server.
const apiSocket = "/run/apiserver.sock"

// nodeAddress is the node's, from the block for documentation (RFC 5737): nobody else has it, and nobody can reach it.
const nodeAddress = "192.0.2.1/24"

// network brings the loopback up and gives the node an address; the kubelet wants one that is no loopback.
func network() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "node0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("kernel feature bridge: %w", err)
	}
	address, err := netlink.ParseAddr(nodeAddress)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(bridge, address); err != nil {
		return fmt.Errorf("address %s: %w", nodeAddress, err)
	}
	return netlink.LinkSetUp(bridge)
}

// probeNetwork tries what the CNI plugins do.
func probeNetwork() error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}}); err != nil {
		return fmt.Errorf("kernel feature bridge: %w", err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe1"}, PeerName: "probe2"}); err != nil {
		return fmt.Errorf("kernel feature veth: %w", err)
	}
	return nil
}

// serveAPI makes the API server's loopback address lead to it in here too.
func serveAPI(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("-api-server: %w", err)
	}
	go relay.Serve(listener, "unix", apiSocket)
	return nil
}
