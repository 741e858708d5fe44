package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// injectors are other people's webhooks. Like well-behaved ones they change nothing where they have been already.
var injectors = map[string]func(pod object) []operation{
	// A service mesh puts its proxy first.
	"mesh": func(pod object) []operation {
		if containersIn(pod)[0]["name"] == "istio-proxy" {
			return nil
		}
		return []operation{{"add", "/spec/containers/0", object{"name": "istio-proxy", "image": "proxy", "resources": object{"limits": object{"cpu": "100m"}}}}}
	},
	// A network operator adds a network of its own.
	"networks": func(pod object) []operation {
		if annotationsOf(pod)["k8s.v1.cni.cncf.io/networks"] != nil {
			return nil
		}
		return []operation{{"add", "/metadata/annotations/k8s.v1.cni.cncf.io~1networks", "one"}}
	},
	// An agent wants a device for itself.
	"greedy": func(pod object) []operation {
		if len(containersIn(pod)) > 1 {
			return nil
		}
		devices := object{"mellanox.com/mlnx_sriov_rdma": "1"}
		return []operation{{"add", "/spec/containers/-", object{"name": "greedy", "image": "agent", "resources": object{"limits": devices, "requests": devices}}}}
	},
	// A batch system wants the pod for its own scheduler.
	"scheduler": func(pod object) []operation {
		if spec, _ := pod["spec"].(object); spec["schedulerName"] == "volcano" {
			return nil
		}
		return []operation{{"add", "/spec/schedulerName", "volcano"}}
	},
	// A careless one replaces all annotations.
	"wipe": func(pod object) []operation {
		if annotationsOf(pod)["wiped"] != nil {
			return nil
		}
		return []operation{{"add", "/metadata/annotations", object{"wiped": "yes", "rdma.vf": "1"}}}
	},
	"finalizers": func(pod object) []operation {
		if slices.Contains(finalizersOf(pod), any("example.com/theirs")) {
			return nil
		}
		return []operation{{"add", "/metadata/finalizers", []string{"example.com/theirs"}}}
	},
	// A portal writes the intent.
	"count": func(pod object) []operation {
		if annotationsOf(pod)["rdma.vf"] == "2" {
			return nil
		}
		return []operation{{"add", "/metadata/annotations/rdma.vf", "2"}}
	},
}

func containersIn(pod object) []object {
	spec, _ := pod["spec"].(object)
	return containersOf(object{"containers": spec["containers"]})
}

// startInjectors registers each injector twice: before tenant-webhook, for pods labelled injector-before, and after it.
// The API server calls webhooks in the order of their configurations' names.
func (w *world) startInjectors(t *testing.T) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(inject))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name := range injectors {
		for prefix, label := range map[string]string{"a-": "injector-before", "z-": "injector-after"} {
			_, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: prefix + name},
				Webhooks: []admissionregistrationv1.MutatingWebhook{{
					Name: name + ".example.com", AdmissionReviewVersions: []string{"v1"},
					ClientConfig:       admissionregistrationv1.WebhookClientConfig{URL: new(server.URL + "/" + name), CABundle: ca},
					SideEffects:        new(admissionregistrationv1.SideEffectClassNone),
					ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy),
					ObjectSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{label: name}},
					Rules: []admissionregistrationv1.RuleWithOperations{{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
				}}}, metav1.CreateOptions{})
			require.NoError(t, err)
			probe := marshal(t, object{"metadata": object{"name": "probe", "labels": object{label: name}, "annotations": object{"x": "y"}},
				"spec": object{"containers": []any{object{"name": "app", "image": "app"}}}})
			eventually(t, prefix+name+" is in force", func(ctx context.Context) error {
				pod, err := w.create(ctx, elsewhere, probe, true)
				if err == nil && len(injectors[name](pod)) > 0 {
					err = errors.New("the pod was not changed")
				}
				return err
			})
		}
	}
}

func inject(response http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	var pod object
	err := json.NewDecoder(request.Body).Decode(&review)
	if err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &pod)
	}
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if operations := injectors[request.URL.Path[1:]](pod); len(operations) > 0 {
		review.Response.Patch, _ = json.Marshal(operations)
		review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
	}
	review.Request = nil
	_ = json.NewEncoder(response).Encode(review)
}
