package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// givenNetworks is where networks are that cost this machine no write: the tenant-controller's own work is not the
// scheduler's, and elsewhere it is done by another machine. What the scheduler itself does, one live read of each network,
// goes through the API server as usual, which asks here (an aggregated API).
type givenNetworks struct {
	server *httptest.Server

	mu      sync.Mutex
	objects map[string]metav1.PartialObjectMetadata
}

const (
	nadGroup   = "k8s.cni.cncf.io"
	nadVersion = "v1"
	nadPlural  = "network-attachment-definitions"
	nadPath    = "/apis/" + nadGroup + "/" + nadVersion
)

func newGivenNetworks() *givenNetworks {
	g := &givenNetworks{objects: map[string]metav1.PartialObjectMetadata{}}
	g.server = httptest.NewTLSServer(g)
	return g
}

// Create implements engine.Networks.
func (g *givenNetworks) Create(_ context.Context, allocation tenant.Allocation) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, network := range allocation.Networks {
		g.objects[network.Namespace+"/"+network.Name] = metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Namespace: network.Namespace, Name: network.Name,
				Labels:      map[string]string{rdma.PodUIDLabel: string(allocation.PodUID)},
				Annotations: map[string]string{rdma.ResourceNameAnnotation: network.Pool}},
		}
	}
	return nil
}

// Delete implements engine.Networks.
func (g *givenNetworks) Delete(_ context.Context, allocation tenant.Allocation) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, network := range allocation.Networks {
		delete(g.objects, network.Namespace+"/"+network.Name)
	}
	return nil
}

// ServeHTTP answers discovery and reads.
func (g *givenNetworks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == nadPath {
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: nadGroup + "/" + nadVersion, APIResources: []metav1.APIResource{{Name: nadPlural, Namespaced: true, Kind: "NetworkAttachmentDefinition"}}})
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, nadPath+"/"), "/")
	if r.Method == http.MethodGet && len(parts) == 4 && parts[0] == "namespaces" && parts[2] == nadPlural {
		g.mu.Lock()
		object, ok := g.objects[parts[1]+"/"+parts[3]]
		g.mu.Unlock()
		if ok {
			_ = json.NewEncoder(w).Encode(object)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
}

// register makes the API server ask here for networks.
func (g *givenNetworks) register(ctx context.Context, config *rest.Config) error {
	address, err := url.Parse(g.server.URL)
	if err != nil {
		return err
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.ContentType = "application/json"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	service := map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"namespace": metav1.NamespaceDefault, "name": "networks"},
		"spec": map[string]any{"type": "ExternalName", "externalName": "localhost"}}
	if _, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(metav1.NamespaceDefault).
		Create(ctx, &unstructured.Unstructured{Object: service}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("service of the networks: %w", err)
	}
	apiService := map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": nadVersion + "." + nadGroup},
		"spec": map[string]any{"group": nadGroup, "version": nadVersion, "groupPriorityMinimum": int64(1000), "versionPriority": int64(1), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": metav1.NamespaceDefault, "name": "networks", "port": port}}}
	if _, err := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}).
		Create(ctx, &unstructured.Unstructured{Object: apiService}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("API of the networks: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		_, err := kube.Discovery().ServerResourcesForGroupVersion(nadGroup + "/" + nadVersion)
		return err == nil, nil
	})
}
