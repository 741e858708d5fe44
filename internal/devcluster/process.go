package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// settled is how long a child has to live for its next restart to be prompt again.
	settled      = 10 * time.Second
	pollInterval = 50 * time.Millisecond
	logTail      = 2048
)

// ErrNotRunning says that there is no process to signal: it has died, and its successor has not been started yet.
var ErrNotRunning = errors.New("not running")

// component is what to run.
type component struct {
	name string
	path string
	args []string
	env  []string // added to this process's own

	// fork starts the child. Nil: fork, on the thread that lives as long as this process.
	fork func(*exec.Cmd) error
	// ready is asked again and again until it returns nil.
	ready func(ctx context.Context) error
	// afterRestart, if any, runs when a successor is ready.
	afterRestart func()
}

// process keeps a component running: it is started again when it dies, until stop.
type process struct {
	component
	logPath, pidPath string
	grace            time.Duration

	mu     sync.Mutex
	cmd    *exec.Cmd     // the child; nil while there is none; guarded by mu
	exited chan struct{} // closed when that child is gone; guarded by mu
	starts int           // guarded by mu
	quit   func()        // ends the supervisor; nil while it does not run; guarded by mu
	done   chan struct{} // closed when the supervisor has ended; guarded by mu
}

func newProcess(c component, dir string, grace time.Duration) *process {
	return &process{
		component: c, grace: grace,
		logPath: filepath.Join(dir, "logs", c.name+".log"),
		pidPath: filepath.Join(dir, "pids", c.name),
	}
}

// start runs the component and returns when it is ready. A child that ends before it was ready once is a failure and not
// tried again: at this point it is a wrong flag or a missing file, and the log's end says which. After a failure nothing
// runs.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	if p.quit != nil {
		p.mu.Unlock()
		return fmt.Errorf("%s is running already", p.name)
	}
	if err := p.spawn(); err != nil {
		p.mu.Unlock()
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	// The supervisor outlives ctx, which only bounds the start.
	supervise, quit := context.WithCancel(context.WithoutCancel(ctx))
	p.quit, p.done = quit, make(chan struct{})
	first, done := p.exited, p.done
	p.mu.Unlock()

	isReady := make(chan struct{})
	go p.supervise(supervise, isReady, done)
	if err := p.await(ctx, first); err != nil {
		var tail string
		if !errors.Is(ctx.Err(), context.Canceled) { // whoever cancelled is not curious
			tail = p.tail()
		}
		return errors.Join(fmt.Errorf("start %s: %w%s", p.name, err, tail), p.stop())
	}
	close(isReady)
	return nil
}

// await returns when the component is ready, ctx is over, or gone is closed.
func (p *process) await(ctx context.Context, gone <-chan struct{}) error {
	last := ErrNotRunning
	for {
		if p.pid() != 0 {
			if last = p.ready(ctx); last == nil {
				return nil
			}
		}
		select {
		case <-gone:
			return errors.New("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (last: %w)", context.Cause(ctx), last)
		case <-time.After(pollInterval):
		}
	}
}

// supervise replaces children that die, once the first was ready.
func (p *process) supervise(ctx context.Context, isReady <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	select {
	case <-isReady:
	case <-ctx.Done():
		return
	}
	backoff := minBackoff
	for {
		begun := time.Now()
		if exited := p.current(); exited != nil {
			select {
			case <-exited:
			case <-ctx.Done():
				return
			}
		}
		if time.Since(begun) > settled {
			backoff = minBackoff
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return
		}
		backoff = min(2*backoff, maxBackoff)
		p.respawn(ctx)
		if p.afterRestart != nil {
			go p.reportRestart(ctx)
		}
	}
}

// reportRestart runs the hook once the successor is ready, if it gets that far. It ends with the supervisor.
func (p *process) reportRestart(ctx context.Context) {
	if exited := p.current(); exited != nil && p.await(ctx, exited) == nil {
		p.afterRestart()
	}
}

// respawn starts a successor, unless stop came first. A failure to fork is retried like a death.
func (p *process) respawn(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil {
		_ = p.spawn()
	}
}

func (p *process) current() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// spawn forks a child. The caller holds mu.
func (p *process) spawn() error {
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has its own copy; nothing was written through this one
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	start := p.fork
	if start == nil {
		start = forker()
	}
	if err := start(cmd); err != nil {
		p.exited = nil
		return err
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	p.starts++
	go p.reap(cmd, exited)
	if err := os.WriteFile(p.pidPath, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return nil
}

// reap waits for a child's end. How it ended is in its log.
func (p *process) reap(cmd *exec.Cmd, exited chan<- struct{}) {
	_ = cmd.Wait()
	p.mu.Lock()
	p.cmd = nil
	_ = os.Remove(p.pidPath)
	p.mu.Unlock()
	close(exited)
}

// signal sends to the child and returns what is closed when that child is gone. Without a child it is an error.
func (p *process) signal(sig syscall.Signal) (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil, fmt.Errorf("%s is %w", p.name, ErrNotRunning)
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("signal %s: %w", p.name, err)
	}
	return p.exited, nil
}

// crash ends the component at once, as a power cut does, and for good: no successor starts. Crashing what does not run is
// fine.
func (p *process) crash() {
	p.mu.Lock()
	quit, done := p.quit, p.done
	p.quit = nil
	if quit != nil {
		quit() // under mu: no respawn comes after this
	}
	exited := p.exited
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // an error means that it is gone
	}
	p.mu.Unlock()
	if quit == nil {
		return
	}
	<-done
	if exited != nil {
		<-exited
	}
}

// kill ends the child at once and returns when it is gone; its successor starts a moment later.
func (p *process) kill() error {
	exited, err := p.signal(syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-exited
	return nil
}

// stop ends the component for good: SIGTERM, and SIGKILL to what is still there after the grace, which is an error.
// Stopping what does not run is fine.
func (p *process) stop() error {
	p.mu.Lock()
	quit, done := p.quit, p.done
	p.quit = nil
	if quit != nil {
		quit() // under mu: no respawn comes after this
	}
	exited, running := p.exited, p.cmd != nil
	p.mu.Unlock()
	if quit == nil {
		return nil
	}
	<-done
	if !running {
		return nil
	}
	// A frozen child (Signal SIGSTOP) takes SIGTERM only when it goes on. Errors mean that it is gone.
	_, _ = p.signal(syscall.SIGTERM)
	_, _ = p.signal(syscall.SIGCONT)
	select {
	case <-exited:
		return nil
	case <-time.After(p.grace):
	}
	_, _ = p.signal(syscall.SIGKILL)
	<-exited
	return fmt.Errorf("%s did not end within %s of SIGTERM and was killed", p.name, p.grace)
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) startCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// tail is the end of the log, for error messages.
func (p *process) tail() string {
	data, err := os.ReadFile(p.logPath)
	if err != nil || len(data) == 0 {
		return ""
	}
	if len(data) > logTail {
		data = data[len(data)-logTail:]
	}
	return fmt.Sprintf("\n--- end of %s\n%s", p.logPath, strings.TrimSpace(string(data)))
}
