package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/mock/nad"
	"tenant.network/tenant-webhook/pkg/plugin"
)

// world is what the plugin needs besides the scheduler: the project's objects and a tenant-controller.
type world struct {
	latencyMillis, errorsInHundred int
	// written has the tenant-controller write its networks through the API server; otherwise they are given.
	written bool

	server *httptest.Server
	given  *givenNetworks
	calls  atomic.Int64
}

// newPlugin is the plugin's factory. The suite starts the API server and the scheduler in one step, so what the plugin
// reads at its start is made here.
func (w *world) newPlugin(whole context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	ctx, cancel := context.WithTimeout(whole, time.Minute)
	defer cancel()
	if err := prepare(ctx, handle.ClientSet()); err != nil {
		return nil, err
	}
	networks, err := w.networks(ctx, handle.KubeConfig())
	if err != nil {
		return nil, err
	}
	mock := engine.New(engine.Options{Networks: networks})
	if w.latencyMillis > 0 {
		if err := mock.SetFaults([]engine.Fault{{Operation: "ensure", LatencyMillis: w.latencyMillis}}); err != nil {
			return nil, err
		}
	}
	handler := mock.Handler()
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if call := w.calls.Add(1); w.errorsInHundred > 0 && call%100 < int64(w.errorsInHundred) {
			http.Error(rw, "made to fail", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(rw, r)
	}))
	if err := os.Setenv("TENANT_CONTROLLER_URL", w.server.URL); err != nil {
		return nil, err
	}
	return plugin.New(whole, object, handle)
}

func (w *world) networks(ctx context.Context, config *rest.Config) (engine.Networks, error) {
	if !w.written {
		w.given = newGivenNetworks()
		return w.given, w.given.register(ctx, config)
	}
	if err := defineNetworks(ctx, config); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON // custom resources have no other
	client, err := netclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return nad.New(client), nil
}

func (w *world) close() {
	if w.server != nil {
		w.server.Close()
	}
	if w.given != nil {
		w.given.server.Close()
	}
}

// prepare makes the namespace and the pool configuration.
func prepare(ctx context.Context, client kubernetes.Interface) error {
	pools, err := shippedPools()
	if err != nil {
		return err
	}
	for _, name := range []string{metav1.NamespaceSystem, pools.Namespace} {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	_, err = client.CoreV1().ConfigMaps(pools.Namespace).Create(ctx, pools, metav1.CreateOptions{})
	return err
}

// defineNetworks makes the definition of NetworkAttachmentDefinitions.
func defineNetworks(ctx context.Context, config *rest.Config) error {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "internal", "devcluster", "crds", "network-attachment-definitions.yaml"))
	if err != nil {
		return err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &definition); err != nil {
		return err
	}
	extensions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := extensions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, &definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		made, err := extensions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // tried again until the deadline
		}
		for _, condition := range made.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

// shippedPools is the pool configuration of the manifests, where it stands behind its namespace.
func shippedPools() (*corev1.ConfigMap, error) {
	const name = "manifests/resource-pool-config.yaml"
	manifest, err := tenantwebhook.Manifests.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var pools corev1.ConfigMap
		if yaml.UnmarshalStrict([]byte(document), &pools) == nil && pools.Kind == "ConfigMap" {
			return &pools, nil
		}
	}
	return nil, fmt.Errorf("%s holds no ConfigMap", name)
}

// number reads a whole number from the environment; nothing means 0.
func number(b *testing.B, key string) int {
	b.Helper()
	text := os.Getenv(key)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err, key)
	return n
}
