package admission

import (
	"bytes"
	"io"
	"net/http"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// server serves reviews over HTTP. controller-runtime's Webhook and the API machinery read a review three times and the
// pod in it as often again, which takes much longer than everything that is done about the pod. Here both are read in one
// go, by encoding/json/v2 (until Go 1.27 from its own module). What that does not read, such as a field given twice, and
// what is no plain review of a pod, is handed on to the Webhook to judge, so that nobody is refused for want of speed.
type server struct{ webhook ctrladmission.Webhook }

// NewServer returns what serves a handler at Path.
func NewServer(handler ctrladmission.Handler) http.Handler {
	return &server{webhook: ctrladmission.Webhook{Handler: handler, LogConstructor: logReview}}
}

// logReview tells reviews apart in the log. Which pod it is, the handler says.
func logReview(base logr.Logger, req *ctrladmission.Request) logr.Logger {
	if req == nil {
		return base
	}
	return base.WithValues("user", req.UserInfo.Username, "requestID", req.UID)
}

// plainReview is an AdmissionReview with the pod in it.
type plainReview struct {
	metav1.TypeMeta
	Request *struct {
		admissionv1.AdmissionRequest
		Pod *corev1.Pod `json:"object"` // hides the one of AdmissionRequest
	} `json:"request"`
}

// longestPlain is the longest body that is read here, in bytes; the API server's reviews of pods have a few thousand.
const longestPlain = 1 << 20

// bodies are used again: what is decoded from one is copied.
var bodies = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Header.Get("Content-Type") != "application/json" {
		s.webhook.ServeHTTP(w, r)
		return
	}
	body, _ := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	_, err := body.ReadFrom(io.LimitReader(r.Body, longestPlain))
	req, ok := readPlain(body.Bytes())
	if err != nil || !ok {
		r.Body = &reread{Reader: io.MultiReader(body, r.Body), Closer: r.Body}
		s.webhook.ServeHTTP(w, r)
		return
	}
	response := s.webhook.Handle(r.Context(), req)
	answer := admissionv1.AdmissionReview{Response: &response.AdmissionResponse}
	answer.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	w.Header().Set("Content-Type", "application/json")
	if err := json.MarshalWrite(w, answer); err != nil {
		klog.FromContext(r.Context()).Error(err, "a review was not answered: the connection is gone", "requestID", response.UID)
	}
}

// readPlain decodes a review of a pod. False means that it is something else.
func readPlain(body []byte) (ctrladmission.Request, bool) {
	var review plainReview
	if json.Unmarshal(body, &review, withoutTheUnread) != nil {
		return ctrladmission.Request{}, false
	}
	if review.Kind != "AdmissionReview" || review.APIVersion != admissionv1.SchemeGroupVersion.String() ||
		review.Request == nil || review.Request.Pod == nil {
		return ctrladmission.Request{}, false
	}
	pod := review.Request.Pod
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return ctrladmission.Request{}, false
	}
	request := review.Request.AdmissionRequest
	request.Object = runtime.RawExtension{Object: pod}
	return ctrladmission.Request{AdmissionRequest: request}, true
}

// withoutTheUnread skips what takes up half of a review and is never looked at.
var withoutTheUnread = json.WithUnmarshalers(json.JoinUnmarshalers(skip[[]metav1.ManagedFieldsEntry](), skip[[]corev1.Volume](),
	skip[[]corev1.VolumeMount](), skip[[]corev1.EnvVar](), skip[runtime.RawExtension]()))

func skip[T any]() *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ *T) error { return d.SkipValue() })
}

// reread is a body of which the beginning was read already.
type reread struct {
	io.Reader
	io.Closer
}
