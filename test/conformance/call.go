package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// The caller's side of the contract, as pkg/tenant keeps it. That client is not used: it hides what is judged here.
const (
	attempts      = 3
	pause         = 500 * time.Millisecond
	maxRetryAfter = 2 * time.Second
	maxBodyBytes  = 4 << 20
)

// answer is what came back, with the question for messages.
type answer struct {
	question string
	status   int
	header   http.Header
	body     []byte
}

// String is one short line.
func (a *answer) String() string {
	const most = 300
	body := strings.Join(strings.Fields(string(a.body)), " ")
	if len(body) > most {
		body = strings.ToValidUTF8(body[:most], "") + "…"
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %d %s", a.question, a.status, body))
}

// ask sends a request as often as the contract has it.
func (r *run) ask(ctx context.Context, method, path string, query url.Values, body []byte) (*answer, error) {
	for n := 1; ; n++ {
		got, err := r.askOnce(ctx, method, path, query, body)
		if n == attempts || ctx.Err() != nil || err == nil && !retryable(got.status) {
			return got, err
		}
		if err := wait(ctx, pauseFor(got)); err != nil {
			return nil, err
		}
	}
}

// askOnce is not cut short by the context's end, or the clean-up could be there before what it has to clean up.
func (r *run) askOnce(ctx context.Context, method, path string, query url.Values, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.config.Timeout)
	defer cancel()
	target := strings.TrimSuffix(r.config.URL, "/") + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, reader)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Accept", "application/json, "+tenant.ProblemContentType)
	// So that the log of who is tested tells what a request is about.
	req.Header.Set("User-Agent", fmt.Sprintf("tenant-webhook-conformance (%s)", r.clause))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.config.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: no answer: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }() // it has been read
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxBodyBytes))
	if err != nil {
		return nil, fmt.Errorf("%s %s: the answer broke off: %w", method, path, err)
	}
	return &answer{question: method + " " + req.URL.RequestURI(), status: resp.StatusCode, header: resp.Header, body: content}, nil
}

func retryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// pauseFor is what the answer asks for, if there was one.
func pauseFor(got *answer) time.Duration {
	if got == nil {
		return pause
	}
	text := got.header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return pause
}

// wait is over early, with an error, when the context is.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mustAsk ends the check if there is no answer.
func (r *run) mustAsk(ctx context.Context, method, path string, query url.Values, body []byte) *answer {
	got, err := r.ask(ctx, method, path, query, body)
	if err != nil {
		failf("%v", err)
	}
	return got
}

// decode returns the body of a 200.
func decode[T any](got *answer) *T {
	if got.status != http.StatusOK {
		failf("%s; want 200", got)
	}
	var into T
	if err := json.Unmarshal(got.body, &into); err != nil {
		failf("%s; the body is not what it should be: %v", got, err)
	}
	return &into
}

// problem returns the body of a refusal with that status and reason. Its media type is a clause of its own.
func (a *answer) problem(status int, reason string) *tenant.Problem {
	problem, err := a.decodeProblem()
	if a.status != status || err != nil || problem.Reason != reason {
		failf("%s; want %d with a problem whose reason is %s", a, status, reason)
	}
	return problem
}

func (a *answer) decodeProblem() (*tenant.Problem, error) {
	var problem tenant.Problem
	err := json.Unmarshal(a.body, &problem)
	return &problem, err
}

var reasonPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// refused wants any final refusal that says why.
func (a *answer) refused(what string) {
	problem, err := a.decodeProblem()
	final := a.status >= 400 && a.status < 500 && a.status != http.StatusConflict && a.status != http.StatusTooManyRequests
	if !final || err != nil || !reasonPattern.MatchString(problem.Reason) {
		failf("%s: %s; want a final 4xx with a problem that has a reason", what, a)
	}
}
