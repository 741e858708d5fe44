package engine

import (
	"context"
	"sync"
)

// keyLocks is one lock per key, kept only while somebody holds or wants it.
type keyLocks struct {
	mu    sync.Mutex
	locks map[key]*keyLock
}

// keyLock is held by whoever put the token into its channel.
type keyLock struct {
	token chan struct{}
	users int // guarded by keyLocks.mu
}

// lock waits for the key or for the end of the context. The caller calls unlock once.
func (l *keyLocks) lock(ctx context.Context, k key) (unlock func(), err error) {
	l.mu.Lock()
	lock, ok := l.locks[k]
	if !ok {
		if l.locks == nil {
			l.locks = map[key]*keyLock{}
		}
		lock = &keyLock{token: make(chan struct{}, 1)}
		l.locks[k] = lock
	}
	lock.users++
	l.mu.Unlock()

	select {
	case lock.token <- struct{}{}:
		return func() {
			<-lock.token
			l.leave(k, lock)
		}, nil
	case <-ctx.Done():
		l.leave(k, lock)
		return nil, ctx.Err()
	}
}

// leave forgets the lock with its last user; a later one makes a new lock, which nobody can hold the old one of.
func (l *keyLocks) leave(k key, lock *keyLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock.users--
	if lock.users == 0 {
		delete(l.locks, k)
	}
}
