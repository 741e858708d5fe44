package devcluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Upgrade replaces a webhook replica or tenant-scheduler by the program of the same name in another directory, as a
// rolling update does. A webhook replica goes before its successor comes: the others serve meanwhile. tenant-scheduler's
// successor is ready, and stands by, before it goes.
func (c *Cluster) Upgrade(ctx context.Context, name, binDir string) error {
	old, err := c.process(name)
	if err != nil {
		return err
	}
	next := old.component
	next.path = filepath.Join(binDir, filepath.Base(old.path))
	if name != TenantScheduler {
		return errors.Join(c.remove(name), c.run(ctx, next))
	}
	port, err := c.ports.free()
	if err != nil {
		return err
	}
	const flag = "--secure-port="
	next.args = slices.Clone(old.args)
	at := slices.IndexFunc(next.args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if at < 0 {
		return fmt.Errorf("%s has no %s", name, flag)
	}
	next.args[at] = flag + strconv.Itoa(port)
	next.ready = c.probe("https://" + loopback(port) + "/readyz")

	successor := newProcess(next, c.config.Dir, c.config.StopGrace)
	successor.pidPath += ".next" // the predecessor removes its own when it ends
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	c.progressf("starting another %s", name)
	if err := successor.start(ctx); err != nil {
		return err
	}
	c.progressf("stopping the first %s", name)
	err = c.remove(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = append(c.processes, successor)
	c.port.tenantScheduler = port
	return err
}
