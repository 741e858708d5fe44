package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/internal/devcluster"
)

const (
	jobControllerUser = "system:serviceaccount:kube-system:job-controller"
	jobPods           = 500
)

// burst creates a Job whose pods are all wanted at once.
func (w *world) burst(name string) {
	w.t.Helper()
	job := &batchv1.Job{}
	require.NoError(w.t, yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {name: %s}
spec:
  parallelism: %[2]d
  completions: %[2]d
  template:
    metadata: {annotations: {rdma.vf: "1"}}
    spec: {restartPolicy: Never, containers: [{name: app, image: app}]}`, name, jobPods), job))
	_, err := w.client.BatchV1().Jobs(tenantA).Create(w.t.Context(), job, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// jobHas waits until so many pods of the Job exist.
func (w *world) jobHas(name string, count int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d pods of Job %s exist", count, name), func(ctx context.Context) error {
		list, err := w.client.CoreV1().Pods(tenantA).List(ctx, metav1.ListOptions{ResourceVersion: "0",
			LabelSelector: labels.Set{batchv1.JobNameLabel: name}.String()})
		if err == nil && len(list.Items) < count {
			err = fmt.Errorf("%d exist", len(list.Items))
		}
		return err
	})
}

// jobCreates counts the job controller's creations of pods in the audit log.
func (w *world) jobCreates() (made, failed int) {
	w.t.Helper()
	for _, writes := range w.writesBy(jobControllerUser) {
		for _, write := range writes {
			if code, ok := strings.CutPrefix(write, "create pods "); ok {
				if code == "201" {
					made++
				} else {
					failed++
				}
			}
		}
	}
	return made, failed
}

// jobCreated is jobCreates once there are so many pods: a line may come after what it is about shows.
func (w *world) jobCreated(count int) (made, failed int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the audit log has %d creations", count), func(context.Context) error {
		if made, failed = w.jobCreates(); made < count {
			return fmt.Errorf("%d pods created, %d creations failed", made, failed)
		}
		return nil
	})
	return made, failed
}

// busy waits until a replica works, and returns which.
func (w *world) busy() int {
	w.t.Helper()
	busy := 0
	w.eventually("a replica works", func(context.Context) error {
		for replica := range 2 {
			if w.WaitingReviews(replica) > 0 {
				busy = replica
				return nil
			}
		}
		return fmt.Errorf("none does")
	})
	return busy
}

// TestAReplicaEndsInTheMiddleOfABurst: cases W54, W59, W60 of docs/cases.md.
func TestAReplicaEndsInTheMiddleOfABurst(t *testing.T) {
	w := newWorld(t, devcluster.Config{AuditLog: true, Without: []string{devcluster.TenantScheduler},
		Nodes: []devcluster.Node{{Name: "node-1", Extended: map[string]string{string(vfPool): "500"}}}})

	t.Run("stopped with SIGTERM: no creation fails", func(t *testing.T) {
		w := w.in(t)
		w.burst("stopped")
		w.jobHas("stopped", jobPods/5)
		replica := w.busy()
		require.NoError(t, w.Signal(devcluster.WebhookReplica(replica), syscall.SIGTERM))
		w.jobHas("stopped", jobPods)
		made, failed := w.jobCreated(jobPods)
		t.Logf("%d pods created, %d creations failed", made, failed)
		require.Equal(t, jobPods, made)
		require.Zero(t, failed)
		w.eventually("it was started again in the middle", func(context.Context) error {
			if starts := w.Starts(devcluster.WebhookReplica(replica)); starts != 2 {
				return fmt.Errorf("%d starts", starts)
			}
			return nil
		})
		require.NoError(t, w.WaitReady(t.Context(), devcluster.WebhookReplica(replica)))
	})

	t.Run("killed with SIGKILL: what fails was in flight, and all pods exist in the end", func(t *testing.T) {
		w := w.in(t)
		made, before := w.jobCreates()
		w.burst("killed")
		w.jobHas("killed", jobPods/5)
		replica := w.busy()
		name := devcluster.WebhookReplica(replica)
		// Frozen first, so that the reviews in flight can be counted.
		require.NoError(t, w.Signal(name, syscall.SIGSTOP))
		inFlight := w.steady(func() int { return w.WaitingReviews(replica) })
		require.NoError(t, w.Kill(name))
		w.jobHas("killed", jobPods)
		_, failed := w.jobCreated(made + jobPods)
		t.Logf("%d reviews in flight at the kill, %d creations failed", inFlight, failed-before)
		require.NotZero(t, inFlight)
		require.LessOrEqual(t, failed-before, inFlight)
	})
}

// steady returns a number once it has not changed for half a second.
func (w *world) steady(number func() int) int {
	w.t.Helper()
	last, since := number(), time.Now()
	w.eventually("the number is steady", func(context.Context) error {
		if n := number(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < 500*time.Millisecond {
			return fmt.Errorf("it is %d since %v", last, time.Since(since))
		}
		return nil
	})
	return last
}
