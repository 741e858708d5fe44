package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// The kubelet's own figures.
const (
	leaseDuration = 40 * time.Second
	leaseRenewal  = 10 * time.Second
)

// keepLeases renews the leases by which the controller manager knows that nodes live, for as long as kwok runs: without
// a kubelet they run out. kwok could do it by itself, but then it also takes them for its licence to act, and a new kwok
// does nothing for the 40 seconds until the dead one's have run out; worse, it drops the pods that it sees before its
// own cache shows the lease that it has just taken, and never looks at them again.
func (c *Cluster) keepLeases(ctx context.Context) error {
	if !c.config.with(Kwok) {
		return nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfigOf(Kwok))
	if err != nil {
		return err
	}
	config.QPS = unlimited
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	c.stopLeases = func() { cancel(); <-done }
	go func() {
		defer close(done)
		for {
			if c.PID(Kwok) != 0 {
				// The API server may be away; the next round comes before anything has run out.
				_ = renewLeases(ctx, client)
			}
			select {
			case <-time.After(leaseRenewal):
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func renewLeases(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}) // from the server's cache
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		errs = append(errs, renewLease(ctx, client, &nodes.Items[i]))
	}
	return errors.Join(errs...)
}

func renewLease(ctx context.Context, client kubernetes.Interface, node *corev1.Node) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &node.Name,
			LeaseDurationSeconds: new(int32(leaseDuration.Seconds())),
			RenewTime:            &metav1.MicroTime{Time: time.Now()},
		},
	}
	patch, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	return err
}
