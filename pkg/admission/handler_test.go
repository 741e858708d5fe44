package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const vfPool = "mellanox.com/mlnx_sriov_rdma"

// fixture is the webhook as the program serves it.
type fixture struct {
	handler  *Handler
	http     http.Handler
	ledger   *pools.Ledger
	injector *Injector
	registry *prometheus.Registry
}

func newServer(t testing.TB) *fixture {
	t.Helper()
	s := &fixture{registry: prometheus.NewRegistry()}
	s.injector, s.ledger = newInjector(t)
	s.injector.NewID = nil
	var err error
	s.handler, err = NewHandler(s.injector, ctrladmission.NewDecoder(clientgoscheme.Scheme), s.registry)
	require.NoError(t, err)
	s.http = NewServer(s.handler)
	return s
}

func (s *fixture) post(body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.http.ServeHTTP(w, r)
	return w
}

// counted are the reviews by result, those that are not 0.
func (s *fixture) counted(t testing.TB) string {
	t.Helper()
	var all []string
	for _, result := range []string{resultInjected, resultRefused, resultIgnored, resultDryRun, resultError} {
		if n := testutil.ToFloat64(s.handler.reviews.WithLabelValues(result)); n > 0 {
			all = append(all, fmt.Sprintf("%s=%v", result, n))
		}
	}
	return strings.Join(all, " ")
}

func (s *fixture) reserved() int64 {
	var total int64
	for _, usage := range s.ledger.Usage() {
		total += usage.Reserved
	}
	return total
}

// review is what the API server sends for a pod; change may be nil.
func review(t testing.TB, object string, change func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()
	request := &admissionv1.AdmissionRequest{UID: "uid-1", Operation: admissionv1.Create, Namespace: "tenant-a", Name: "p"}
	request.Kind.Version, request.Kind.Kind = "v1", "Pod"
	request.Resource.Version, request.Resource.Resource = "v1", "pods"
	if object != "" {
		request.Object = runtime.RawExtension{Raw: []byte(object)}
	}
	if change != nil {
		change(request)
	}
	r := admissionv1.AdmissionReview{Request: request}
	r.APIVersion, r.Kind = "admission.k8s.io/v1", "AdmissionReview"
	body, err := json.Marshal(r)
	require.NoError(t, err)
	return body
}

// answer is the response to a review, which must be one whatever was asked.
func (s *fixture) answer(t testing.TB, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	w := s.post(body)
	require.Equal(t, http.StatusOK, w.Code)
	var r admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &r), "%s", w.Body)
	require.NotNil(t, r.Response)
	require.Equal(t, "admission.k8s.io/v1", r.APIVersion)
	require.Equal(t, types.UID("uid-1"), r.Response.UID)
	return r.Response
}

// patched applies the answer to the raw object, as the API server does.
func patched(t testing.TB, response *admissionv1.AdmissionResponse, object string) string {
	t.Helper()
	require.True(t, response.Allowed, "%v", response.Result)
	require.NotNil(t, response.PatchType)
	require.Equal(t, admissionv1.PatchTypeJSONPatch, *response.PatchType)
	decoded, err := jsonpatch.DecodePatch(response.Patch)
	require.NoError(t, err)
	got, err := decoded.Apply([]byte(object))
	require.NoError(t, err, "%s to %s", response.Patch, object)
	return string(got)
}

func TestThePatchFitsTheObjectAsItWasSent(t *testing.T) {
	const devices = `{"requests": {"mellanox.com/mlnx_sriov_rdma": "1"}, "limits": {"mellanox.com/mlnx_sriov_rdma": "1"}}`
	const words = `"tenant.network/resource-type": "vf", "tenant.network/resource-pool": "mellanox.com/mlnx_sriov_rdma",
		"tenant.network/resource-count": "1", "tenant.network/admission-id": "0123456789abcdef"`
	for _, tc := range []struct{ name, object, want string }{
		{"without finalizers, resources and schedulerName",
			`{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"containers": [{"name": "a"}]}}`,
			`{"metadata": {"annotations": {"rdma.vf": "1", ` + words + `}, "finalizers": ["tenant.network/cleanup"]},
			  "spec": {"schedulerName": "tenant-scheduler", "containers": [{"name": "a", "resources": ` + devices + `}]}}`},
		{"with empty finalizers and resources",
			`{"metadata": {"annotations": {"rdma.vf": "1"}, "finalizers": []}, "spec": {"containers": [{"name": "a", "resources": {}}]}}`,
			`{"metadata": {"annotations": {"rdma.vf": "1", ` + words + `}, "finalizers": ["tenant.network/cleanup"]},
			  "spec": {"schedulerName": "tenant-scheduler", "containers": [{"name": "a", "resources": ` + devices + `}]}}`},
		{"with null where a map belongs",
			`{"metadata": {"annotations": {"rdma.vf": "1"}, "finalizers": null}, "spec": {"containers": [{"name": "a", "resources": {"requests": null, "limits": null}}]}}`,
			`{"metadata": {"annotations": {"rdma.vf": "1", ` + words + `}, "finalizers": ["tenant.network/cleanup"]},
			  "spec": {"schedulerName": "tenant-scheduler", "containers": [{"name": "a", "resources": ` + devices + `}]}}`},
		{"with empty requests and no limits",
			`{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"containers": [{"name": "a", "resources": {"requests": {}}}]}}`,
			`{"metadata": {"annotations": {"rdma.vf": "1", ` + words + `}, "finalizers": ["tenant.network/cleanup"]},
			  "spec": {"schedulerName": "tenant-scheduler", "containers": [{"name": "a", "resources": ` + devices + `}]}}`},
		{"with limits alone, and another container's resources as they were written",
			`{"metadata": {"annotations": {"rdma.vf": "1"}, "finalizers": ["x.com/y"]}, "spec": {"schedulerName": "default-scheduler", "containers": [
			  {"name": "istio-proxy", "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}}}, {"name": "a", "resources": {"limits": {"cpu": "1000m"}}}]}}`,
			`{"metadata": {"annotations": {"rdma.vf": "1", ` + words + `}, "finalizers": ["x.com/y", "tenant.network/cleanup"]}, "spec": {"schedulerName": "tenant-scheduler", "containers": [
			  {"name": "istio-proxy", "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}}},
			  {"name": "a", "resources": {"requests": {"mellanox.com/mlnx_sriov_rdma": "1"}, "limits": {"cpu": "1000m", "mellanox.com/mlnx_sriov_rdma": "1"}}}]}}`},
		{"with fields that this program does not know",
			`{"apiVersion": "v1", "kind": "Pod", "future": {"a": [1]}, "metadata": {"generateName": "web-", "annotations": {"rdma.vf": "1"}, "future": "x"},
			  "spec": {"future": null, "containers": [{"name": "a", "future": 1.50, "resources": {"future": true, "requests": {"cpu": "1"}}}, {"name": "b", "future": [{}]}]},
			  "status": {"future": {}}}`,
			`{"apiVersion": "v1", "kind": "Pod", "future": {"a": [1]}, "metadata": {"generateName": "web-", "annotations": {"rdma.vf": "1", ` + words + `}, "future": "x", "finalizers": ["tenant.network/cleanup"]},
			  "spec": {"future": null, "schedulerName": "tenant-scheduler", "containers": [{"name": "a", "future": 1.50, "resources": {"future": true,
			    "requests": {"cpu": "1", "mellanox.com/mlnx_sriov_rdma": "1"}, "limits": {"mellanox.com/mlnx_sriov_rdma": "1"}}}, {"name": "b", "future": [{}]}]},
			  "status": {"future": {}}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			s.injector.NewID = func() string { return "0123456789abcdef" }
			got := patched(t, s.answer(t, review(t, tc.object, nil)), tc.object)
			require.JSONEq(t, tc.want, got)
			assert.Equal(t, int64(1), s.reserved())
			again := s.answer(t, review(t, got, nil))
			assert.True(t, again.Allowed)
			assert.Empty(t, again.Patch, "a second pass must change nothing")
			assert.Equal(t, int64(1), s.reserved(), "a second pass must not reserve again")
			assert.Equal(t, "injected=2", s.counted(t))
		})
	}
}

const wantsOne = `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1"}}, "spec": {"containers": [{"name": "a"}]}}`

// TestWhatIsNotOursMustNotBeTouched: cases W43, W45, W68 of docs/cases.md.
func TestWhatIsNotOursMustNotBeTouched(t *testing.T) {
	for _, tc := range []struct {
		name   string
		object string
		change func(*admissionv1.AdmissionRequest)
	}{
		{"a pod without intent", `{"metadata": {"annotations": {"x": "y"}}, "spec": {"hostNetwork": true, "containers": [{"name": "a"}]}}`, nil},
		{"a pod without annotations", `{"spec": {"containers": []}}`, nil},
		{"an empty object", `{}`, nil},
		{"a mirror pod", `{"metadata": {"annotations": {"rdma.vf": "x", "kubernetes.io/config.mirror": "hash"}}, "spec": {"nodeName": "n1", "hostNetwork": true}}`, nil},
		{"an update", wantsOne, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }},
		{"an update of a pod that would be refused", `{"metadata": {"annotations": {"rdma.vf": "x"}}}`, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }},
		{"a deletion, which has no object", "", func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }},
		{"a connect", wantsOne, func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Connect }},
		{"a subresource", wantsOne, func(r *admissionv1.AdmissionRequest) { r.SubResource = "binding" }},
		{"an eviction", wantsOne, func(r *admissionv1.AdmissionRequest) { r.SubResource, r.Kind.Kind = "eviction", "Eviction" }},
		{"another kind", wantsOne, func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Deployment" }},
		{"no operation at all", wantsOne, func(r *admissionv1.AdmissionRequest) { r.Operation = "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			response := s.answer(t, review(t, tc.object, tc.change))
			assert.True(t, response.Allowed)
			assert.Empty(t, response.Patch)
			assert.Empty(t, response.Warnings)
			assert.Zero(t, s.reserved())
			assert.Equal(t, "ignored=1", s.counted(t))
		})
	}
}

func TestAMirrorPodMustNotCarryOurWords(t *testing.T) {
	const mirror = `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1", "kubernetes.io/config.mirror": "hash", "tenant.network/container": "a"`
	for object, want := range map[string]string{
		mirror + `, "tenant.network/resource-pool": "a.com/b"}}, "spec": {"nodeName": "n1"}}`: `metadata.annotations[tenant.network/resource-pool]: Invalid value: "a.com/b": must not be on a mirror pod`,
		mirror + `}, "finalizers": ["tenant.network/cleanup"]}, "spec": {"nodeName": "n1"}}`:  `metadata.finalizers: Invalid value: "tenant.network/cleanup": must not be on a mirror pod`,
	} {
		s := newServer(t)
		response := s.answer(t, review(t, object, nil))
		require.False(t, response.Allowed)
		assert.Contains(t, response.Result.Message, want)
		assert.Equal(t, "refused=1", s.counted(t))
	}
	response := newServer(t).answer(t, review(t, mirror+`}}, "spec": {"nodeName": "n1"}}`, nil))
	assert.True(t, response.Allowed)
	assert.Empty(t, response.Patch)
}

func TestARefusalSaysWhichFieldAndWhy(t *testing.T) {
	for _, tc := range []struct{ name, object, want string }{
		{"a count that is none", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1.5"}}, "spec": {"containers": [{"name": "a"}]}}`,
			`Pod "p" is invalid: metadata.annotations[rdma.vf]: Invalid value: "1.5": must be a whole number of devices from 1 to 64, digits only, such as "1" (no sign, space, fraction or suffix)`},
		{"a pod from a template is named by the beginning of its name", `{"metadata": {"generateName": "web-", "annotations": {"rdma.vf": ""}}, "spec": {"containers": [{"name": "a"}]}}`,
			`Pod "web-?" is invalid: metadata.annotations[rdma.vf]: Invalid value: ""`},
		{"no containers", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1"}}, "spec": {"containers": []}}`, `spec.containers: Required value`},
		{"no spec", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1", "tenant.network/container": "a"}}}`, `spec.containers: Required value`},
		{"null in the networks, on which Multus panics", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "1", "k8s.v1.cni.cncf.io/networks": "[null]"}}, "spec": {"containers": [{"name": "a"}]}}`,
			`metadata.annotations[k8s.v1.cni.cncf.io/networks]: Invalid value: "null": item 1: must not be null`},
		{"a sum of requests that wraps around", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "2"}}, "spec": {"containers": [
			{"name": "a", "resources": {"limits": {"mellanox.com/mlnx_sriov_rdma": "9223372036854775807"}}}, {"name": "b", "resources": {"limits": {"mellanox.com/mlnx_sriov_rdma": "9223372036854775807"}}},
			{"name": "c", "resources": {"limits": {"mellanox.com/mlnx_sriov_rdma": "4"}}}]}}`,
			`the pod requests 18446744073709551618 of mellanox.com/mlnx_sriov_rdma, but the annotations ask for 2`},
		{"several faults", `{"metadata": {"name": "p", "annotations": {"rdma.vf": "0"}}, "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "a"}]}}`, `spec.hostNetwork: Invalid value: true`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			response := s.answer(t, review(t, tc.object, nil))
			assert.False(t, response.Allowed)
			assert.Empty(t, response.Patch)
			require.NotNil(t, response.Result)
			assert.Equal(t, int32(http.StatusUnprocessableEntity), response.Result.Code)
			assert.Equal(t, "Invalid", string(response.Result.Reason))
			assert.Contains(t, response.Result.Message, tc.want)
			assert.NotEmpty(t, response.Result.Details.Causes)
			assert.Zero(t, s.reserved(), "a refused pod must reserve nothing")
			assert.Equal(t, "refused=1", s.counted(t))
		})
	}
}

func TestARefusalMustNotRepeatALongText(t *testing.T) {
	long := strings.Repeat("é", 1<<19)
	for name, object := range map[string]string{
		"a count":           `{"metadata": {"annotations": {"rdma.vf": "LONG"}}, "spec": {"containers": [{"name": "a"}]}}`,
		"a container":       `{"metadata": {"annotations": {"rdma.vf": "1", "tenant.network/container": "LONG"}}, "spec": {"containers": [{"name": "a"}]}}`,
		"networks":          `{"metadata": {"annotations": {"rdma.vf": "1", "k8s.v1.cni.cncf.io/networks": "a@LONG"}}, "spec": {"containers": [{"name": "a"}]}}`,
		"a default network": `{"metadata": {"annotations": {"rdma.vf": "1", "v1.multus-cni.io/default-network": "LONG"}}, "spec": {"containers": [{"name": "a"}]}}`,
		"a scheduler":       `{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"schedulerName": "LONG", "containers": [{"name": "a"}]}}`,
		"a node":            `{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"nodeName": "LONG", "containers": [{"name": "a"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			response := newServer(t).answer(t, review(t, strings.ReplaceAll(object, "LONG", long), nil))
			require.False(t, response.Allowed)
			assert.Less(t, len(response.Result.Message), 2048)
		})
	}
	t.Run("a long text that is nobody's business passes", func(t *testing.T) {
		object := strings.ReplaceAll(wantsOne, `"rdma.vf": "1"`, `"rdma.vf": "1", "x.com/y": "`+long[:100<<10]+`", "tenant.network/stale": "`+long+`"`)
		got := patched(t, newServer(t).answer(t, review(t, object, nil)), object)
		assert.Contains(t, got, long[:100<<10])
		assert.NotContains(t, got, "tenant.network/stale")
	})
}

// TestOddObjectsAreAnswered: cases W37 of docs/cases.md.
func TestOddObjectsAreAnswered(t *testing.T) {
	for name, object := range map[string]string{
		"owners of kinds that nobody knows":  `{"metadata": {"annotations": {"rdma.vf": "1"}, "ownerReferences": [{"kind": "Service"}, {"apiVersion": "x.com/v1", "kind": "Odd", "controller": true}, {}]}, "spec": {"containers": [{"name": "a"}]}}`,
		"a pod of a namespace in the object": `{"metadata": {"namespace": "elsewhere", "annotations": {"rdma.vf": "1"}}, "spec": {"containers": [{"name": "a"}]}}`,
		"two containers of one name":         `{"metadata": {"annotations": {"rdma.vf": "1", "tenant.network/container": "a"}}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}}`,
		"containers without names":           `{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"initContainers": [{}], "containers": [{}, {}], "ephemeralContainers": [{}]}}`,
		"affinity that is malformed":         `{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "", "operator": "Odd"}]}, {}]}}}, "containers": [{"name": "a"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			assert.True(t, s.answer(t, review(t, object, nil)).Allowed)
			assert.Equal(t, "injected=1", s.counted(t))
		})
	}
	for name, body := range map[string][]byte{
		"no object at all":            review(t, "", nil),
		"an object that is a number":  review(t, "1", nil),
		"an object that is a list":    review(t, "[]", nil),
		"annotations that are a list": review(t, `{"metadata": {"annotations": []}}`, nil),
		"a quantity that is none":     review(t, `{"metadata": {"annotations": {"rdma.vf": "1"}}, "spec": {"containers": [{"resources": {"limits": {"a.com/b": "x"}}}]}}`, nil),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			response := s.answer(t, body)
			assert.False(t, response.Allowed)
			assert.Equal(t, int32(http.StatusBadRequest), response.Result.Code)
			assert.Contains(t, response.Result.Message, "decoding the pod")
			assert.Equal(t, "error=1", s.counted(t))
		})
	}
}

// TestADryRunIsAnsweredInFullAndReservesNothing: cases W47, S56 of docs/cases.md.
func TestADryRunIsAnsweredInFullAndReservesNothing(t *testing.T) {
	s := newServer(t)
	yes := true
	response := s.answer(t, review(t, wantsOne, func(r *admissionv1.AdmissionRequest) { r.DryRun = &yes }))
	assert.Contains(t, patched(t, response, wantsOne), vfPool)
	assert.Zero(t, s.reserved())
	assert.Equal(t, "dry_run=1", s.counted(t))

	bad := strings.ReplaceAll(wantsOne, `"rdma.vf": "1"`, `"rdma.vf": "one"`)
	assert.False(t, s.answer(t, review(t, bad, func(r *admissionv1.AdmissionRequest) { r.DryRun = &yes })).Allowed)
	assert.Equal(t, "refused=1 dry_run=1", s.counted(t))
}

func TestTwoPodsMustNotShareAnID(t *testing.T) {
	s := newServer(t)
	seen := map[string]bool{}
	object := strings.Replace(wantsOne, `"name"`, `"generateName"`, 1)
	for range 5 {
		got := patched(t, s.answer(t, review(t, object, nil)), object)
		seen[podFrom(t, got).Annotations[rdma.AdmissionIDAnnotation]] = true
	}
	assert.Len(t, seen, 5)
	assert.Equal(t, int64(5), s.reserved())
	for id := range seen {
		assert.Regexp(t, admissionID, id)
	}
}

func TestAPodThatWaitsIsWarnedAbout(t *testing.T) {
	s := newServer(t)
	s.ledger.DeleteNode("n1")
	response := s.answer(t, review(t, wantsOne, nil))
	assert.True(t, response.Allowed)
	assert.Equal(t, []string{"rdma.vf: pool mellanox.com/mlnx_sriov_rdma is offered by no node that this pod could run on; it waits for such a node (required 1)"}, response.Warnings)
}

// panicking is a ledger with a fault.
type panicking struct{ *pools.Ledger }

func (panicking) Choose(*pools.Config, pools.Demand) (pools.Choice, error) { panic("fault") }

func TestAPanicMustNotEndTheProgram(t *testing.T) {
	s := newServer(t)
	s.injector.Ledger = panicking{s.ledger}
	response := s.answer(t, review(t, wantsOne, nil))
	assert.False(t, response.Allowed)
	assert.Equal(t, int32(http.StatusInternalServerError), response.Result.Code)
	assert.Contains(t, response.Result.Message, "panic: fault")
	assert.Equal(t, "error=1", s.counted(t))
	s.injector.Ledger = s.ledger
	assert.True(t, s.answer(t, review(t, wantsOne, nil)).Allowed)
}

func TestMetrics(t *testing.T) {
	s := newServer(t)
	s.answer(t, review(t, wantsOne, nil))
	problems, err := testutil.GatherAndLint(s.registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	count, err := testutil.GatherAndCount(s.registry, "rdma_admission_duration_seconds", "rdma_admission_reviews_total")
	require.NoError(t, err)
	assert.Equal(t, 2, count)
	_, err = NewHandler(s.injector, ctrladmission.NewDecoder(clientgoscheme.Scheme), s.registry)
	require.ErrorContains(t, err, "registering metrics of admission")
	_, err = NewHandler(s.injector, ctrladmission.NewDecoder(clientgoscheme.Scheme), nil)
	require.NoError(t, err)
}
