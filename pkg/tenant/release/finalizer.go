package release

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	// memoryLag is how long the informer may be behind our own patch.
	memoryLag = 10 * time.Second
	// rememberedPods is more than end within memoryLag.
	rememberedPods = 8192
)

func hasFinalizer(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, rdma.Finalizer) }

// memoryLags returns how long to wait for the memory if it shows a finalizer that was removed a moment ago. A finalizer
// that is still there afterwards was brought back, by another controller's merge patch that carries the whole list as its
// own memory had it. It has to go again, or the pod could never be deleted; giving back what is gone already does no harm.
func (c *Controller) memoryLags(podUID types.UID) time.Duration {
	value, _ := c.done.Get(podUID)
	removed, ok := value.(time.Time)
	if !ok {
		return 0
	}
	return max(0, memoryLag-c.cfg.Clock.Since(removed))
}

// removeFinalizer removes our entry alone, by its place in the list, and only from this very pod: the tests fail the
// patch if the list or the pod changed meanwhile. Then the pod is read again.
func (c *Controller) removeFinalizer(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	current := pod
	var last error
	for range 3 {
		i := slices.Index(current.Finalizers, rdma.Finalizer)
		if i < 0 {
			return nil
		}
		path := fmt.Sprintf("/metadata/finalizers/%d", i)
		patch, err := json.Marshal([]map[string]any{
			{"op": "test", "path": "/metadata/uid", "value": pod.UID},
			{"op": "test", "path": path, "value": rdma.Finalizer},
			{"op": "remove", "path": path},
		})
		if err != nil {
			return fmt.Errorf("encoding a patch: %w", err)
		}
		last = c.cfg.Client.Patch(ctx, current.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
		switch {
		case last == nil || apierrors.IsNotFound(last):
			return nil
		case !apierrors.IsInvalid(last) && !apierrors.IsConflict(last):
			return fmt.Errorf("removing the finalizer: %w", last)
		}
		fresh := &corev1.Pod{}
		err = c.cfg.Live.Get(ctx, client.ObjectKeyFromObject(pod), fresh)
		if apierrors.IsNotFound(err) || err == nil && fresh.UID != pod.UID {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the pod again: %w", err)
		}
		current = fresh
	}
	return fmt.Errorf("removing the finalizer, after reading the pod again: %w", last)
}
