package engine

import (
	"fmt"
	"net/http"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// RefusalError is an answer other than success.
type RefusalError struct {
	Status     int
	Reason     string
	Detail     string
	RetryAfter int // seconds; 0 sends no header
	// Current is the present allocation, with a conflict.
	Current *tenant.Allocation
}

// Error implements error.
func (r *RefusalError) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Reason, r.Detail) }

func invalid(format string, args ...any) *RefusalError {
	return &RefusalError{Status: http.StatusUnprocessableEntity, Reason: tenant.ReasonInvalid, Detail: fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) *RefusalError {
	return &RefusalError{Status: http.StatusBadRequest, Reason: tenant.ReasonInvalid, Detail: fmt.Sprintf(format, args...)}
}

func podChanged(format string, args ...any) *RefusalError {
	return &RefusalError{Status: http.StatusUnprocessableEntity, Reason: tenant.ReasonPodChanged, Detail: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) *RefusalError {
	return &RefusalError{Status: http.StatusNotFound, Reason: tenant.ReasonNotFound, Detail: fmt.Sprintf(format, args...)}
}

func stale(current *tenant.Allocation, format string, args ...any) *RefusalError {
	return &RefusalError{
		Status: http.StatusConflict, Reason: tenant.ReasonStaleGeneration, Current: current,
		Detail: fmt.Sprintf(format, args...),
	}
}

func tooYoung(current *tenant.Allocation, format string, args ...any) *RefusalError {
	refusal := stale(current, format, args...)
	refusal.Reason = tenant.ReasonTooYoung
	return refusal
}

func unavailable(format string, args ...any) *RefusalError {
	return &RefusalError{
		Status: http.StatusServiceUnavailable, Reason: tenant.ReasonUnavailable, RetryAfter: 1,
		Detail: fmt.Sprintf(format, args...),
	}
}
