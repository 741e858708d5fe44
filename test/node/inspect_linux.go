package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// inspect compares what a pod's process found with what everybody else says about its networks: the annotation that was
// bound with it, Multus' network-status, and the tenant-controller's allocation.
func (w *world) inspect(ctx context.Context, pod *corev1.Pod) {
	var found []string
	err := eventually(ctx, "pod "+pod.Name+" says what it found", func(ctx context.Context) error {
		var err error
		if found, err = w.interfacesOf(pod); err == nil {
			return nil
		}
		// The log is gone with the pod; its last word may have been its termination message.
		now, getErr := w.get(ctx, pod)
		if apierrors.IsNotFound(getErr) || getErr == nil && now.UID != pod.UID {
			return nil
		}
		if getErr == nil {
			pod = now
		}
		return err
	})
	if err != nil {
		w.seen.violationf("%v", err)
		return
	}
	if found == nil {
		return // deleted before it could say anything
	}
	extra := slices.DeleteFunc(slices.Clone(found), func(name string) bool { return name == "eth0" })
	w.seen.mu.Lock()
	w.seen.expected[pod.UID], w.seen.interfaces[pod.UID] = expectation(pod), len(extra)
	w.seen.mu.Unlock()
	if err := w.compare(ctx, pod, found, extra); err != nil {
		w.seen.violationf("pod %s: %v", pod.Name, err)
	}
}

// compare checks names and order; extra are the interfaces besides eth0.
func (w *world) compare(ctx context.Context, pod *corev1.Pod, found, extra []string) error {
	networks, err := rdma.ParseNetworks(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace)
	if err != nil {
		return err
	}
	var named []string
	for i, network := range networks.Elements() {
		name := network.Interface
		if name == "" {
			name = fmt.Sprintf("net%d", i+1) // as Multus names them
		}
		named = append(named, name)
	}
	if !sameSet(named, extra) {
		return fmt.Errorf("annotation %q names the interfaces %v, the process found %v", networks, named, found)
	}
	return errors.Join(w.compareStatus(pod, found), w.compareAllocation(ctx, pod, networks))
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (w *world) compareStatus(pod *corev1.Pod, found []string) error {
	text, there := pod.Annotations[netv1.NetworkStatusAnnot]
	if !there {
		return fmt.Errorf("annotation %s is missing", netv1.NetworkStatusAnnot)
	}
	var statuses []netv1.NetworkStatus
	if err := json.Unmarshal([]byte(text), &statuses); err != nil {
		return fmt.Errorf("annotation %s: %w", netv1.NetworkStatusAnnot, err)
	}
	var attached []string
	for _, status := range statuses {
		attached = append(attached, status.Interface)
	}
	if !sameSet(attached, found) {
		return fmt.Errorf("multus attached %v, the process found %v", attached, found)
	}
	return nil
}

// compareAllocation makes sure that the annotation's networks are the allocation's and the user's, and no others.
func (w *world) compareAllocation(ctx context.Context, pod *corev1.Pod, networks rdma.Networks) error {
	allocation, err := w.allocationOf(ctx, pod)
	if err != nil || allocation == nil {
		return err
	}
	allocated := map[string]bool{}
	for _, network := range allocation.Networks {
		allocated[network.Namespace+"/"+network.Name] = true
	}
	for _, network := range networks.Elements() {
		if network.Name == ownNetwork {
			continue
		}
		key := network.Namespace + "/" + network.Name
		if !allocated[key] {
			return fmt.Errorf("network %s is not of its allocation %v", key, allocation.Networks)
		}
		delete(allocated, key)
	}
	if len(allocated) > 0 {
		return fmt.Errorf("the networks %v of its allocation are not attached", allocated)
	}
	return nil
}

// allocationOf returns the pod's allocation, or nil if the pod is over. The networks are given back before the finalizer
// goes: in between, a pod that has ended has the one without the other.
func (w *world) allocationOf(ctx context.Context, pod *corev1.Pod) (*tenant.Allocation, error) {
	var allocation *tenant.Allocation
	var lost error
	err := eventually(ctx, "pod "+pod.Name+" has its allocation or no finalizer", func(ctx context.Context) error {
		var err error
		if allocation, err = w.mock.Get(ctx, w.id, pod.UID); !tenant.IsNotFound(err) {
			return err
		}
		now, getErr := w.get(ctx, pod)
		switch {
		case apierrors.IsNotFound(getErr):
			return nil
		case getErr != nil:
			return getErr
		case now.UID != pod.UID || !slices.Contains(now.Finalizers, rdma.Finalizer):
			return nil
		case now.DeletionTimestamp == nil && !hasEnded(now):
			lost = err // nothing allows that, and so nothing is waited for
			return nil
		}
		return err
	})
	return allocation, errors.Join(err, lost)
}

// interfacesOf are the network interfaces, loopback aside, that the pod's own process found, by its log or else by its
// termination message.
func (w *world) interfacesOf(pod *corev1.Pod) ([]string, error) {
	name := pod.Spec.Containers[0].Name
	text, err := firstLine(filepath.Join(w.node.PodLogs(), fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), name, "0.log"))
	if err != nil {
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name == name && status.State.Terminated != nil && status.State.Terminated.Message != "" {
				text, err = status.State.Terminated.Message, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	var line struct{ Interfaces []string }
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return line.Interfaces, nil
}

// firstLine reads the first line of a log in the format of the container runtimes: time, stream, F, text.
func firstLine(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	scanner := bufio.NewScanner(bytes.NewReader(content))
	if !scanner.Scan() {
		return "", errors.New("its log is empty")
	}
	fields := strings.SplitN(scanner.Text(), " ", 4)
	if len(fields) < 4 {
		return "", fmt.Errorf("its log is %q", scanner.Text())
	}
	return fields[3], nil
}
