package devcluster

import (
	"os/exec"
	"runtime"
	"sync"
)

type forkRequest struct {
	cmd    *exec.Cmd
	answer chan<- error
}

// NewForker makes a thread that forks children, and returns the function that has it start one. setup, if any, runs on
// that thread first: it may enter namespaces, which the children then are born in.
//
// The kernel sends a child its parent-death signal when the *thread* that forked it ends, and Go ends a thread when a
// goroutine locked to it returns: forked from just anywhere, a child could be killed in the middle of its work. This
// thread lives as long as the process, unless setup fails.
func NewForker(setup func() error) (start func(*exec.Cmd) error, err error) {
	requests, ready := make(chan forkRequest), make(chan error)
	go func() {
		runtime.LockOSThread()
		if setup != nil {
			if err := setup(); err != nil {
				ready <- err
				return // and the thread ends with what setup made of it
			}
		}
		ready <- nil
		for r := range requests {
			r.answer <- r.cmd.Start()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return func(cmd *exec.Cmd) error {
		answer := make(chan error, 1)
		requests <- forkRequest{cmd: cmd, answer: answer}
		return <-answer
	}, nil
}

// forker is the one thread that forks this process's own components.
var forker = sync.OnceValue(func() func(*exec.Cmd) error {
	start, _ := NewForker(nil) // only setup could fail
	return start
})
