package devnode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Pool is what the device plugin is to offer of one extended resource: some of the devices may be unhealthy.
type Pool struct {
	Name      string `json:"name"`
	Devices   int    `json:"devices"`
	Unhealthy int    `json:"unhealthy,omitempty"`
}

// SetPools has the device plugin offer these pools, and no others, from now on.
func (n *Node) SetPools(ctx context.Context, pools ...Pool) error {
	if pools == nil {
		pools = []Pool{}
	}
	body, err := json.Marshal(pools)
	if err != nil {
		return err
	}
	return n.askDevicePlugin(ctx, http.MethodPut, bytes.NewReader(body), nil)
}

// WatchedPools says of each pool that the device plugin offers whether a kubelet listens to it. Until one does that was
// started anew, the node's status is its predecessor's, and the kubelet refuses whoever asks for devices.
func (n *Node) WatchedPools(ctx context.Context) (map[string]bool, error) {
	var pools []struct {
		Name    string `json:"name"`
		Watched bool   `json:"watched"`
	}
	if err := n.askDevicePlugin(ctx, http.MethodGet, http.NoBody, &pools); err != nil {
		return nil, err
	}
	watched := map[string]bool{}
	for _, pool := range pools {
		watched[pool.Name] = pool.Watched
	}
	return watched, nil
}

// devicePluginReady says whether the device plugin can be told what to offer.
func (n *Node) devicePluginReady(ctx context.Context) error {
	return n.askDevicePlugin(ctx, http.MethodGet, http.NoBody, nil)
}

// askDevicePlugin decodes the answer into a value, unless that is nil.
func (n *Node) askDevicePlugin(ctx context.Context, method string, body io.Reader, answer any) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.path(devicePluginSocket))
		}}}
	request, err := http.NewRequestWithContext(ctx, method, "http://deviceplugin/pools", body)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return fmt.Errorf("device plugin: %s: %s", response.Status, text)
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("device plugin: %w", err)
	}
	return nil
}
