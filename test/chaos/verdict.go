package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tenant.network/tenant-webhook/internal/devcluster"
)

const (
	// settleLimit bounds the way to rest: a breaker's pause, the schedulers' backoff and a leader's lease come one after
	// another.
	settleLimit = 2 * time.Minute
	// atRest is how long no pod must be waiting for it to be rest.
	atRest = 2 * time.Second
	shown  = 10
)

// settle waits for rest, compares what is there, takes everything away and looks for what is left. It returns what did
// not come about in time.
func (d *driver) settle(ctx context.Context, leakLimit time.Duration) []violation {
	var found []violation
	add := func(what string, more []violation, err error) {
		for i := range more {
			more[i].Text = what + ": " + more[i].Text
		}
		found = append(found, more...)
		if err != nil && len(more) == 0 {
			found = append(found, violation{Class: stuck, Pod: "cluster", Text: what + ": " + err.Error()})
		}
	}
	more, err := d.compare(ctx, "after calm", settleLimit, atRest, func(ctx context.Context, s *state) ([]violation, error) {
		return s.waiting(), d.repeatLastWord(ctx, s.Pods)
	})
	add("after calm", more, err)
	more, err = d.compare(ctx, "at rest", leakLimit, 0, func(ctx context.Context, s *state) ([]violation, error) {
		if err := d.readLedgers(ctx, s); err != nil {
			return nil, err
		}
		return append(s.compareAllocations(), s.compareLedgers()...), nil
	})
	add("at rest", more, err)
	add("in the end", nil, d.removeEverything(ctx))
	more, err = d.compare(ctx, "in the end", leakLimit, 0, func(_ context.Context, s *state) ([]violation, error) {
		return append(s.compareAllocations(), s.waiting()...), nil
	})
	add("in the end", more, err)
	return append(found, d.driftOfLedgers(ctx)...)
}

// compare looks again and again until look has found nothing for a while, or for too long has found something. Where things
// still move, as while Jobs run, a single look that finds nothing is enough: what is broken stays broken.
func (d *driver) compare(ctx context.Context, what string, limit, long time.Duration, look func(context.Context, *state) ([]violation, error)) ([]violation, error) {
	var last []violation
	clean := time.Time{}
	err := d.until(ctx, what, limit, func(ctx context.Context) error {
		s, err := d.look(ctx)
		if err != nil {
			return err
		}
		found, err := look(ctx, s)
		if err != nil {
			return err
		}
		if last = found; len(last) > 0 {
			clean = time.Time{}
			return fmt.Errorf("%d things are not as they should be", len(last))
		}
		if clean.IsZero() {
			clean = time.Now()
		}
		if time.Since(clean) < long {
			return errors.New("not for long enough")
		}
		return nil
	})
	if err == nil {
		return nil, nil
	}
	return last, err
}

// driftOfLedgers reads what the replicas say of their own recounts: the metrics of those that run now, and the logs of
// all that ever did. Missed events are reported and no breach.
func (d *driver) driftOfLedgers(ctx context.Context) []violation {
	var found []violation
	for i := range replicas {
		replica := devcluster.WebhookReplica(i)
		metrics, err := d.call(ctx, http.MethodGet, d.MetricsURL(replica), nil)
		if err != nil {
			found = append(found, violation{Class: drift, Pod: replica, Text: err.Error()})
		}
		for line := range strings.Lines(string(metrics)) {
			if strings.HasPrefix(line, `rdma_pool_drift_total{kind="sums"}`) && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				found = append(found, violation{Class: drift, Pod: replica, Text: strings.TrimSpace(line)})
			}
			if strings.HasPrefix(line, `rdma_pool_drift_total{kind="missed"}`) {
				fmt.Fprintf(d.out, "chaos: %s: %s", replica, line)
			}
		}
		log, err := os.ReadFile(d.LogPath(replica))
		if err != nil {
			found = append(found, violation{Class: drift, Pod: replica, Text: err.Error()})
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "had drifted") {
				fmt.Fprintf(d.out, "chaos: %s: %s", replica, line)
				if !strings.Contains(line, "sums=0") {
					found = append(found, violation{Class: drift, Pod: replica, Text: strings.TrimSpace(line)})
				}
			}
		}
	}
	return found
}

// result is what a run comes to.
type result struct {
	settings
	verdict
	faults, kinds int
	violations    []violation
}

// broken is for a run that could not be finished.
func (r *result) broken(out io.Writer, err error) error {
	fmt.Fprintf(out, "chaos: FAILED %v: %v\n", r.settings, err)
	return errFailed
}

// judge adds the verdict on the history to what was seen.
func (r *result) judge(history []event, d *driver) {
	left := map[string]bool{}
	for _, v := range r.violations {
		left[v.UID] = left[v.UID] || v.Class == leaked
	}
	r.verdict = checkHistory(history, func(uid string) bool { return !left[uid] })
	r.violations = append(r.violations, r.Violations...)
	r.faults, r.kinds = d.faults.counts()
}

func (r *result) count(c class) int {
	pods := map[string]bool{}
	for _, v := range r.violations {
		if v.Class == c {
			pods[v.Pod+v.UID] = true
		}
	}
	return len(pods)
}

// print writes the last line, and before it what was broken, with the pods' histories.
func (r *result) print(out io.Writer, history []event, auditLog string) error {
	slices.SortStableFunc(history, func(a, b event) int { return a.From.Compare(b.From) })
	path := filepath.Join(filepath.Dir(auditLog), "history.log")
	if err := writeHistory(path, history); err != nil {
		fmt.Fprintln(out, "chaos:", err)
	}
	told := map[string]bool{}
	for _, v := range r.violations {
		fmt.Fprintf(out, "chaos: %s: %s %s: %s\n", v.Class, v.Pod, v.UID, v.Text)
		if key := v.Pod + v.UID; !told[key] && len(told) < shown {
			told[key] = true
			tellHistory(out, history, v)
		}
	}
	counts := fmt.Sprintf("placed=%d released=%d faults=%d kinds=%d leaked=%d double=%d stuck=%d overcommitted=%d drift=%d",
		r.Placed, r.Released, r.faults, r.kinds, r.count(leaked), r.count(double), r.count(stuck), r.count(overcommitted), r.count(drift))
	if len(r.violations) > 0 {
		fmt.Fprintf(out, "chaos: logs are in %s, everything that happened in %s\n", filepath.Dir(auditLog), path)
		fmt.Fprintf(out, "chaos: FAILED %v %s wrong=%d; the same again: make chaos SEED=%d EVENTS=%d\n", r.settings, counts, r.count(wrong), r.seed, r.events)
		return errFailed
	}
	fmt.Fprintf(out, "chaos: ok %v %s\n", r.settings, counts)
	return nil
}

func writeHistory(path string, history []event) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	for i := range history {
		fmt.Fprintln(buffered, history[i].UID, history[i])
	}
	return errors.Join(buffered.Flush(), file.Close())
}

// tellHistory prints everything about a pod, what its node did, and the faults of that time.
func tellHistory(out io.Writer, history []event, v violation) {
	node := "no node"
	first, last := slices.IndexFunc(history, v.isAbout), -1
	for i := range history {
		if v.isAbout(history[i]) {
			last = i
			node = cmp.Or(history[i].Node, node)
		}
	}
	for i := max(first, 0); i <= last; i++ {
		if e := history[i]; v.isAbout(e) || e.UID == "" && (e.isFault() || e.Node == node || e.Pod == node) {
			fmt.Fprintf(out, "    %v\n", e)
		}
	}
}

// isFault says whether an event tells of a fault, or of something else that befell everybody.
func (e event) isFault() bool { return e.Pod == "" && (e.Kind == note || e.Kind == blind) }

// isAbout says whether an event tells of the pod. The driver knows it by its name only.
func (v violation) isAbout(e event) bool {
	if e.UID != "" {
		return e.UID == v.UID
	}
	return v.Pod != "" && e.Pod == v.Pod
}
