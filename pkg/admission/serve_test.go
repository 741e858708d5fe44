package admission

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// requireServedAsByTheLibrary posts a body here and to controller-runtime's Webhook over the same handler.
func requireServedAsByTheLibrary(t *testing.T, body io.Reader, contentType string) {
	t.Helper()
	sent, err := io.ReadAll(body)
	require.NoError(t, err)
	post := func(h http.Handler) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(string(sent)))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	got := post(newFuzzServer(t).http)
	want := post(&ctrladmission.Webhook{Handler: newFuzzServer(t).handler})
	require.Equal(t, want.Code, got.Code)
	require.JSONEq(t, withoutNothing(t, want.Body.Bytes()), withoutNothing(t, got.Body.Bytes()), "%.1000q", sent)
}

// withoutNothing brings an answer into one form: encoding/json writes some fields that are empty.
func withoutNothing(t *testing.T, answer []byte) string {
	t.Helper()
	var review admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(answer, &review), "%s", answer)
	text, err := json.Marshal(review)
	require.NoError(t, err)
	return string(text)
}

func TestReviewsAreServedAsByTheLibrary(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{"rdma.vf":"1"}},"spec":{"containers":[{"name":"a"}]}}`
	whole := string(review(t, pod, nil))
	for name, body := range map[string]string{
		"an RDMA pod":                    whole,
		"a pod that is refused":          strings.Replace(whole, `"rdma.vf":"1"`, `"rdma.vf":"1.5"`, 1),
		"an older version of the review": strings.Replace(whole, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1),
		"a version that is not known":    strings.Replace(whole, "admission.k8s.io/v1", "admission.k8s.io/v9", 1),
		"a review without a request":     `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"a pod in place of a review":     pod,
		"a body that breaks off":         whole[:len(whole)/2],
		"text behind the review":         whole + "{}",
		"no body":                        "",
		"a key given twice":              strings.Replace(whole, `"request":{`, `"request":{"uid":"first",`, 1),
		"a long review":                  strings.Replace(whole, `"rdma.vf":"1"`, `"rdma.vf":"1","long":"`+strings.Repeat("x", longestPlain)+`"`, 1),
		"a review that is too long":      strings.Replace(whole, `"rdma.vf":"1"`, `"rdma.vf":"1","long":"`+strings.Repeat("x", 8<<20)+`"`, 1),
	} {
		t.Run(name, func(t *testing.T) { requireServedAsByTheLibrary(t, strings.NewReader(body), "application/json") })
	}
	t.Run("another content type", func(t *testing.T) {
		requireServedAsByTheLibrary(t, strings.NewReader(whole), "application/yaml")
	})
}

func TestAPlainReviewMustNotTakeTheLongWay(t *testing.T) {
	s := newServer(t)
	body := review(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"rdma.vf":"1"}},"spec":{"containers":[{"name":"a"}]}}`, nil)
	s.http = &server{webhook: ctrladmission.Webhook{Handler: s.handler, WithContextFunc: func(context.Context, *http.Request) context.Context {
		panic("only the library's way asks for a context")
	}}}
	assert.True(t, s.answer(t, body).Allowed)
}

func TestABodyThatCannotBeReadIsABadRequest(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, Path, io.MultiReader(strings.NewReader(`{"kind"`), failing{}))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	newServer(t).http.ServeHTTP(w, r)
	var answer admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	assert.Equal(t, int32(http.StatusBadRequest), answer.Response.Result.Code)
	assert.Contains(t, answer.Response.Result.Message, "the connection is gone")
}

// failing is a connection that breaks.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

func FuzzServe(f *testing.F) {
	f.Add(review(f, wantsOne, nil))
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","uid":"v","operation":"CREATE"}}`))
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","Request":{"uid":"u"},"response":{"allowed":true}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		requireServedAsByTheLibrary(t, strings.NewReader(string(body)), "application/json")
	})
}
