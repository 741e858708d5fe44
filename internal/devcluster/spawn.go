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

// forker is one thread that forks all children. The kernel sends a child its parent-death signal when the *thread* that
// forked it ends, and Go ends a thread when a goroutine locked to it returns: forked from just anywhere, a child could
// be killed in the middle of its work. This thread lives as long as the process.
var forker = sync.OnceValue(func() chan<- forkRequest {
	requests := make(chan forkRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.answer <- r.cmd.Start()
		}
	}()
	return requests
})

func fork(cmd *exec.Cmd) error {
	answer := make(chan error, 1)
	forker() <- forkRequest{cmd: cmd, answer: answer}
	return <-answer
}
