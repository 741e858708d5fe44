package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
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

// review returns the body of a review as the API server sends it, and the same decoded once.
func review(pinned bool) ([]byte, ctrladmission.Request, error) {
	pod := fixture.NewPod(0)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.UID, pod.ResourceVersion = "", ""
	if pinned {
		fixture.Pin(pod)
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, ctrladmission.Request{}, err
	}
	request := &admissionv1.AdmissionRequest{UID: "review", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Name: pod.Name, Namespace: pod.Namespace,
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	return body, ctrladmission.Request{AdmissionRequest: *request}, err
}

// openReservations is how many admitted pods the informer has not shown yet, at any time.
const openReservations = 64

// lives ends the reservations of the benchmark's pods as the informer would: the pod appears, and is gone.
type lives struct {
	ledger *pools.Ledger
	mu     sync.Mutex
	next   int
}

// newID makes the next pod's admission id and lets an earlier pod come and go.
func (l *lives) newID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	if old := l.next - openReservations; old > 0 {
		uid := types.UID(strconv.Itoa(old))
		l.ledger.SetPod(pools.Charge{UID: uid, AdmissionID: fmt.Sprintf("%016d", old), Devices: pools.Counts{fixture.FirstPool: 1}})
		l.ledger.DeletePod(uid)
	}
	return fmt.Sprintf("%016d", l.next)
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
	for _, operation := range response.Patches {
		if operation.Path == "/spec/schedulerName" && response.Allowed {
			return nil
		}
	}
	return fmt.Errorf("a review was not answered as it should: %+v, patches %v", response.Result, response.Patches)
}
