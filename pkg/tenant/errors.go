package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of an error's text. A Kubernetes Event's message has at most 1024 bytes, and callers add their own words.
const (
	maxReasonBytes = 64
	maxDetailBytes = 400
	maxErrorBytes  = 600
)

// Error is why a call failed. Its text is short and printable enough for a Kubernetes Event.
type Error struct {
	// Op is ensure, release, get, list or healthy.
	Op string
	// Status is the HTTP status of the last answer, 0 if there was none.
	Status int
	// Reason and Detail are the tenant-controller's, bounded and without control characters.
	Reason string
	Detail string
	// RetryAfter is what the last answer asked for, 0 if nothing.
	RetryAfter time.Duration
	// Current is the present allocation; with a conflict only, and nil there if none exists.
	Current *Allocation

	local bool  // refused by the client: nothing was sent
	cause error // why there was no usable answer: network, caller's context, garbage
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tenant-controller: %s", e.Op)
	if e.Status != 0 {
		fmt.Fprintf(&b, ": %d", e.Status)
		if e.Reason != "" {
			fmt.Fprintf(&b, " %s", e.Reason)
		} else if text := http.StatusText(e.Status); text != "" {
			fmt.Fprintf(&b, " %s", text)
		}
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %s", e.cause)
	}
	return Printable(b.String(), maxErrorBytes)
}

// Unwrap makes the caller's context errors, and others below, visible to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.cause }

// IsConflict says that the generation was stale. Error.Current has the present allocation: the caller reads the pod
// again and tries once more.
func IsConflict(err error) bool {
	e := asError(err)
	return e != nil && e.cause == nil && e.Status == http.StatusConflict
}

// IsFinal says that the tenant-controller understood and refused: the same ask will be refused again. The text
// belongs in the pod's Event.
func IsFinal(err error) bool {
	e := asError(err)
	if e == nil {
		return false
	}
	return e.local || e.cause == nil && e.Status >= 400 && e.Status < 500 &&
		e.Status != http.StatusConflict && e.Status != http.StatusTooManyRequests
}

// IsNotFound says that there is no such allocation. It is final too.
func IsNotFound(err error) bool {
	e := asError(err)
	return e != nil && e.cause == nil && e.Status == http.StatusNotFound && e.Reason == ReasonNotFound
}

// IsUnavailable says that the tenant-controller could not be asked, did not answer in time, or answered nonsense.
// Nobody knows whether it acted. The caller's own cancellation is not the tenant-controller's fault and is none of
// these; the caller's deadline is, because it is the answer that was missing.
func IsUnavailable(err error) bool {
	return asError(err) != nil && !IsConflict(err) && !IsFinal(err) && !errors.Is(err, context.Canceled)
}

func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return nil
}

// invalid is an argument that cannot be sent.
func invalid(op, format string, args ...any) *Error {
	return &Error{Op: op, Reason: ReasonInvalid, Detail: Printable(fmt.Sprintf(format, args...), maxDetailBytes), local: true}
}

// noAnswerError stands for an attempt's own timeout. net/http's error says it is context.DeadlineExceeded, which a
// caller would take for the end of its own context.
type noAnswerError struct{ after time.Duration }

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", e.after) }

// Timeout is how the net package marks such errors.
func (e noAnswerError) Timeout() bool { return true }

// causeOf chooses the error to keep: the caller's context first, then what lies under net/http's wrapping.
func causeOf(ctx context.Context, err error, timeout time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var timeouter interface{ Timeout() bool }
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeouter) && timeouter.Timeout() {
		return noAnswerError{after: timeout}
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// Printable makes foreign text fit for a log line or an Event: one line, no control or direction-changing
// characters, valid UTF-8, at most limit bytes.
func Printable(text string, limit int) string {
	// Cut first: the text may be long, and mapping never makes it more than three times as long.
	if len(text) > 4*limit {
		text = text[:4*limit]
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= limit {
		return text
	}
	const ellipsis = "…"
	cut := limit - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
