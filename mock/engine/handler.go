package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Operations, as in fault rules and in the request log.
const (
	opEnsure  = "ensure"
	opRelease = "release"
	opGet     = "get"
	opList    = "list"
	opHealthy = "healthy"
)

const (
	maxBodyBytes = 1 << 20
	maxPage      = 500
)

// exchange is one request to the contract on its way through faults and contract.
type exchange struct {
	operation string
	request   *http.Request
	body      []byte
	record    Record

	// What the contract answers.
	status     int
	retryAfter int
	answer     any // nil: no body
}

// Handler serves the contract, with the faults that have been asked for, and the mock's own paths under /mock/.
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	contract := func(pattern, operation string, serve func(*exchange)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { e.exchange(w, r, operation, serve) })
	}
	contract("PUT /v1/allocations/{podUID}", opEnsure, e.serveEnsure)
	contract("GET /v1/allocations/{podUID}", opGet, e.serveGet)
	contract("DELETE /v1/allocations/{podUID}", opRelease, e.serveRelease)
	contract("GET /v1/allocations", opList, e.serveList)
	contract("GET /healthz", opHealthy, func(x *exchange) { x.status = http.StatusOK })
	mux.HandleFunc("GET /mock/faults", e.getFaults)
	mux.HandleFunc("PUT /mock/faults", e.putFaults)
	mux.HandleFunc("DELETE /mock/faults", e.deleteFaults)
	mux.HandleFunc("POST /mock/forget", e.postForget)
	return mux
}

// exchange reads the request, lets the faults and the contract have it, and logs it however it ends.
func (e *Engine) exchange(w http.ResponseWriter, r *http.Request, operation string, serve func(*exchange)) {
	x := &exchange{operation: operation, request: r}
	x.record = Record{Time: e.clock.Now(), Operation: operation, Method: r.Method, Path: r.URL.RequestURI()}
	if e.log != nil {
		defer func() { // also when a fault cuts the connection, by a panic
			x.record.DurationMillis = e.clock.Since(x.record.Time).Milliseconds()
			e.log.write(&x.record)
		}()
	}
	body, err := readBody(w, r)
	x.body, x.record.Body = body, asJSON(body)
	if err != nil {
		x.fail(malformed("reading the body: %v", err))
		x.record.Acted, x.record.Status = true, x.status
		x.write(w)
		return
	}
	e.apply(w, x, func() {
		serve(x)
		x.record.Acted, x.record.Status = true, x.status
	})
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
}

func (e *Engine) serveEnsure(x *exchange) {
	var ask tenant.EnsureRequest
	if err := json.Unmarshal(x.body, &ask); err != nil {
		x.fail(malformed("the body is no ensure request: %v", err))
		return
	}
	allocation, err := e.Ensure(x.request.Context(), types.UID(x.request.PathValue("podUID")), ask)
	x.finish(allocation, err)
}

func (e *Engine) serveGet(x *exchange) {
	x.finish(e.Get(x.request.URL.Query().Get("cluster"), types.UID(x.request.PathValue("podUID"))))
}

func (e *Engine) serveRelease(x *exchange) {
	query := x.request.URL.Query()
	generation, err := integer(query, "generation", 0)
	if err != nil {
		x.fail(err)
		return
	}
	minAge, err := integer(query, "minAgeSeconds", 0)
	if err != nil {
		x.fail(err)
		return
	}
	released, err := e.ReleaseUnused(x.request.Context(), query.Get("cluster"), types.UID(x.request.PathValue("podUID")), generation,
		time.Duration(minAge)*time.Second)
	x.finish(released, err)
	if err == nil {
		x.status, x.answer = http.StatusNoContent, nil
	}
}

func (e *Engine) serveList(x *exchange) {
	query := x.request.URL.Query()
	limit, err := integer(query, "limit", maxPage)
	after, decodeErr := base64.RawURLEncoding.DecodeString(query.Get("continue"))
	switch {
	case err != nil:
	case query.Get("cluster") == "":
		err = malformed("cluster is missing")
	case limit < 1 || limit > maxPage:
		err = malformed("limit is from 1 to %d, not %d", maxPage, limit)
	case decodeErr != nil:
		err = malformed("continue is no token of ours: %q", query.Get("continue"))
	}
	if err != nil {
		x.fail(err)
		return
	}
	page, more := e.List(query.Get("cluster"), types.UID(after), int(limit))
	list := tenant.AllocationList{Allocations: page}
	if more {
		list.Continue = base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1].PodUID))
	}
	x.status, x.answer = http.StatusOK, list
}

func integer(query url.Values, name string, absent int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, malformed("%s is no number: %q", name, text)
	}
	return n, nil
}

// finish answers with the allocation or the error. allocation may be nil without an error.
func (x *exchange) finish(allocation *tenant.Allocation, err error) {
	if err != nil {
		x.fail(err)
		return
	}
	x.record.Allocation = allocation
	x.status, x.answer = http.StatusOK, allocation
}

func (x *exchange) fail(err error) {
	var refusal *RefusalError
	if !errors.As(err, &refusal) {
		refusal = unavailable("%v", err) // the caller's context: nobody is left to read it
	}
	x.record.Allocation = refusal.Current
	x.status, x.retryAfter = refusal.Status, refusal.RetryAfter
	x.answer = tenant.Problem{
		Type: "about:blank", Title: http.StatusText(refusal.Status), Status: refusal.Status,
		Detail: refusal.Detail, Reason: refusal.Reason, Allocation: refusal.Current,
	}
}

// write sends the answer.
func (x *exchange) write(w http.ResponseWriter) {
	x.record.Sent = x.status
	if x.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(x.retryAfter))
	}
	writeJSON(w, x.status, x.answer)
}

// writeJSON sends a whole body with its length; a client that went away is not our concern.
func writeJSON(w http.ResponseWriter, status int, answer any) {
	if answer == nil {
		w.WriteHeader(status)
		return
	}
	contentType := "application/json"
	if status >= 400 {
		contentType = tenant.ProblemContentType
	}
	body, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, fmt.Sprintf("encoding the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// decodeStrictly refuses unknown fields and trailing data: a misspelt fault would be no fault at all.
func decodeStrictly(body []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return malformed("the body: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return malformed("the body goes on after its end")
	}
	return nil
}
