package tenant

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/klog/v2"
)

// retried are the statuses after which the same request may be answered otherwise.
var retried = []int{
	http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// maxRetryAfter is the longest Retry-After that is taken at its word, for callers that plan by it.
const maxRetryAfter = 24 * time.Hour

// retryPolicy decides after each attempt; it is go-retryablehttp's CheckRetry and Backoff.
type retryPolicy struct {
	interval      time.Duration
	maxRetryAfter time.Duration
	now           func() time.Time
}

// check says whether to ask again. It gives up early when the pause would outlast the caller's deadline: waiting for
// nothing would hold a binding goroutine, and the error at hand says more than "deadline exceeded".
func (p retryPolicy) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if !mayRetry(resp, err) {
		return false, nil
	}
	pause := p.pause(resp)
	if deadline, ok := ctx.Deadline(); ok && !p.now().Add(pause).Before(deadline) {
		return false, nil
	}
	if logger := klog.FromContext(ctx).V(4); logger.Enabled() {
		status := 0
		if resp != nil {
			status = resp.StatusCode
		}
		logger.Info("tenant-controller will be asked again if attempts are left", "status", status, "cause", err, "pause", pause)
	}
	return true, nil
}

func mayRetry(resp *http.Response, err error) bool {
	if err != nil {
		var certificate *tls.CertificateVerificationError
		return !errors.Is(err, errTooLong) && !errors.As(err, &certificate)
	}
	return slices.Contains(retried, resp.StatusCode)
}

// pause is the interval, or what the server asks for up to the cap.
func (p retryPolicy) pause(resp *http.Response) time.Duration {
	if resp == nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return p.interval
	}
	asked := retryAfter(resp.Header, p.now())
	if asked == 0 {
		return p.interval
	}
	return min(asked, p.maxRetryAfter)
}

// backoff has go-retryablehttp's signature. The pause is even: three attempts are too few for it to grow.
func (p retryPolicy) backoff(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
	return p.pause(resp)
}

// retryAfter reads the header in both its forms, seconds and date. What is neither counts as absent.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := header.Get("Retry-After")
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		seconds = min(max(seconds, 0), int64(maxRetryAfter/time.Second))
		return time.Duration(seconds) * time.Second
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(date.Sub(now), 0), maxRetryAfter)
}
