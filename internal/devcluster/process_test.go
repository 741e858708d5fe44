package devcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const patience = 20 * time.Second

// child is a process of the test binary in one of its roles.
func child(t *testing.T, dir, name, mode string, env ...string) *process {
	t.Helper()
	for _, sub := range []string{"logs", "pids"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	p := newProcess(component{
		name: name, path: self, env: append([]string{childMode + "=" + mode, "NAME=" + name}, env...),
	}, dir, patience)
	p.ready = func(context.Context) error {
		log, err := os.ReadFile(p.logPath)
		if up := strings.Count(string(log), childIsUp); err == nil && up < p.startCount() {
			return fmt.Errorf("%d of %d are up", up, p.startCount())
		}
		return err
	}
	t.Cleanup(func() { _ = p.stop() })
	return p
}

func TestAProcessThatDiesIsStartedAgain(t *testing.T) {
	p := child(t, t.TempDir(), "c", "run")
	require.NoError(t, p.start(t.Context()))
	first := p.pid()
	require.NotZero(t, first)

	require.NoError(t, p.kill())
	require.ErrorIs(t, syscall.Kill(first, 0), syscall.ESRCH, "kill returns when the process is gone")
	require.NoError(t, p.await(t.Context(), nil))
	require.NotEqual(t, first, p.pid())
	require.Equal(t, 2, p.startCount())
}

func TestThePidFileNamesTheLivingProcess(t *testing.T) {
	p := child(t, t.TempDir(), "c", "run")
	require.NoError(t, p.start(t.Context()))
	data, err := os.ReadFile(p.pidPath)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(p.pid()), strings.TrimSpace(string(data)))
	require.NoError(t, p.stop())
	require.NoFileExists(t, p.pidPath)
}

func TestAStoppedProcessStaysAwayUntilItIsStarted(t *testing.T) {
	p := child(t, t.TempDir(), "c", "run")
	require.NoError(t, p.start(t.Context()))
	require.NoError(t, p.stop())
	require.Zero(t, p.pid())
	require.ErrorIs(t, p.kill(), ErrNotRunning)
	require.NoError(t, p.stop(), "stopping twice is fine")
	require.NoError(t, p.start(t.Context()))
	require.NotZero(t, p.pid())
	require.Error(t, p.start(t.Context()), "it runs already")
}

func TestAProcessThatFailsAtStartIsNotTriedAgainAndItsLogIsShown(t *testing.T) {
	p := child(t, t.TempDir(), "c", "fail")
	p.ready = func(context.Context) error { return io.EOF }
	err := p.start(t.Context())
	require.ErrorContains(t, err, "ended before it was ready")
	require.ErrorContains(t, err, "unknown flag: --nonsense")
	require.Equal(t, 1, p.startCount())
	require.Zero(t, p.pid())
}

func TestAStartThatTakesTooLongLeavesNothing(t *testing.T) {
	p := child(t, t.TempDir(), "c", "run")
	p.ready = func(context.Context) error { return fmt.Errorf("still loading") }
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, fmt.Errorf("gave up"))
	defer cancel()
	err := p.start(ctx)
	require.ErrorContains(t, err, "gave up")
	require.ErrorContains(t, err, "still loading")
	require.Zero(t, p.pid())
}

func TestAStubbornProcessIsKilledAfterItsGrace(t *testing.T) {
	p := child(t, t.TempDir(), "c", "stubborn")
	p.grace = 100 * time.Millisecond
	require.NoError(t, p.start(t.Context()))
	require.ErrorContains(t, p.stop(), "was killed")
	require.Zero(t, p.pid())
}

func TestAFrozenProcessStillStopsInOrder(t *testing.T) {
	dir := t.TempDir()
	stopped := filepath.Join(dir, "stopped")
	p := child(t, dir, "c", "run", "STOPPED="+stopped)
	require.NoError(t, p.start(t.Context()))
	_, err := p.signal(syscall.SIGSTOP)
	require.NoError(t, err)
	require.NoError(t, p.stop())
	require.FileExists(t, stopped)
}

func TestTheRestartHookRunsOnceTheSuccessorIsReady(t *testing.T) {
	ports, err := newPorts()
	require.NoError(t, err)
	port, err := ports.free()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ports.close()) })

	p := child(t, t.TempDir(), "c", "serve", "ADDR="+loopback(port))
	p.ready = func(context.Context) error {
		response, err := http.Get("http://" + loopback(port))
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	restarted := make(chan struct{}, 1)
	p.afterRestart = func() { restarted <- struct{}{} }
	require.NoError(t, p.start(t.Context()))
	require.NoError(t, p.kill())
	select {
	case <-restarted:
		require.NoError(t, p.ready(t.Context()))
	case <-time.After(patience):
		require.Fail(t, "no word of the restart")
	}
}

func TestAClusterStopsItsProcessesInReverseOrder(t *testing.T) {
	dir := t.TempDir()
	stopped := filepath.Join(dir, "stopped")
	c := &Cluster{config: Config{Dir: dir, StopGrace: patience, Log: io.Discard}}
	for _, name := range []string{"first", "second", "third"} {
		p := child(t, dir, name, "run", "STOPPED="+stopped)
		require.NoError(t, p.start(t.Context()))
		c.processes = append(c.processes, p)
	}
	require.NoError(t, c.stopAll())
	order, err := os.ReadFile(stopped)
	require.NoError(t, err)
	require.Equal(t, "third\nsecond\nfirst\n", string(order))
}

func TestAFailedStartStopsWhatRan(t *testing.T) {
	dir := t.TempDir()
	good, bad := child(t, dir, "good", "run"), child(t, dir, "bad", "fail")
	bad.ready = func(context.Context) error { return io.EOF }
	c := &Cluster{config: Config{Dir: dir, StopGrace: patience, StartTimeout: patience, Log: io.Discard}}
	err := c.run(t.Context(), good.component, bad.component)
	require.ErrorContains(t, err, "start bad")
	require.NoError(t, c.stopAll())
	for _, name := range c.Components() {
		require.Zero(t, c.PID(name), name)
	}
}

func TestNamingAnUnknownComponentListsTheKnown(t *testing.T) {
	c := &Cluster{processes: []*process{{component: component{name: Etcd}}, {component: component{name: Kwok}}}}
	require.ErrorContains(t, c.Kill("etc"), `no component "etc"; there are etcd, kwok`)
}

func TestAComponentThatDoesNotSayWhenItIsReadyIsRefused(t *testing.T) {
	c := &Cluster{}
	err := c.Run(t.Context(), Component{Name: "deviceplugin", Path: "deviceplugin"})
	require.ErrorContains(t, err, "component deviceplugin does not say when it is ready")
	require.Empty(t, c.Components())
}
