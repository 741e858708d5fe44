package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

var nadResource = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

const (
	// oneTry bounds one attempt at the API server, patience all attempts of one action.
	oneTry   = 10 * time.Second
	patience = 2 * time.Minute
	pause    = 200 * time.Millisecond
)

// world is the cluster with what the driver needs to act on it and look at it.
type world struct {
	*devcluster.Cluster
	journal

	client kubernetes.Interface
	nads   metadata.Interface
	http   *http.Client
	mock   *tenant.Client
	id     string
}

func newWorld(ctx context.Context, cluster *devcluster.Cluster) (*world, error) {
	w := &world{Cluster: cluster, http: &http.Client{Timeout: 5 * time.Second}}
	config := cluster.AdminConfig()
	watcher, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = oneTry
	config.WarningHandler = rest.NoWarnings{}
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if w.nads, err = metadata.NewForConfig(config); err != nil {
		return nil, err
	}
	if w.mock, err = tenant.New(tenant.Config{URL: cluster.MockURL()}); err != nil {
		return nil, err
	}
	system, err := w.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	w.id = string(system.UID)
	return w, w.watch(ctx, watcher)
}

// watch notes what the API server shows of pods and nodes, until ctx ends.
func (w *world) watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		factory.Core().V1().Pods().Informer():  onChange(w.notePod),
		factory.Core().V1().Nodes().Informer(): onChange(w.noteNode),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("watching %v: %w", kind, ctx.Err())
		}
	}
	return nil
}

// onChange calls see with the object before and after a change; nil stands for none.
func onChange[T metav1.Object](see func(before, after T)) cache.ResourceEventHandler {
	var none T
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if after, ok := object.(T); ok {
				see(none, after)
			}
		},
		UpdateFunc: func(old, object any) {
			before, okBefore := old.(T)
			after, okAfter := object.(T)
			switch {
			case !okBefore || !okAfter:
			case before.GetUID() != after.GetUID():
				see(before, none)
				see(none, after)
			default:
				see(before, after)
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if before, ok := object.(T); ok {
				see(before, none)
			}
		},
	}
}

// notePod notes the steps of a pod's life. A watch is late, and later after an outage, so what it says happened is dated
// from the object's own timestamps, which have whole seconds, rounded down.
func (w *world) notePod(before, after *corev1.Pod) {
	now := time.Now()
	if after == nil {
		e := event{Kind: podRemoved, Source: fromWatch, From: changed(before, ""), To: now, UID: string(before.UID), Pod: before.Namespace + "/" + before.Name}
		w.add(e)
		return
	}
	base := event{Source: fromWatch, From: changed(after, corev1.PodReadyToStartContainers), To: now}
	if before == nil {
		base.From = after.CreationTimestamp.Time
	}
	events := podEvents(base, after, before == nil, true)
	if after.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == "") {
		events = append(events, event{Kind: podBound, Source: fromWatch, From: changed(after, corev1.PodScheduled), To: now, UID: string(after.UID),
			Pod: after.Namespace + "/" + after.Name, Node: after.Spec.NodeName,
			Networks: networkNames(after.Annotations[rdma.NetworksAnnotation], after.Namespace)})
	}
	for _, e := range events {
		if before == nil || !already(before, e.Kind) {
			w.add(e)
		}
	}
}

// already says that the pod was that far before.
func already(pod *corev1.Pod, k kind) bool {
	for _, e := range podEvents(event{}, pod, true, true) {
		if e.Kind == k {
			return true
		}
	}
	return false
}

// changed is when the condition changed last; without one, when any of the pod's conditions did.
func changed(pod *corev1.Pod, condition corev1.PodConditionType) time.Time {
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if (condition == "" || c.Type == condition) && c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	return last
}

func (w *world) noteNode(before, after *corev1.Node) {
	now := time.Now()
	e := event{Kind: nodeOffers, Source: fromWatch, From: now, To: now}
	if after == nil {
		return // the audit log and the driver know it better
	}
	e.Node, e.Devices = after.Name, devicesOf(after.Status.Allocatable)
	if before == nil || fmt.Sprint(e.Devices) != fmt.Sprint(devicesOf(before.Status.Allocatable)) {
		w.add(e)
	}
}

// insist tries until it works, is pointless, or has taken too long. The API server may be away at any time.
func (w *world) insist(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, oneTry)
		err := try(attempt)
		done()
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s: %w", patience, err)
		case <-time.After(pause):
		}
	}
}

// until waits for a condition, which says why it does not hold.
func (w *world) until(ctx context.Context, what string, limit time.Duration, condition func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		attempt, done := context.WithTimeout(ctx, oneTry)
		err := condition(attempt)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, limit, last)
		case <-time.After(pause):
		}
	}
}

// look reads the state.
func (w *world) look(ctx context.Context) (*state, error) {
	s := &state{Ledgers: map[string]ledgerPage{}}
	nodes, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := w.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	networks, err := w.nads.Resource(nadResource).List(ctx, metav1.ListOptions{LabelSelector: rdma.PodUIDLabel})
	if err != nil {
		return nil, err
	}
	s.Nodes, s.Pods, s.Networks = nodes.Items, pods.Items, networks.Items
	if s.Allocations, err = w.mock.List(ctx, w.id); err != nil {
		return nil, err
	}
	return s, nil
}

// readLedgers adds the ledgers of the webhook replicas.
func (w *world) readLedgers(ctx context.Context, s *state) error {
	for i := range replicas {
		replica := devcluster.WebhookReplica(i)
		base := strings.TrimSuffix(w.MetricsURL(replica), "/metrics") + "/pools"
		var page ledgerPage
		if err := w.getJSON(ctx, base, &page); err != nil {
			return err
		}
		for _, pool := range page.Pools {
			var nodes ledgerPage
			if err := w.getJSON(ctx, base+"?pool="+string(pool.Pool), &nodes); err != nil {
				return err
			}
			page.Nodes = append(page.Nodes, nodes.Nodes...)
		}
		s.Ledgers[replica] = page
	}
	return nil
}

func (w *world) getJSON(ctx context.Context, url string, into any) error {
	body, err := w.call(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

func (w *world) call(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.http.Do(request)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, response.Status, answer)
	}
	return answer, nil
}

// setFaults replaces the mock's rules by what change makes of those that can still apply.
func (w *world) setFaults(ctx context.Context, change func([]engine.Fault) []engine.Fault) error {
	var left []engine.Fault
	if err := w.getJSON(ctx, w.MockURL()+"/mock/faults", &left); err != nil {
		return err
	}
	rules := change(left)
	if rules == nil {
		rules = []engine.Fault{}
	}
	body, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	_, err = w.call(ctx, http.MethodPut, w.MockURL()+"/mock/faults", body)
	return err
}
