package conformance

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var listClauses = []Clause{
	{ID: "list/empty", Sentence: "A cluster without allocations has an empty list.", check: listEmpty},
	{ID: complete, Sentence: "A list has every allocation exactly once, on pages of at most limit.", needs: []string{makes, "list/empty"}, check: listComplete},
	{ID: "list/cluster", Sentence: "Another cluster's allocation is never in the list.", needs: []string{complete}, check: listCluster},
	{ID: "list/stable", Sentence: "What exists during the whole walk is on exactly one page, whatever comes and goes meanwhile.", needs: []string{complete, releases}, check: listStable},
}

func listEmpty(ctx context.Context, r *run) {
	if all := r.walk(ctx, r.newCluster(), 0, nil); len(all) > 0 {
		failf("the list of a cluster that nobody has named before has %s", asJSON(all))
	}
}

// listed wants each pod once in the list, with the allocation as GET has it.
func listed(ctx context.Context, all []tenant.Allocation, pods []*pod) {
	byUID := map[types.UID][]tenant.Allocation{}
	for _, a := range all {
		byUID[a.PodUID] = append(byUID[a.PodUID], a)
	}
	for _, p := range pods {
		found := byUID[p.uid]
		if len(found) != 1 {
			failf("pod UID %s is %d times in the list of %d; want once", p.uid, len(found), len(all))
		}
		p.unchanged(ctx, &found[0], "compared with the list")
	}
}

func listComplete(ctx context.Context, r *run) {
	cluster := r.newCluster()
	pods := r.newPods(cluster, 7)
	for _, p := range pods {
		p.ensure(ctx)
	}
	for _, limit := range []int{0, 1, 3, 7, 500} {
		all := r.walk(ctx, cluster, limit, nil)
		if len(all) != len(pods) {
			failf("%d allocations with limit %d; want %d", len(all), limit, len(pods))
		}
		listed(ctx, all, pods)
	}
}

func listCluster(ctx context.Context, r *run) {
	one, two := r.newCluster(), r.newCluster()
	pods := append(r.newPods(one, 3), r.newPods(two, 3)...)
	for _, p := range pods {
		p.ensure(ctx)
	}
	for _, cluster := range []string{one, two} {
		for _, limit := range []int{0, 2} {
			for _, a := range r.walk(ctx, cluster, limit, nil) {
				if a.Cluster != cluster {
					failf("the list of cluster %s has %s", cluster, asJSON(a))
				}
			}
		}
	}
}

// listStable releases what the first page had, so that the rest moves forward, and makes some more.
func listStable(ctx context.Context, r *run) {
	cluster := r.newCluster()
	pods := r.newPods(cluster, 6)
	for _, p := range pods {
		p.ensure(ctx)
	}
	turn := 0
	all := r.walk(ctx, cluster, 2, func(page *tenant.AllocationList) {
		turn++
		switch {
		case turn == 1 && len(page.Allocations) > 0:
			gone := page.Allocations[0]
			i := slices.IndexFunc(pods, func(p *pod) bool { return p.uid == gone.PodUID })
			if i < 0 {
				failf("the list of cluster %s has %s, which nobody made", cluster, asJSON(gone))
			}
			released(pods[i].del(ctx, "generation", decimal(gone.Generation)))
			pods = slices.Delete(pods, i, i+1)
		case turn == 2:
			for _, p := range r.newPods(cluster, 3) {
				p.ensure(ctx)
			}
		}
	})
	listed(ctx, all, pods)
}
