package admission

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// newFuzzServer answers the same bytes in the same way each time, and lets a panic through.
func newFuzzServer(t testing.TB) *fixture {
	s := newServer(t)
	s.injector.NewID = func() string { return "0123456789abcdef" }
	recovers := false
	s.http = &server{webhook: ctrladmission.Webhook{Handler: s.handler, RecoverPanic: &recovers}}
	return s
}

// answered is the review that every request gets back, whatever it was.
func answered(t testing.TB, s *fixture, body []byte) *admissionv1.AdmissionResponse {
	w := s.post(body)
	require.Equal(t, http.StatusOK, w.Code)
	var r admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &r))
	require.NotNil(t, r.Response)
	if !r.Response.Allowed {
		require.NotNil(t, r.Response.Result)
		require.GreaterOrEqual(t, r.Response.Result.Code, int32(400))
		require.Empty(t, r.Response.Patch)
	}
	return r.Response
}

// FuzzHandler posts whole bodies.
func FuzzHandler(f *testing.F) {
	for _, object := range []string{wantsOne, "", "{}", "null", `{"metadata": {"annotations": {"rdma.vf": "1", "k8s.v1.cni.cncf.io/networks": "[null]"}}, "spec": {"containers": []}}`,
		`{"metadata": {"annotations": {"rdma.vf": "2", "rdma.pf": "1", "tenant.network/container": "b"}, "finalizers": ["tenant.network/cleanup"]},
		  "spec": {"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"example.com/both": "1"}}}], "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"example.com/both": "9e18"}}}]}}`} {
		f.Add(review(f, object, nil))
	}
	f.Add(review(f, wantsOne, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }))
	for _, body := range []string{"", "{}", "null", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}`, `{"kind":"Pod","apiVersion":"v1"}`, "\x00", "[]",
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}`, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","uid":"v"}}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		response := answered(t, newFuzzServer(t), body)
		var asked struct {
			Kind, APIVersion string
			Request          *struct{ UID types.UID }
		}
		if json.Unmarshal(body, &asked) == nil && asked.Kind == "AdmissionReview" && asked.APIVersion == "admission.k8s.io/v1" && asked.Request != nil && response.Allowed {
			require.Equal(t, asked.Request.UID, response.UID)
		}
	})
}

// FuzzReview posts well-formed reviews of objects that are not. What is admitted must be a pod that all other parts take
// for one of ours, must be admitted unchanged once more, and must keep what the user wrote.
func FuzzReview(f *testing.F) {
	for _, object := range []string{wantsOne, "", "{}", "null", "[]", `{"metadata":{"annotations":null},"spec":null}`,
		`{"metadata": {"annotations": {"rdma.vf": "2", "rdma.pf": "1", "tenant.network/container": "b"}, "finalizers": ["tenant.network/cleanup"]},
		  "spec": {"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"example.com/both": "1"}}}], "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"example.com/both": "2"}}}]}}`,
		`{"metadata": {"annotations": {"rdma.vf": "1", "tenant.network/resource-count": "1,1", "k8s.v1.cni.cncf.io/network-status": "[]", "k8s.v1.cni.cncf.io/networks": "gone@x,gone@rdma0,tenant-a/stale"}}, "spec": {"containers": [{"name": "a"}]}}`,
		`{"metadata": {"generateName": "x", "annotations": {"rdma.pf": "1", "k8s.v1.cni.cncf.io/networks": "[{\"name\":\"mine\",\"x\":\"<\"}]", "v1.multus-cni.io/default-network": "a"}}, "spec": {"containers": [{"name": "a", "resources": {"claims": [{"name": "c"}]}}]}}`,
		`{"metadata": {"annotations": {"rdma.vf": "1", "kubernetes.io/config.mirror": "x", "tenant.network/x": "y"}}, "spec": {"nodeName": "n"}}`,
		`{"metadata": {"annotations": {"rdma.vf": "3"}}, "spec": {"overhead": {"example.com/both": "1"}, "schedulingGates": [{"name": "g"}], "containers": [{"resources": {"requests": {"mellanox.com/other_vf": "1.5"}}}]}}`} {
		f.Add(object, "tenant-a", "uid-1", "CREATE", "", false)
		f.Add(object, "", "", "CREATE", "", true)
	}
	f.Add(wantsOne, "tenant-a", "uid-1", "UPDATE", "status", false)
	f.Fuzz(func(t *testing.T, object, namespace, uid, operation, subresource string, dryRun bool) {
		if object != "" && !json.Valid([]byte(object)) {
			return // cannot stand in a review
		}
		s := newFuzzServer(t)
		before := &corev1.Pod{}
		if err := s.handler.decoder.DecodeRaw(runtime.RawExtension{Raw: []byte(object)}, before); err == nil {
			canonical, err := json.Marshal(before) // an API server never sends keys twice, or in another case
			require.NoError(t, err)
			object = string(canonical)
		}
		ask := func(object string) []byte {
			return review(t, object, func(r *admissionv1.AdmissionRequest) {
				r.Namespace, r.UID, r.Operation, r.SubResource, r.DryRun = namespace, types.UID(uid), admissionv1.Operation(operation), subresource, &dryRun
			})
		}
		body := ask(object)
		response := answered(t, s, body)
		var sent admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal(body, &sent)) // as it arrives: JSON has no bytes that are not UTF-8
		require.Equal(t, sent.Request.UID, response.UID)
		if !response.Allowed || len(response.Patch) == 0 {
			require.Zero(t, s.reserved(), "nothing is reserved for what is not admitted")
			return
		}
		require.Equal(t, "CREATE", operation)
		patchedObject := patched(t, response, string(sent.Request.Object.Raw))
		after := &corev1.Pod{}
		require.NoError(t, s.handler.decoder.DecodeRaw(runtime.RawExtension{Raw: []byte(patchedObject)}, after))
		requireAdmitted(t, before, after)
		again := answered(t, s, ask(patchedObject))
		require.True(t, again.Allowed, "%v", again.Result)
		require.Empty(t, again.Patch, "a second pass must change nothing")
	})
}

func requireAdmitted(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	assignment, err := rdma.ReadAssignment(after)
	require.NoError(t, err)
	intent, errs := rdma.ParseIntent(before.Annotations, 64)
	require.Empty(t, errs)
	require.Len(t, assignment, len(intent))
	for i, entry := range assignment {
		require.Equal(t, intent[i].Type, entry.Type)
		require.Equal(t, intent[i].Count, entry.Count)
	}
	require.Equal(t, rdma.SchedulerName, after.Spec.SchedulerName)
	for key, value := range before.Annotations {
		if !strings.HasPrefix(key, rdma.Domain) && key != rdma.NetworksAnnotation && key != rdma.NetworkStatusAnnotation {
			require.Equal(t, value, after.Annotations[key])
		}
	}
	ours := make([]rdma.Attachment, assignment.Devices())
	for i := range ours {
		ours[i] = rdma.Attachment{Namespace: "tenant-a", Name: "ours"}
	}
	_, err = rdma.MergeNetworks(after.Annotations[rdma.NetworksAnnotation], "tenant-a", ours)
	require.NoError(t, err, "what is admitted can be merged")
}
