package admission

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// requireSameAsTheAPI decodes a pod as the server does, in a review, and as the API machinery does. What the server does not
// read it hands on to the latter.
func requireSameAsTheAPI(t *testing.T, raw []byte) {
	t.Helper()
	body := fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":%s}}`, raw)
	req, ok := readPlain(body)
	if !ok || !json.Valid(raw) { // what is no JSON could end the object and go on in the review
		return
	}
	got, isPod := req.Object.Object.(*corev1.Pod)
	require.True(t, isPod)
	want := &corev1.Pod{}
	req.Object = runtime.RawExtension{Raw: raw}
	if err := ctrladmission.NewDecoder(clientgoscheme.Scheme).Decode(req, want); err != nil {
		require.Error(t, json.Unmarshal(raw, &skipped{}), "%.1000s: the API machinery says %v", raw, err)
		return
	}
	forgetTheUnread(want)
	require.True(t, apiequality.Semantic.DeepEqual(want, got), "%.1000s", raw)
}

// forgetTheUnread drops what the server skips.
func forgetTheUnread(pod *corev1.Pod) {
	pod.ManagedFields, pod.Spec.Volumes = nil, nil
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			containers[i].Env, containers[i].VolumeMounts = nil, nil
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].VolumeMounts = nil, nil
	}
}

// skipped are the fields that the server does not look at. Only there may it overlook an error, which the API server never
// makes.
type skipped struct {
	Metadata struct{ ManagedFields []metav1.ManagedFieldsEntry }
	Spec     struct {
		Volumes                                         []corev1.Volume
		Containers, InitContainers, EphemeralContainers []struct {
			Env          []corev1.EnvVar
			VolumeMounts []corev1.VolumeMount
		}
	}
}

func TestAPodIsDecodedAsTheAPIMachineryDoes(t *testing.T) {
	for name, raw := range map[string]string{
		"a field given twice":                     `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"}}`,
		"an annotation given twice":               `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"rdma.vf":"1","rdma.vf":"2"}}}`,
		"an object given twice":                   `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"a":"1"}},"metadata":{"annotations":{"b":"2"}}}`,
		"a list given twice":                      `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"a","image":"x"}],"containers":[{"name":"b"}]}}`,
		"a field in other letters":                `{"apiVersion":"v1","kind":"Pod","metadata":{"Annotations":{"rdma.vf":"1"}}}`,
		"a text that is no UTF-8":                 "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"annotations\":{\"a\":\"\xff\"}}}",
		"a lone surrogate":                        `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"a":"\ud800"}}}`,
		"unknown fields":                          `{"apiVersion":"v1","kind":"Pod","spec":{"future":{"a":[1,2]}}}`,
		"null for everything":                     `{"apiVersion":"v1","kind":"Pod","metadata":null,"spec":{"containers":[null],"tolerations":null,"priority":null,"overhead":{"a":null}}}`,
		"quantities as numbers":                   `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"resources":{"limits":{"a.com/b":2,"cpu":0.5,"c.com/d":"1e3"}}}]}}`,
		"a quantity that is none":                 `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"resources":{"limits":{"a.com/b":"two"}}}]}}`,
		"a number for a text":                     `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"rdma.vf":1}}}`,
		"a number with a point for a whole one":   `{"apiVersion":"v1","kind":"Pod","spec":{"priority":1.0}}`,
		"a number that is too large":              `{"apiVersion":"v1","kind":"Pod","spec":{"priority":4294967296}}`,
		"an object for a list":                    `{"apiVersion":"v1","kind":"Pod","spec":{"containers":{}}}`,
		"times and managed fields":                `{"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":null,"managedFields":[{"manager":"m","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:spec":{}}}]}}`,
		"a port by name and by number":            `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"livenessProbe":{"httpGet":{"port":"http"}},"readinessProbe":{"tcpSocket":{"port":80}}}]}}`,
		"another kind":                            `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}`,
		"another version":                         `{"apiVersion":"v2","kind":"Pod"}`,
		"no kind":                                 `{"metadata":{"name":"a"}}`,
		"nothing":                                 ``,
		"null":                                    `null`,
		"a list":                                  `[]`,
		"text behind the object":                  `{"apiVersion":"v1","kind":"Pod"} {}`,
		"YAML":                                    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
		"an object that breaks off":               `{"apiVersion":"v1","kind":"Pod","metadata":{`,
		"bytes, in base 64 and not, where a text": `{"apiVersion":"v1","kind":"Pod","spec":{"hostname":"aGk="}}`,
	} {
		t.Run(name, func(t *testing.T) { requireSameAsTheAPI(t, []byte(raw)) })
	}
}

// TestRandomPodsAreDecodedAsTheAPIMachineryDoes fills every field of a pod.
func TestRandomPodsAreDecodedAsTheAPIMachineryDoes(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(clientgoscheme.Scheme))
	for range 200 {
		pod := &corev1.Pod{}
		fill.Fill(pod)
		pod.APIVersion, pod.Kind = "v1", "Pod"
		raw, err := json.Marshal(pod)
		require.NoError(t, err)
		_, read := readPlain(review(t, string(raw), nil))
		require.True(t, read, "a pod that must not take the long way: %.1000s", raw)
		requireSameAsTheAPI(t, raw)
	}
}

// TestThePodIsReadWithTheReview: the tests above would pass if it were not.
func TestThePodIsReadWithTheReview(t *testing.T) {
	req, ok := readPlain(review(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`, nil))
	require.True(t, ok)
	pod, ok := req.Object.Object.(*corev1.Pod)
	require.True(t, ok)
	assert.Equal(t, "a", pod.Name)
	assert.Equal(t, "uid-1", string(req.UID))
	assert.Equal(t, "tenant-a", req.Namespace)
}

func FuzzPlain(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"rdma.vf":"1"},"finalizers":["a/b"]},"spec":{"containers":[{"name":"a","resources":{"requests":{"a.com/b":"1"}}}],"tolerations":[{"tolerationSeconds":3}]}}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}}}}}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","spec":null,"status":{"startTime":"2026-01-02T03:04:05.6Z"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) { requireSameAsTheAPI(t, raw) })
}
