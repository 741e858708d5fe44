package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	kubeletSocket   = "kubelet.sock"
	registerTimeout = 5 * time.Second
	// environmentPrefix and the resource's name in capitals name the variable with a container's devices.
	environmentPrefix = "DEVICES_"
)

// plugin serves one pool to the kubelet.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	name   string
	state  *state
	dir    string
	server *grpc.Server
}

// startPlugin serves a pool on a socket of its own and registers it. The caller stops it.
func startPlugin(ctx context.Context, dir, name string, s *state) (*plugin, error) {
	p := &plugin{name: name, state: s, dir: dir, server: grpc.NewServer()}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	socket := filepath.Join(dir, p.endpoint())
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err // left over from a life that was killed
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", name, err)
	}
	go func() {
		if err := p.server.Serve(listener); err != nil {
			slog.ErrorContext(ctx, "serving ends", "pool", name, "err", err)
		}
	}()
	if err := p.register(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("pool %s: registering: %w", name, err)
	}
	slog.InfoContext(ctx, "registered", "pool", name)
	return p, nil
}

// stop ends the service, the kubelet's stream included, and removes the socket.
func (p *plugin) stop() { p.server.Stop() }

func (p *plugin) endpoint() string { return strings.ReplaceAll(p.name, "/", "_") + ".sock" }

func (p *plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+filepath.Join(p.dir, kubeletSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close() //nolint:errcheck // only one request was made on it
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: p.endpoint(), ResourceName: p.name, Options: &pluginapi.DevicePluginOptions{},
	})
	return err
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch implements pluginapi.DevicePluginServer. The stream ends when the pool goes away.
func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	defer p.state.watch(p.name)()
	for {
		now, found, changed := p.state.get(p.name)
		if !found {
			return nil
		}
		if err := stream.Send(now.list()); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Allocate implements pluginapi.DevicePluginServer. A container learns its devices from a variable of its environment.
func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	now, found, _ := p.state.get(p.name)
	if !found {
		return nil, status.Errorf(codes.NotFound, "pool %s is gone", p.name)
	}
	known := map[string]bool{}
	for _, device := range now.list().GetDevices() {
		known[device.GetID()] = true
	}
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		for _, id := range container.GetDevicesIds() {
			if !known[id] {
				return nil, status.Errorf(codes.NotFound, "pool %s has no device %q", p.name, id)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{environmentName(p.name): strings.Join(container.GetDevicesIds(), ",")},
		})
	}
	return response, nil
}

// environmentName is the variable for a pool: DEVICES_EXAMPLE_COM_VF for example.com/vf.
func environmentName(resource string) string {
	return environmentPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, resource)
}
