package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/test/perf/fixture"
)

// devicesPerNode is what each node offers of each pool.
const devicesPerNode = 8

// apiServer answers watches that ask for everything first, as the informers of client-go make them.
type apiServer struct{ nodes, pods, share int }

func (s *apiServer) holds(i int) bool { return i%100 < s.share }

func (s *apiServer) holders() int {
	n := 0
	for i := range s.pods {
		if s.holds(i) {
			n++
		}
	}
	return n
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "" || r.URL.Query().Get("sendInitialEvents") != "true" {
		http.Error(w, "only watches with sendInitialEvents=true are served, not "+r.URL.String(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	var err error
	if strings.HasSuffix(r.URL.Path, "/nodes") {
		err = send(w, s.nodes, s.node, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
	} else {
		err = send(w, s.pods, s.pod, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}})
	}
	if flusher, ok := w.(http.Flusher); ok && err == nil {
		flusher.Flush()
	}
	<-r.Context().Done()
}

// kubeObject is what a watch can send.
type kubeObject interface {
	runtime.Object
	metav1.Object
}

// send streams events as the API server does to a client that takes protobuf, which controller-runtime's cache is for
// the types of Kubernetes itself.
func send(w io.Writer, count int, object func(int) runtime.Object, end kubeObject) error {
	info, ok := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return errors.New("client-go does not know protobuf")
	}
	events := streaming.NewEncoder(info.StreamSerializer.NewFrameWriter(w), info.StreamSerializer.Serializer)
	one := func(kind watch.EventType, object runtime.Object) error {
		var encoded bytes.Buffer
		if err := info.Serializer.Encode(object, &encoded); err != nil {
			return err
		}
		return events.Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: encoded.Bytes()}})
	}
	for i := range count {
		if err := one(watch.Added, object(i)); err != nil {
			return err
		}
	}
	end.SetResourceVersion("1")
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return one(watch.Bookmark, end)
}

func (s *apiServer) node(i int) runtime.Object {
	node := fixture.Node(i, devicesPerNode)
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	for image := range 20 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:%064d", image, i)}, SizeBytes: 1 << 28})
	}
	node.ManagedFields = managed(2000)
	return node
}

// pod has the size of a usual one, about 5 KiB as JSON.
func (s *apiServer) pod(i int) runtime.Object {
	node := fmt.Sprintf("node-%05d", i%s.nodes)
	pod := fixture.Holder(i, node, fixture.FirstPool)
	// As a binding leaves it: the networks' names have the pod's UID.
	pod.Annotations[rdma.NetworksAnnotation] = fmt.Sprintf("%s/rdma-%08d-aaaa-bbbb-cccc-dddddddddddd-0@rdma0", pod.Namespace, i)
	if !s.holds(i) {
		pod = fixture.NewPod(i)
		pod.Annotations = nil
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.ManagedFields = managed(2500)
	container := &pod.Spec.Containers[0]
	for n := range 15 {
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", n), Value: fmt.Sprint("value of it ", i)})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container.Name, Image: container.Image, Ready: true,
		ImageID: fmt.Sprintf("sha256:%064d", i), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodReadyToStartContainers} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue})
	}
	return pod
}

// managed is a managedFields entry of about so many bytes.
func managed(size int) []metav1.ManagedFieldsEntry {
	fields := `{"f:x": "` + strings.Repeat("f", size) + `"}`
	return []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields)}}
}
