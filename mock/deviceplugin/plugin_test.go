package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const patience = 20 * time.Second

// kubelet is the part of one that plugins register with.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	dir    string
	server *grpc.Server
	asked  chan *pluginapi.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.asked <- request
	return &pluginapi.Empty{}, nil
}

func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	require.NoError(t, err)
	k := &kubelet{dir: dir, server: grpc.NewServer(), asked: make(chan *pluginapi.RegisterRequest, 10)}
	pluginapi.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
	return k
}

// registered waits for the next plugin and returns a client of it.
func (k *kubelet) registered(t *testing.T) (*pluginapi.RegisterRequest, pluginapi.DevicePluginClient) {
	t.Helper()
	select {
	case request := <-k.asked:
		connection, err := grpc.NewClient("unix://"+filepath.Join(k.dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = connection.Close() })
		return request, pluginapi.NewDevicePluginClient(connection)
	case <-time.After(patience):
		t.Fatal("nobody registered")
		return nil, nil
	}
}

// start runs plugins for the pools until the test ends.
func start(t *testing.T, dir string, pools ...pool) *state {
	t.Helper()
	s := newState(pools)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&fleet{dir: dir, state: s}).run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return s
}

// shortDir is one whose sockets have addresses of less than 108 bytes, however long the test's name is.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func health(t *testing.T, stream pluginapi.DevicePlugin_ListAndWatchClient) map[string]string {
	t.Helper()
	list, err := stream.Recv()
	require.NoError(t, err)
	return healthOf(list)
}

func healthOf(list *pluginapi.ListAndWatchResponse) map[string]string {
	all := map[string]string{}
	for _, device := range list.GetDevices() {
		all[device.GetID()] = device.GetHealth()
	}
	return all
}

// firstList is what the next plugin that registers offers.
func firstList(t *testing.T, k *kubelet) (map[string]string, error) {
	t.Helper()
	_, client := k.registered(t)
	stream, err := client.ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	list, err := stream.Recv()
	return healthOf(list), err
}

func TestTheKubeletHearsOfEveryChange(t *testing.T) {
	dir := shortDir(t)
	k := startKubelet(t, dir)
	s := start(t, dir, pool{Name: "a.com/vf", Devices: 2})
	request, client := k.registered(t)
	assert.Equal(t, "a.com/vf", request.GetResourceName())
	assert.Equal(t, pluginapi.Version, request.GetVersion())
	stream, err := client.ListAndWatch(t.Context(), &pluginapi.Empty{})
	require.NoError(t, err)

	assert.Equal(t, map[string]string{"vf-0": "Healthy", "vf-1": "Healthy"}, health(t, stream))
	s.set([]pool{{Name: "a.com/vf", Devices: 3, Unhealthy: 1}})
	assert.Equal(t, map[string]string{"vf-0": "Healthy", "vf-1": "Healthy", "vf-2": "Unhealthy"}, health(t, stream))
	s.set([]pool{{Name: "a.com/vf", Devices: 1}})
	assert.Equal(t, map[string]string{"vf-0": "Healthy"}, health(t, stream))

	s.set(nil)
	_, err = stream.Recv()
	require.Error(t, err, "a pool that is gone must not be offered any more")
}

// watched asks over the control interface which pools a kubelet listens to.
func watched(t *testing.T, s *state) map[string]bool {
	t.Helper()
	recorder := httptest.NewRecorder()
	controlHandler(s).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/pools", http.NoBody))
	var all []struct {
		Name    string
		Watched *bool
	}
	require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &all))
	got := map[string]bool{}
	for _, p := range all {
		require.NotNil(t, p.Watched, "it is said of each pool")
		got[p.Name] = *p.Watched
	}
	return got
}

func TestAPoolIsWatchedWhileItsKubeletLives(t *testing.T) {
	dir := shortDir(t)
	k := startKubelet(t, dir)
	s := start(t, dir, pool{Name: "a.com/vf", Devices: 1})
	_, client := k.registered(t)
	s.set([]pool{{Name: "a.com/vf", Devices: 1}, {Name: "b.com/pf", Devices: 1}})
	assert.Equal(t, map[string]bool{"a.com/vf": false, "b.com/pf": false}, watched(t, s), "to be registered is not enough")

	ctx, die := context.WithCancel(t.Context())
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	require.NoError(t, err)
	health(t, stream)
	assert.Equal(t, map[string]bool{"a.com/vf": true, "b.com/pf": false}, watched(t, s))
	die()
	require.Eventually(t, func() bool { return !watched(t, s)["a.com/vf"] }, patience, time.Millisecond)
}

func TestAnOldStreamsEndMustNotEndANewOnes(t *testing.T) {
	s := newState([]pool{{Name: "a.com/vf", Devices: 1}})
	old := s.watch("a.com/vf")
	s.watch("a.com/vf")
	old()
	assert.Equal(t, map[string]bool{"a.com/vf": true}, watched(t, s))
}

func TestANewPoolIsRegistered(t *testing.T) {
	dir := shortDir(t)
	k := startKubelet(t, dir)
	s := start(t, dir)
	s.set([]pool{{Name: "b.com/pf", Devices: 1}})
	request, _ := k.registered(t)
	assert.Equal(t, "b.com/pf", request.GetResourceName())
}

func TestAfterARestartOfTheKubeletAllRegisterAgain(t *testing.T) {
	dir := shortDir(t)
	first := startKubelet(t, dir)
	start(t, dir, pool{Name: "a.com/vf", Devices: 1})
	first.registered(t)
	first.server.Stop()
	// A kubelet that starts removes all sockets (pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go).
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a.com_vf.sock")))

	second := startKubelet(t, dir)
	list, err := firstList(t, second)
	// Another try for the first one may have found the second before the news of it came, by which all register again: a
	// kubelet goes by the last registration.
	if err != nil {
		list, err = firstList(t, second)
	}
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"vf-0": "Healthy"}, list)
}

func TestAPluginThatComesBeforeTheKubeletWaitsForIt(t *testing.T) {
	dir := shortDir(t)
	start(t, dir, pool{Name: "a.com/vf", Devices: 1})
	request, _ := startKubelet(t, dir).registered(t)
	assert.Equal(t, "a.com/vf", request.GetResourceName())
}

func allocate(p *plugin, containers ...[]string) (*pluginapi.AllocateResponse, error) {
	request := &pluginapi.AllocateRequest{}
	for _, ids := range containers {
		request.ContainerRequests = append(request.ContainerRequests, &pluginapi.ContainerAllocateRequest{DevicesIds: ids})
	}
	return p.Allocate(context.Background(), request)
}

func TestAllocate(t *testing.T) {
	p := &plugin{name: "a.com/my-vf.1", state: newState([]pool{{Name: "a.com/my-vf.1", Devices: 2}})}
	answer, err := allocate(p, []string{"my-vf.1-0", "my-vf.1-1"}, []string{"my-vf.1-1"})
	require.NoError(t, err)
	require.Len(t, answer.GetContainerResponses(), 2)
	assert.Equal(t, map[string]string{"DEVICES_A_COM_MY_VF_1": "my-vf.1-0,my-vf.1-1"}, answer.GetContainerResponses()[0].GetEnvs())

	_, err = allocate(p, []string{"my-vf.1-2"})
	assert.Equal(t, codes.NotFound, status.Code(err), "a device that is not there must not be given")
	p.state.set(nil)
	_, err = allocate(p, []string{"my-vf.1-0"})
	assert.Equal(t, codes.NotFound, status.Code(err), "a pool that is gone must not be given from")
}

func TestPoolsOfTheCommandLine(t *testing.T) {
	got, err := parsePools([]string{"a.com/vf=4", "b.com/pf=0"})
	require.NoError(t, err)
	assert.Equal(t, []pool{{Name: "a.com/vf", Devices: 4}, {Name: "b.com/pf"}}, got)

	for name, tc := range map[string]struct {
		items []string
		want  string
	}{
		"a count must be there":                {[]string{"a.com/vf"}, `"a.com/vf" must be NAME=COUNT`},
		"a count must be a number":             {[]string{"a.com/vf=x"}, `"a.com/vf=x" must be NAME=COUNT`},
		"a count must not be negative":         {[]string{"a.com/vf=-1"}, "-1 must be from 0"},
		"a count must not be a flood":          {[]string{"a.com/vf=10001"}, "10001 must be from 0 to 10000"},
		"a name must be an extended resource":  {[]string{"vf=1"}, `"vf" must be an extended resource`},
		"a name must not be there twice":       {[]string{"a.com/vf=1", "a.com/vf=2"}, "twice"},
		"a name must not end with its domain":  {[]string{"a.com/=1"}, `"a.com/" must be an extended resource`},
		"a name must not begin with the slash": {[]string{"/vf=1"}, `"/vf" must be an extended resource`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsePools(tc.items)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestControl(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		code int
		want []pool
	}{
		"pools are replaced":                      {`[{"name":"b.com/pf","devices":3,"unhealthy":1}]`, 204, []pool{{"b.com/pf", 3, 1}}},
		"all can be taken away":                   {`[]`, 204, nil},
		"null must not take them away":            {`null`, 400, []pool{{"a.com/vf", 1, 0}}},
		"a misspelt field must not be overlooked": {`[{"name":"b.com/pf","device":3}]`, 400, []pool{{"a.com/vf", 1, 0}}},
		"more unhealthy than there are":           {`[{"name":"b.com/pf","devices":3,"unhealthy":4}]`, 400, []pool{{"a.com/vf", 1, 0}}},
		"half a list":                             {`[{"name":`, 400, []pool{{"a.com/vf", 1, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState([]pool{{Name: "a.com/vf", Devices: 1}})
			recorder := httptest.NewRecorder()
			controlHandler(s).ServeHTTP(recorder, httptest.NewRequest(http.MethodPut, "/pools", strings.NewReader(tc.body)))
			assert.Equal(t, tc.code, recorder.Code, recorder.Body.String())
			got, _ := s.all()
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestTheProgramRefusesWhatItCannotDo(t *testing.T) {
	for name, args := range map[string][]string{
		"arguments without a flag":      {"a.com/vf=1"},
		"a directory that is not there": {"-dir", "/nonexistent/device-plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := run(ctx, args)
			require.Error(t, err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}
