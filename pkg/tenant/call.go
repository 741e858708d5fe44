package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/hashicorp/go-retryablehttp"
)

// errTooLong is a reply of more than MaxBodyBytes. Asking again would only read as much again.
var errTooLong = errors.New("the answer is too long")

// call is one operation, whatever number of attempts it takes.
type call struct {
	op     string
	method string
	url    string
	body   []byte
	// decode reads the body of a 2xx answer; nil if none is wanted. It may run once per attempt.
	decode func(body []byte) error
}

// answer is what the handler took in last.
type answer struct {
	from    *http.Response // tells it from an earlier attempt's
	status  int
	header  http.Header
	problem Problem
}

// do makes the call and turns everything but a 2xx with a good body into an *Error.
func (c *Client) do(ctx context.Context, call call) error {
	var body any
	if call.body != nil {
		body = call.body
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, call.method, call.url, body)
	if err != nil {
		return invalid(call.op, "%v", err)
	}
	req.Header.Set("Accept", "application/json, "+ProblemContentType)
	req.Header.Set("User-Agent", "tenant-webhook")
	if call.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	// The handler runs inside an attempt, so that a body that breaks off is asked for again.
	var last answer
	handle := func(resp *http.Response) error { return c.read(resp, call, &last) }
	req.SetResponseHandler(handle)
	resp, err := c.http.Do(req)
	if resp != nil {
		defer func() { _ = resp.Body.Close() }() // the body has been read or is not wanted
	}
	// After the last attempt go-retryablehttp hands over a retryable status without the handler.
	if err == nil && last.from != resp {
		err = handle(resp)
	}
	if err != nil {
		if last.from != resp {
			last = answer{} // the last attempt had no answer; an earlier one's would mislead
		}
		return c.failure(call.op, last, causeOf(ctx, err, c.config.Timeout))
	}
	if last.status/100 != 2 {
		return c.failure(call.op, last, nil)
	}
	return nil
}

// read takes in one answer. An error means that the answer is no good and the question may be asked again.
func (c *Client) read(resp *http.Response, call call, last *answer) error {
	*last = answer{from: resp, status: resp.StatusCode, header: resp.Header}
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.config.MaxBodyBytes+1))
	if int64(len(body)) > c.config.MaxBodyBytes {
		return fmt.Errorf("%w: more than %d bytes", errTooLong, c.config.MaxBodyBytes)
	}
	if resp.StatusCode/100 == 2 {
		if err != nil {
			return fmt.Errorf("the answer broke off: %w", err)
		}
		if call.decode != nil {
			return call.decode(body)
		}
		return nil
	}
	// The status alone says what to do: a refusal stays one even if its reasons are unreadable.
	if err == nil && isProblem(resp.Header) {
		if json.Unmarshal(body, &last.problem) != nil {
			last.problem = Problem{}
		}
	}
	return nil
}

// failure describes the last answer, or the lack of one.
func (c *Client) failure(op string, last answer, cause error) *Error {
	e := &Error{
		Op:     op,
		Status: last.status,
		Reason: Printable(last.problem.Reason, maxReasonBytes),
		Detail: Printable(last.problem.Detail, maxDetailBytes),
		cause:  cause,
	}
	if e.Detail == "" {
		e.Detail = Printable(last.problem.Title, maxDetailBytes)
	}
	if last.header != nil {
		e.RetryAfter = retryAfter(last.header, c.policy.now())
	}
	if last.status/100 == 3 {
		e.Detail = Printable("redirects are not followed: "+last.header.Get("Location"), maxDetailBytes)
	}
	if last.status == http.StatusConflict {
		e.Current = last.problem.Allocation
	}
	return e
}
