package admission

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

var attachments = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

func TestAttachmentWatcherKnowsWhatFeedsANetwork(t *testing.T) {
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	client := metadatafake.NewSimpleMetadataClient(scheme)
	nad := func(namespace, name string, annotations, labels map[string]string) {
		creator, ok := client.Resource(attachments).Namespace(namespace).(metadatafake.MetadataClient)
		require.True(t, ok)
		_, err := creator.CreateFake(&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "k8s.cni.cncf.io/v1", Kind: "NetworkAttachmentDefinition"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations, Labels: labels}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	nad("a", "plain", map[string]string{"x": "y"}, nil)
	nad("a", "ours", map[string]string{"k8s.v1.cni.cncf.io/resourceName": "a.com/vf"}, map[string]string{"tenant.network/pod-uid": "uid", "x": "y"})
	nad("b", "plain", map[string]string{"k8s.v1.cni.cncf.io/resourceName": "b.com/vf"}, nil)
	watcher, err := NewAttachmentWatcher(client)
	require.NoError(t, err)
	_, known := watcher.Lookup("a", "ours")
	require.False(t, known, "nothing is known before the start")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watcher.Start(ctx) }()
	require.Eventually(t, watcher.informer.HasSynced, 20*time.Second, time.Millisecond)
	for _, tc := range []struct {
		namespace, name string
		want            Attachment
		known           bool
	}{
		{"a", "plain", Attachment{}, true},
		{"a", "ours", Attachment{Pool: "a.com/vf", PodUID: "uid"}, true},
		{"b", "plain", Attachment{Pool: "b.com/vf"}, true},
		{"b", "ours", Attachment{Missing: true}, true},
		{"", "plain", Attachment{Missing: true}, true},
	} {
		got, known := watcher.Lookup(tc.namespace, tc.name)
		assert.Equal(t, tc.known, known, "%s/%s", tc.namespace, tc.name)
		assert.Equal(t, tc.want, got)
	}
	assert.False(t, watcher.NeedLeaderElection())
	cancel()
	require.NoError(t, <-done)
}

// TestAttachmentWatcherWithoutTheCRD: a cluster without Multus has no networks to know of, which is no reason to wait.
func TestAttachmentWatcherWithoutTheCRD(t *testing.T) {
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	client := metadatafake.NewSimpleMetadataClient(scheme)
	var answer atomic.Pointer[apierrors.StatusError]
	answer.Store(apierrors.NewForbidden(attachments.GroupResource(), "", nil))
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if err := answer.Load(); err != nil {
			return true, nil, err
		}
		return true, &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}, nil
	})
	watcher, err := NewAttachmentWatcher(client)
	require.NoError(t, err)
	go func() { _ = watcher.Start(t.Context()) }()
	require.Never(t, func() bool { return watcher.Ready(nil) == nil }, 300*time.Millisecond, 10*time.Millisecond,
		"a watcher that may not read knows nothing")
	require.False(t, watcher.Absent())

	answer.Store(apierrors.NewGenericServerResponse(http.StatusNotFound, "list", attachments.GroupResource(), "", "", 0, true))
	require.Eventually(t, watcher.Absent, 20*time.Second, time.Millisecond)
	require.NoError(t, watcher.Ready(nil))

	answer.Store(nil)
	require.Eventually(t, func() bool { return !watcher.Absent() }, 40*time.Second, time.Millisecond, "the CRD was installed")
	require.Eventually(t, func() bool { return watcher.Ready(nil) == nil }, 20*time.Second, time.Millisecond, "and its objects were read")
}
