package admission

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// Path is where the mutating webhook is served.
const Path = "/mutate-v1-pod"

// Handler answers reviews of pods. A request holds the pod as raw JSON, or decoded in Object.Object.
type Handler struct {
	injector *Injector
	decoder  ctrladmission.Decoder
	reviews  *prometheus.CounterVec
	duration prometheus.Histogram
}

// Results of a review, as the metric counts them.
const (
	resultInjected = "injected"
	resultRefused  = "refused"
	resultIgnored  = "ignored"
	resultDryRun   = "dry_run"
	resultError    = "error"
)

// NewHandler returns a handler. The registerer gets its metrics and may be nil.
func NewHandler(injector *Injector, decoder ctrladmission.Decoder, registerer prometheus.Registerer) (*Handler, error) {
	h := &Handler{
		injector: injector,
		decoder:  decoder,
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rdma_admission_reviews_total",
			Help: "Reviews of pods, by result: injected, refused, ignored, dry_run or error.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rdma_admission_duration_seconds",
			Help:    "Time to answer one review, in seconds.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
	}
	if registerer != nil {
		for _, collector := range []prometheus.Collector{h.reviews, h.duration} {
			if err := registerer.Register(collector); err != nil {
				return nil, fmt.Errorf("registering metrics of admission: %w", err)
			}
		}
	}
	return h, nil
}

// Handle implements controller-runtime's admission.Handler.
func (h *Handler) Handle(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
	start := time.Now()
	result := resultError // unless handle returns: controller-runtime answers for a panic that passes through here
	defer func() {
		h.duration.Observe(time.Since(start).Seconds())
		h.reviews.WithLabelValues(result).Inc()
	}()
	var response ctrladmission.Response
	response, result = h.handle(ctx, req)
	return response
}

func (h *Handler) handle(ctx context.Context, req ctrladmission.Request) (ctrladmission.Response, string) {
	// Only CREATE: the spec is immutable afterwards, and removing a finalizer must not depend on this program.
	if req.Operation != admissionv1.Create || req.SubResource != "" || req.Kind.Kind != "Pod" {
		return ctrladmission.Allowed(""), resultIgnored
	}
	pod, decoded := req.Object.Object.(*corev1.Pod)
	if !decoded {
		pod = &corev1.Pod{}
		if err := h.decoder.Decode(req, pod); err != nil {
			return ctrladmission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the pod: %w", err)), resultError
		}
	}
	if !rdma.HasIntent(pod.Annotations) {
		return ctrladmission.Allowed(""), resultIgnored
	}
	// A mirror pod only shows what a kubelet runs already; a finalizer would keep the kubelet from deleting it.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		if errs := forgeries(pod); len(errs) > 0 {
			return refused(ctx, req, pod, errs), resultRefused
		}
		return ctrladmission.Allowed(""), resultIgnored
	}
	dryRun := req.DryRun != nil && *req.DryRun
	result, errs := h.injector.Inject(pod, req.Namespace, dryRun)
	if len(errs) > 0 {
		return refused(ctx, req, pod, errs), resultRefused
	}
	response, err := allowedWith(pod, result.Pod)
	if err != nil {
		return ctrladmission.Errored(http.StatusInternalServerError, err), resultError
	}
	response.Warnings = result.Warnings
	if dryRun {
		return response, resultDryRun
	}
	logger := klog.FromContext(ctx).WithValues("pod", podRef(req, pod))
	for _, e := range result.Choice.Assignment {
		logger.Info("Selected resource pool: "+string(e.Pool), "available", result.Choice.Available[e.Pool],
			"required", e.Count, "type", e.Type, "admissionID", result.Pod.Annotations[rdma.AdmissionIDAnnotation])
	}
	return response, resultInjected
}

// allowedWith allows a pod with what was changed.
func allowedWith(before, after *corev1.Pod) (ctrladmission.Response, error) {
	response := ctrladmission.Allowed("")
	operations := patch(before, after)
	if len(operations) == 0 {
		return response, nil
	}
	var err error
	if response.Patch, err = json.Marshal(operations); err != nil {
		return response, fmt.Errorf("encoding the patch: %w", err)
	}
	response.PatchType = new(admissionv1.PatchTypeJSONPatch)
	return response, nil
}

// refused answers as the API server's own validation does.
func refused(ctx context.Context, req ctrladmission.Request, pod *corev1.Pod, errs field.ErrorList) ctrladmission.Response {
	ref := podRef(req, pod)
	klog.FromContext(ctx).V(2).Info("pod is refused", "pod", ref, "reason", errs.ToAggregate())
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, ref.Name, errs).Status()
	return ctrladmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
}

// podRef names a pod under admission: one made from a template has no namespace, and only the beginning of a name.
func podRef(req ctrladmission.Request, pod *corev1.Pod) klog.ObjectRef {
	if pod.Name != "" {
		return klog.KRef(req.Namespace, pod.Name)
	}
	return klog.KRef(req.Namespace, pod.GenerateName+"?")
}
