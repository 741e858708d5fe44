package main

import (
	"bytes"
	"context"
	_ "embed" // the pod
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/admission"
	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/test/perf/fixture"
)

// sentPod is a pod as a tenant's kubectl made it and the API server 1.37.2 defaulted it, with managed fields and the service
// account's volume.
//
//go:embed pod.json
var sentPod []byte

// review returns the body of a review as the API server sends it, and the same decoded once.
func review(pinned bool) ([]byte, ctrladmission.Request, error) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(sentPod, pod); err != nil {
		return nil, ctrladmission.Request{}, err
	}
	if pinned {
		fixture.Pin(pod)
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, ctrladmission.Request{}, err
	}
	request := &admissionv1.AdmissionRequest{UID: "8ac1e0b4-6a2c-4d8f-9a5c-3f9f0c6b7d21",
		Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, RequestKind: &metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: pods, RequestResource: &pods, Name: pod.Name, Namespace: pod.Namespace, Operation: admissionv1.Create,
		UserInfo: authenticationv1.UserInfo{Username: "tenant", Groups: []string{"system:authenticated"}},
		Object:   runtime.RawExtension{Raw: raw}, DryRun: new(false),
		Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"kubectl-create"}`)}}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	return body, ctrladmission.Request{AdmissionRequest: *request}, err
}

var pods = metav1.GroupVersionResource{Version: "v1", Resource: "pods"}

// openReservations is how many admitted pods the informer has not shown yet, at any time.
const openReservations = 64

// lives ends the reservations of the benchmark's pods as the informer would: the pod appears, and is gone.
type lives struct {
	ledger *pools.Ledger
	mu     sync.Mutex
	next   int
}

// firstID has as many digits as an id has letters.
const firstID = 1_000_000_000_000_000

var oneDevice = pools.Counts{fixture.FirstPool: 1}

// newID makes the next pod's admission id and lets an earlier pod come and go.
func (l *lives) newID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	if old := l.next - openReservations; old > 0 {
		id := strconv.Itoa(firstID + old)
		l.ledger.SetPod(pools.Charge{UID: types.UID(id), AdmissionID: id, Devices: oneDevice})
		l.ledger.DeletePod(types.UID(id))
	}
	return strconv.Itoa(firstID + l.next)
}

// scanning is the other way: every choice adds up all nodes and pods.
type scanning struct{ cluster *fixture.Cluster }

// Choose implements admission.Ledger.
func (s scanning) Choose(_ *pools.Config, d pools.Demand) (pools.Choice, error) {
	ask := d.Intent[0]
	pool := s.cluster.Scan(ask.Count)
	if pool == "" {
		return pools.Choice{}, &pools.RefusalError{Type: ask.Type, Count: ask.Count, Reason: "no pool has enough left"}
	}
	return pools.Choice{Outcome: pools.Room, Assignment: rdma.Assignment{{Type: ask.Type, Pool: pool, Count: ask.Count}}}, nil
}

// KnowsAdmission implements admission.Ledger.
func (s scanning) KnowsAdmission(string) bool { return false }

// CancelReservation implements admission.Ledger: a scan keeps none.
func (s scanning) CancelReservation(string) {}

// newHandler returns the product's handler over a ledger.
func newHandler(ledger admission.Ledger, newID func() string) (ctrladmission.Handler, error) {
	config := fixture.Config()
	injector := &admission.Injector{Ledger: ledger, Pools: func() *pools.Config { return config }, NewID: newID,
		Attachments: func(string, string) (admission.Attachment, bool) { return admission.Attachment{}, false }}
	return admission.NewHandler(injector, ctrladmission.NewDecoder(clientgoscheme.Scheme), nil)
}

// empty allows everything: what a webhook costs that does nothing.
func empty() ctrladmission.Handler {
	return ctrladmission.HandlerFunc(func(context.Context, ctrladmission.Request) ctrladmission.Response { return ctrladmission.Allowed("") })
}

// reading allows everything after one read from the API server.
func reading(client kubernetes.Interface) ctrladmission.Handler {
	return ctrladmission.HandlerFunc(func(ctx context.Context, _ ctrladmission.Request) ctrladmission.Response {
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
			return ctrladmission.Errored(500, err)
		}
		return ctrladmission.Allowed("")
	})
}

// checkInjected makes sure that what is measured does what it should.
func checkInjected(handler ctrladmission.Handler, request ctrladmission.Request) error {
	response := handler.Handle(context.Background(), request)
	if response.Allowed && bytes.Contains(response.Patch, []byte(`"/spec/schedulerName"`)) {
		return nil
	}
	return fmt.Errorf("a review was not answered as it should: %+v, patch %s", response.Result, response.Patch)
}
