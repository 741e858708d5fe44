package release

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// sweepWorkers is how many allocations each part of a sweep works on at once.
	sweepWorkers = 10
	// itemTimeout keeps one allocation, whose tenant's part of the tenant-controller hangs, from holding a worker for long.
	itemTimeout = 20 * time.Second
	// toldErrors of a sweep are told in full. Thousands can fail for one reason.
	toldErrors = 5
)

// each does the work for all items, by turns of their namespaces, until ctx ends. Its error is short whatever fails.
func each[T any](ctx context.Context, items []T, namespaceOf func(T) string, work func(context.Context, T) error) error {
	var (
		group    errgroup.Group
		mu       sync.Mutex
		told     []error
		finished int
		failed   int
	)
	one := func(item T) {
		bounded, cancel := context.WithTimeout(ctx, itemTimeout)
		defer cancel()
		err := work(bounded, item)
		mu.Lock()
		defer mu.Unlock()
		if err != nil && ctx.Err() != nil {
			return // it was cut short, and says no more than those that were not begun
		}
		finished++
		if err == nil {
			return
		}
		if failed++; failed <= toldErrors {
			told = append(told, err)
		}
	}
	group.SetLimit(sweepWorkers)
	for _, item := range byTurns(items, namespaceOf) {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if ctx.Err() == nil {
				one(item)
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are kept aside, so that one does not end the work of the others
	if more := failed - len(told); more > 0 {
		told = append(told, fmt.Errorf("and %d more", more))
	}
	if left := len(items) - finished; left > 0 {
		told = append(told, fmt.Errorf("%d of %d are left for the next sweep: %w", left, len(items), ctx.Err()))
	}
	return errors.Join(told...)
}

// byTurns orders items so that the namespaces come by turns: one with thousands does not keep others waiting. Within a
// namespace chance decides, or what hangs would be the first of every sweep and the rest never looked at.
func byTurns[T any](items []T, namespaceOf func(T) string) []T {
	type turn struct {
		round int
		item  T
	}
	turns := make([]turn, len(items))
	rounds := map[string]int{}
	for i, from := range rand.Perm(len(items)) {
		namespace := namespaceOf(items[from])
		turns[i] = turn{rounds[namespace], items[from]}
		rounds[namespace]++
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return a.round - b.round })
	sorted := make([]T, len(items))
	for i, t := range turns {
		sorted[i] = t.item
	}
	return sorted
}
