package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"k8s.io/apimachinery/pkg/types"
)

// Client talks to a tenant-controller over HTTP.
type Client struct {
	base   *url.URL
	config Config
	policy retryPolicy
	http   *retryablehttp.Client
}

var _ API = &Client{}

// New checks the config, with the files that it names, and returns a client. It does not call the tenant-controller.
func New(config Config) (*Client, error) {
	config = config.withDefaults()
	base, err := config.validate()
	if err != nil {
		return nil, fmt.Errorf("tenant-controller client: %w", err)
	}
	roundTripper, err := newTransport(config)
	if err != nil {
		return nil, fmt.Errorf("tenant-controller client: %w", err)
	}
	policy := retryPolicy{interval: config.RetryInterval, maxRetryAfter: config.MaxRetryAfter, now: time.Now}
	return &Client{
		base:   base,
		config: config,
		policy: policy,
		http: &retryablehttp.Client{
			HTTPClient: &http.Client{
				Transport: roundTripper,
				Timeout:   config.Timeout,
				// The contract has no redirects, and following one would carry the token to somebody else.
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
			RetryMax:     config.Retries,
			CheckRetry:   policy.check,
			Backoff:      policy.backoff,
			ErrorHandler: retryablehttp.PassthroughErrorHandler,
		},
	}, nil
}

// Operations, as in Error.Op and in the metric's label.
const (
	opEnsure  = "ensure"
	opRelease = "release"
	opGet     = "get"
	opList    = "list"
	opHealthy = "healthy"
)

const allocationsPath = "v1/allocations"

// Bounds of a list: pages of the contract's largest size, and more of them than any cluster has pods for.
const (
	listLimit    = 500
	listMaxPages = 1000
)

// Ensure implements API.
func (c *Client) Ensure(ctx context.Context, podUID types.UID, ask EnsureRequest) (*Allocation, error) {
	if err := checkKey(opEnsure, ask.Cluster, podUID); err != nil {
		return nil, err
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, invalid(opEnsure, "%v", err)
	}
	allocation := &Allocation{}
	err = c.do(ctx, call{
		op: opEnsure, method: http.MethodPut, url: c.url(nil, allocationsPath, string(podUID)), body: body,
		decode: decodeAllocation(allocation, ask.Cluster, podUID),
	})
	if err != nil {
		return nil, err
	}
	return allocation, nil
}

// Release implements API.
func (c *Client) Release(ctx context.Context, cluster string, podUID types.UID, generation int64) error {
	return c.ReleaseUnused(ctx, cluster, podUID, generation, 0)
}

// ReleaseUnused implements API.
func (c *Client) ReleaseUnused(ctx context.Context, cluster string, podUID types.UID, generation int64, minAge time.Duration) error {
	if err := checkKey(opRelease, cluster, podUID); err != nil {
		return err
	}
	query := url.Values{"cluster": {cluster}}
	if generation != 0 {
		query.Set("generation", strconv.FormatInt(generation, 10))
	}
	if minAge > 0 {
		// Rounded up: releasing earlier than asked is the mistake that matters.
		query.Set("minAgeSeconds", strconv.FormatInt(int64((minAge+time.Second-1)/time.Second), 10))
	}
	err := c.do(ctx, call{op: opRelease, method: http.MethodDelete, url: c.url(query, allocationsPath, string(podUID))})
	// Only a 404 that speaks of an allocation: one from a proxy or from a wrong path says nothing about networks,
	// and believing it would leave them behind for ever.
	if IsNotFound(err) {
		return nil
	}
	return err
}

// Get implements API.
func (c *Client) Get(ctx context.Context, cluster string, podUID types.UID) (*Allocation, error) {
	if err := checkKey(opGet, cluster, podUID); err != nil {
		return nil, err
	}
	allocation := &Allocation{}
	err := c.do(ctx, call{
		op: opGet, method: http.MethodGet,
		url:    c.url(url.Values{"cluster": {cluster}}, allocationsPath, string(podUID)),
		decode: decodeAllocation(allocation, cluster, podUID),
	})
	if err != nil {
		return nil, err
	}
	return allocation, nil
}

// List implements API.
func (c *Client) List(ctx context.Context, cluster string) ([]Allocation, error) {
	if cluster == "" {
		return nil, invalid(opList, "cluster is empty")
	}
	var all []Allocation
	token := ""
	for range listMaxPages {
		page, err := c.listPage(ctx, cluster, token)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Allocations...)
		if page.Continue == "" {
			return all, nil
		}
		if page.Continue == token {
			return nil, &Error{Op: opList, cause: fmt.Errorf("the page repeats its own continue token %q", Printable(token, maxReasonBytes))}
		}
		token = page.Continue
	}
	return nil, &Error{Op: opList, cause: fmt.Errorf("no end after %d pages", listMaxPages)}
}

func (c *Client) listPage(ctx context.Context, cluster, token string) (*AllocationList, error) {
	query := url.Values{"cluster": {cluster}, "limit": {strconv.Itoa(listLimit)}}
	if token != "" {
		query.Set("continue", token)
	}
	page := &AllocationList{}
	err := c.do(ctx, call{
		op: opList, method: http.MethodGet, url: c.url(query, allocationsPath),
		decode: func(body []byte) error {
			var got AllocationList
			if err := unmarshal(body, &got); err != nil {
				return err
			}
			if got.Allocations == nil {
				return errors.New("the answer has no allocations field")
			}
			for i := range got.Allocations {
				// The sweep releases what it finds here: what is another cluster's must not slip in.
				if a := &got.Allocations[i]; a.Cluster != cluster || a.PodUID == "" {
					return fmt.Errorf("the list of cluster %q has an entry of cluster %q, pod UID %q", cluster, a.Cluster, a.PodUID)
				}
			}
			*page = got
			return nil
		},
	})
	return page, err
}

// Healthy implements API.
func (c *Client) Healthy(ctx context.Context) error {
	return c.do(ctx, call{op: opHealthy, method: http.MethodGet, url: c.url(nil, "healthz")})
}

func (c *Client) url(query url.Values, path ...string) string {
	u := c.base.JoinPath(path...)
	u.RawQuery = query.Encode()
	return u.String()
}

// uidPattern is that of a label's value: the UID becomes one on the networks.
var uidPattern = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

func checkKey(op, cluster string, podUID types.UID) error {
	switch {
	case !uidPattern.MatchString(string(podUID)):
		return invalid(op, "pod UID %q is none", podUID)
	case cluster == "":
		return invalid(op, "cluster is empty")
	}
	return nil
}

// decodeAllocation accepts the allocation that was asked about and no other. Whether the networks fit the pod is for
// the caller, who knows the pod.
func decodeAllocation(into *Allocation, cluster string, podUID types.UID) func([]byte) error {
	return func(body []byte) error {
		var got Allocation
		if err := unmarshal(body, &got); err != nil {
			return err
		}
		if got.PodUID != podUID || got.Cluster != cluster {
			return fmt.Errorf("the answer is about pod UID %q of cluster %q", got.PodUID, got.Cluster)
		}
		if got.Generation < 1 {
			return errors.New("the answer has no generation")
		}
		*into = got
		return nil
	}
}

// unmarshal refuses garbage, cut bodies and trailing data. Unknown fields are a newer contract's.
func unmarshal(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer is not the JSON it should be: %w", err)
	}
	return nil
}

func isProblem(header http.Header) bool {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && (mediaType == ProblemContentType || mediaType == "application/json")
}
