// Package conformance is the contract of pkg/tenant/openapi.yaml as a suite that any tenant-controller can be put
// through over HTTP. It works in clusters that it invents and on pods that do not exist, and releases all it made.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
)

// Config says what is tested and with what words. A real tenant-controller may know only some of them.
type Config struct {
	// URL is the base of the API.
	URL string
	// HTTP is used for every request, with its authentication. nil: a plain client. It must not follow redirects.
	HTTP *http.Client
	// Timeout bounds one attempt. 0: 2 s, as the scheduler has it.
	Timeout time.Duration
	// Namespace is that of the pods. Where networks are made in Kubernetes it must exist.
	Namespace string
	// Tenant defaults to the namespace.
	Tenant string
	// VFPool and PFPool are what is asked for; one may be empty.
	VFPool string
	PFPool string
	// Node and OtherNode are those that the pods are said to be on; they default to names of no node.
	Node      string
	OtherNode string
	// Networks is the cluster where the networks are made; nil leaves the clauses about it out.
	Networks netclient.Interface
}

func (c Config) withDefaults() Config {
	setDefault := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	setDefault(&c.Tenant, c.Namespace)
	setDefault(&c.Node, "conformance-node-1")
	setDefault(&c.OtherNode, "conformance-node-2")
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if !strings.HasPrefix(c.URL, "http://") && !strings.HasPrefix(c.URL, "https://") {
		errs = append(errs, fmt.Errorf("URL: must start with http:// or https://, is %q", c.URL))
	}
	if c.Namespace == "" {
		errs = append(errs, errors.New("namespace is empty"))
	}
	if c.VFPool == "" && c.PFPool == "" {
		errs = append(errs, errors.New("one of the pools must be named"))
	}
	if c.Node == c.OtherNode {
		errs = append(errs, fmt.Errorf("the nodes must differ, are both %q", c.Node))
	}
	return errors.Join(errs...)
}

// Clause is one sentence of the contract and its check.
type Clause struct {
	ID       string
	Sentence string
	// needs are the clauses without which this one says nothing: it is left out where one of them failed, so that a
	// failure names what is broken and not all that follows from it.
	needs []string
	// inCluster says that the check looks at the networks in Kubernetes.
	inCluster bool
	// check ends by failf if the clause is broken.
	check func(context.Context, *run)
}

// Result is the outcome of a run, by the clauses' IDs in their order.
type Result struct {
	Passed, Failed, Skipped []string
}

// Verdict is the last line of the output.
func (r Result) Verdict() string {
	text := fmt.Sprintf("conformance: ok clauses=%d", len(r.Passed))
	if len(r.Failed) > 0 {
		text = "conformance: FAILED clause=" + strings.Join(r.Failed, ",")
	}
	if len(r.Skipped) > 0 {
		text += fmt.Sprintf(" skipped=%d", len(r.Skipped))
	}
	return text
}

// cleanupLimit bounds the releases at the end, which a cancelled context does not prevent.
const cleanupLimit = time.Minute

// Run checks every clause and writes a line for each, and the verdict. A broken clause is in the result; an error is
// a run that did not happen or was cut short. What was made is released in any case.
func Run(ctx context.Context, config Config, out io.Writer) (Result, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return Result{}, fmt.Errorf("conformance: %w", err)
	}
	r := newRun(config)
	if _, err := r.ask(ctx, http.MethodGet, healthPath, nil, nil); err != nil {
		return Result{}, fmt.Errorf("conformance: %w", err) // every clause would find out for itself
	}
	var result Result
	for _, clause := range Clauses() {
		if ctx.Err() != nil {
			break
		}
		r.judge(ctx, clause, &result, out)
		r.releaseClause(ctx)
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	r.judge(cleanup, leavesNothing, &result, out)
	if err := ctx.Err(); err != nil {
		return result, fmt.Errorf("conformance: cut short: %w", err)
	}
	fmt.Fprintln(out, result.Verdict())
	return result, nil
}

// judge runs one clause and writes its line.
func (r *run) judge(ctx context.Context, clause Clause, result *Result, out io.Writer) {
	line := fmt.Sprintf("%-22s %s", clause.ID, clause.Sentence)
	if why := r.skip(clause, result); why != "" {
		result.Skipped = append(result.Skipped, clause.ID)
		fmt.Fprintf(out, "- %s (not checked: %s)\n", line, why)
		return
	}
	r.clause = clause.ID
	err := attempt(func() { clause.check(ctx, r) })
	if err == nil {
		result.Passed = append(result.Passed, clause.ID)
		fmt.Fprintf(out, "✓ %s\n", line)
		return
	}
	result.Failed = append(result.Failed, clause.ID)
	fmt.Fprintf(out, "✗ %s\n    %v\n", line, err)
}

// skip says why a clause cannot be judged; empty if it can.
func (r *run) skip(clause Clause, result *Result) string {
	if clause.inCluster && r.config.Networks == nil {
		return "needs the cluster"
	}
	for _, id := range clause.needs {
		if !slices.Contains(result.Passed, id) {
			return "needs " + id
		}
	}
	return ""
}

// failure is how a check ends early, as testing.T.FailNow does: most steps of a clause can only follow the one before,
// and a check that has no error paths reads like the clause.
type failure struct{ text string }

func (f failure) Error() string { return f.text }

// failf ends the check. Only the goroutine of the check may call it.
func failf(format string, args ...any) {
	panic(failure{fmt.Sprintf(format, args...)})
}

// attempt returns the failure that ended f.
func attempt(f func()) (err error) {
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case failure:
			err = reason
		default:
			panic(reason)
		}
	}()
	f()
	return nil
}
