package engine

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// RequestLog writes one JSON line per request, for a checker outside. Lines are in the order in which requests ended.
type RequestLog struct {
	mu  sync.Mutex
	out io.Writer
}

// NewRequestLog returns a log that writes to out, one Write per line.
func NewRequestLog(out io.Writer) *RequestLog { return &RequestLog{out: out} }

// Record is one line of the log.
type Record struct {
	// Time is when the request came, DurationMillis how long it took.
	Time           time.Time `json:"time"`
	DurationMillis int64     `json:"durationMillis"`
	Operation      string    `json:"operation"`
	Method         string    `json:"method"`
	// Path has the query too.
	Path string `json:"path"`
	// Body is the request's, as a string if it is no JSON.
	Body json.RawMessage `json:"body,omitempty"`
	// Acted says that the contract saw the request; Status is its answer, even if a fault changed or cut it then.
	Acted  bool `json:"acted"`
	Status int  `json:"status,omitempty"`
	// Sent is the status that the caller got; 0 if the connection was cut before one was sent.
	Sent int `json:"sent,omitempty"`
	// Allocation is the true one: what an ensure or get answered, what a release released, what a conflict showed.
	Allocation *tenant.Allocation `json:"allocation,omitempty"`
	// Fault is the rule that was applied.
	Fault *Fault `json:"fault,omitempty"`
}

// write never fails a request: a log that cannot be written is the checker's to notice, by the missing lines.
func (l *RequestLog) write(record *Record) {
	line, err := json.Marshal(record)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.out.Write(append(line, '\n'))
}

// asJSON makes any body fit for a line.
func asJSON(body []byte) json.RawMessage {
	if len(body) == 0 {
		return nil
	}
	if json.Valid(body) {
		return body
	}
	text, err := json.Marshal(string(body))
	if err != nil {
		return nil
	}
	return text
}
