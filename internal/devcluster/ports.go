package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Ports are taken from below the range from which kernels serve outgoing connections (32768 and up on Linux): a port that
// the kernel names free is soon taken by somebody's client socket, and the child that was told to listen on it fails.
const (
	firstPort = 20000
	lastPort  = 30000
)

// ports hands out free loopback ports. A port is marked by a locked file until close, so that clusters that start at the
// same time, in other processes too, do not get the same one between our look and the child's bind. The lock goes with
// the process.
type ports struct {
	dir   string
	locks []*os.File
}

func newPorts() (*ports, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("devcluster-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of port locks: %w", err)
	}
	return &ports{dir: dir}, nil
}

// free returns a port nobody listens on, reserved for the caller.
func (p *ports) free() (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		lock, err := os.OpenFile(filepath.Join(p.dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, fmt.Errorf("reserve a port: %w", err)
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && listenable(port) {
			p.locks = append(p.locks, lock)
			return port, nil
		}
		_ = lock.Close()
	}
	return 0, errors.New("no free port found")
}

func listenable(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// close gives all reservations back. The files stay: removing a locked file would let two processes lock "the same" one.
func (p *ports) close() error {
	var errs []error
	for _, lock := range p.locks {
		errs = append(errs, lock.Close())
	}
	p.locks = nil
	return errors.Join(errs...)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
