package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// node is one of the cluster's, with what was taken from it. One thing at a time is done to a node.
type node struct {
	devcluster.Node
	notReady, cordoned, resized, gone bool
}

func (n *node) touched() bool { return n.notReady || n.cordoned || n.resized || n.gone }

// full are the devices that the node was made with.
func (n *node) full() map[string]int {
	devices := map[string]int{}
	for pool, text := range n.Extended {
		if count, err := strconv.Atoi(text); err == nil {
			devices[pool] = count
		}
	}
	return devices
}

const notReadyAnnotation = "devcluster/not-ready"

// takeNode draws a node to which nothing is done at present; nil when that is a quarter of them.
func (d *driver) takeNode() *node {
	var whole []*node
	for _, n := range d.nodes {
		if !n.touched() {
			whole = append(whole, n)
		}
	}
	if len(whole) <= len(d.nodes)*3/4 {
		return nil
	}
	return whole[d.rng.IntN(len(whole))]
}

func (d *driver) flapNode(ctx context.Context) bool {
	n := d.takeNode()
	if n == nil {
		return false
	}
	n.notReady = true
	d.patchNode(ctx, n, "make it not ready", map[string]any{"metadata": map[string]any{"annotations": map[string]any{notReadyAnnotation: "true"}}})
	d.after(d.draw(5, 40), func() { d.restoreNode(ctx, n) })
	return true
}

func (d *driver) cordonNode(ctx context.Context) bool {
	n := d.takeNode()
	if n == nil {
		return false
	}
	n.cordoned = true
	d.patchNode(ctx, n, "cordon", map[string]any{"spec": map[string]any{"unschedulable": true}})
	d.after(d.draw(10, 60), func() { d.restoreNode(ctx, n) })
	return true
}

// resizeNode plays a device plugin that reports fewer devices of each pool, or a few more.
func (d *driver) resizeNode(ctx context.Context) bool {
	n := d.takeNode()
	if n == nil {
		return false
	}
	n.resized = true
	devices, full := map[string]int{}, n.full()
	for _, pool := range slices.Sorted(maps.Keys(full)) {
		devices[pool] = d.rng.IntN(full[pool] + 2)
	}
	d.resize(ctx, n, devices)
	d.after(d.draw(10, 60), func() { d.restoreNode(ctx, n) })
	return true
}

func (d *driver) resize(ctx context.Context, n *node, devices map[string]int) {
	offers, counts := map[string]string{}, map[string]int64{}
	for pool, count := range devices {
		offers[pool], counts[pool] = strconv.Itoa(count), int64(count)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"allocatable": offers}})
	if err != nil {
		return
	}
	d.do(ctx, n.Name, fmt.Sprintf("allocatable %v", devices), func(ctx context.Context) error {
		from := time.Now()
		_, err := d.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil {
			d.add(event{Kind: nodeOffers, Source: fromDriver, From: from, To: time.Now(), Node: n.Name, Devices: counts})
		}
		return err
	})
}

// deleteNode deletes a node; it comes back as its machine registers again, after its pods have been given up.
func (d *driver) deleteNode(ctx context.Context) bool {
	n := d.takeNode()
	if n == nil {
		return false
	}
	n.gone = true
	var from time.Time // of the first attempt: its answer may be the one that was lost
	d.do(ctx, n.Name, "delete", func(ctx context.Context) error {
		if from.IsZero() {
			from = time.Now()
		}
		err := ignore(apierrors.IsNotFound, d.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
		if err == nil {
			d.add(event{Kind: nodeRemoved, Source: fromDriver, From: from, To: time.Now(), Node: n.Name})
		}
		return err
	})
	d.after(d.draw(5, 60), func() { d.restoreNode(ctx, n) })
	return true
}

// restoreNode gives back what was taken, whatever that was.
func (d *driver) restoreNode(ctx context.Context, n *node) {
	if n.gone {
		d.registerNode(ctx, n)
	}
	if n.notReady {
		d.patchNode(ctx, n, "make it ready", map[string]any{"metadata": map[string]any{"annotations": map[string]any{notReadyAnnotation: nil}}})
	}
	if n.cordoned {
		d.patchNode(ctx, n, "uncordon", map[string]any{"spec": map[string]any{"unschedulable": nil}})
	}
	if n.resized {
		d.resize(ctx, n, n.full())
	}
	n.gone, n.notReady, n.cordoned, n.resized = false, false, false, false
}

// registerNode creates the node again. Its pods are deleted by force first, as an administrator does, or the pod garbage
// collector a minute later: on a node that came back sooner they would still run. With -quick-rejoin they do.
func (d *driver) registerNode(ctx context.Context, n *node) {
	d.do(ctx, n.Name, "create it again", func(ctx context.Context) error {
		if !d.quickRejoin {
			if err := d.giveUpPods(ctx, n.Name); err != nil {
				return err
			}
		}
		from := time.Now()
		if err := ignore(apierrors.IsAlreadyExists, d.CreateNode(ctx, n.Node)); err != nil {
			return err
		}
		counts := map[string]int64{}
		for pool, count := range n.full() {
			counts[pool] = int64(count)
		}
		d.add(event{Kind: nodeOffers, Source: fromDriver, From: from, To: time.Now(), Node: n.Name, Devices: counts})
		return nil
	})
}

func (d *driver) giveUpPods(ctx context.Context, node string) error {
	pods, err := d.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if err := d.deleteNamed(ctx, pods.Items[i].Namespace, pods.Items[i].Name, 0); err != nil {
			return err
		}
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d pods are left on %s", len(pods.Items), node)
	}
	return nil
}

func (d *driver) patchNode(ctx context.Context, n *node, text string, change any) {
	patch, err := json.Marshal(change)
	if err != nil {
		return
	}
	d.do(ctx, n.Name, text, func(ctx context.Context) error {
		_, err := d.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}
