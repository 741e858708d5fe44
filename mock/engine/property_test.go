package engine

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// TestRandomSequences checks after each step of random ensures, releases and losses of memory what the contract
// promises for all of them.
func TestRandomSequences(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		e := New(Options{})
		lists := map[key][]tenant.Network{} // while the allocation lives
		placed := map[key]string{}          // the node of the last ensure
		generations := map[key]int64{}      // the highest ever seen
		uids := []types.UID{"a", "b", "c"}  // few, so that they meet
		clusters := []string{"c1", "c2"}    //
		nodes := []string{"n1", "n2"}       //
		requests := []tenant.Request{{Type: "vf", Pool: "p", Count: 2}}

		draw := func() key {
			return key{rapid.SampledFrom(clusters).Draw(r, "cluster"), rapid.SampledFrom(uids).Draw(r, "uid")}
		}
		r.Repeat(map[string]func(*rapid.T){
			"ensure": func(r *rapid.T) {
				k := draw()
				present := generations[k]
				a := ask(onNode(rapid.SampledFrom(nodes).Draw(r, "node")), generation(rapid.Int64Range(0, present).Draw(r, "generation")))
				a.Cluster, a.Requests = k.cluster, requests
				_, alive := lists[k]
				got, err := e.Ensure(t.Context(), k.podUID, a)
				moves := alive && placed[k] != a.Node
				if a.Generation != 0 && (!alive || a.Generation != present) || a.Generation == 0 && moves {
					require.Error(r, err)
					return
				}
				require.NoError(r, err)
				if alive {
					require.Equal(r, lists[k], got.Networks, "the list of a UID changed")
				}
				require.GreaterOrEqual(r, got.Generation, present, "a generation went back")
				lists[k], generations[k], placed[k] = got.Networks, got.Generation, a.Node
			},
			"release": func(r *rapid.T) {
				k := draw()
				g := rapid.Int64Range(0, generations[k]).Draw(r, "generation")
				_, alive := lists[k]
				_, err := e.Release(t.Context(), k.cluster, k.podUID, g)
				if alive && g != 0 && g != generations[k] {
					require.Error(r, err)
					return
				}
				require.NoError(r, err)
				delete(lists, k)
			},
			"forget": func(r *rapid.T) {
				e.Forget("c")
				for _, cluster := range clusters {
					delete(lists, key{cluster, "c"})
				}
			},
			"": func(r *rapid.T) {
				owner := map[string]key{}
				listed := 0
				for _, cluster := range clusters {
					page, _ := e.List(cluster, "", maxPage)
					listed += len(page)
					for _, a := range page {
						for _, n := range a.Networks {
							_, taken := owner[n.Namespace+"/"+n.Name]
							require.False(r, taken, "network %s is in two allocations", n.Name)
							owner[n.Namespace+"/"+n.Name] = key{a.Cluster, a.PodUID}
						}
					}
				}
				require.Equal(r, len(lists), listed)
			},
		})
	})
}

// TestManyAtOnce lets callers fight over a few pods; the race detector and the invariants judge.
func TestManyAtOnce(t *testing.T) {
	e, client := served(t, Options{})
	var mu sync.Mutex
	lists := map[types.UID][]tenant.Network{}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 40 {
				uid := types.UID([]string{"a", "b", "c"}[(worker+i)%3])
				node := onNode([]string{"n1", "n2"}[i%2])
				got, err := client.Ensure(t.Context(), uid, ask(node))
				var conflict *tenant.Error
				if tenant.IsConflict(err) && errors.As(err, &conflict) && conflict.Current != nil {
					got, err = client.Ensure(t.Context(), uid, ask(node, generation(conflict.Current.Generation)))
				}
				if tenant.IsConflict(err) {
					continue // somebody else was faster, twice
				}
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				if seen, ok := lists[uid]; ok {
					assert.True(t, slices.Equal(seen, got.Networks))
				}
				lists[uid] = got.Networks
				mu.Unlock()
				if i%7 == 0 {
					err := client.Release(t.Context(), "c1", uid, got.Generation)
					assert.True(t, err == nil || tenant.IsConflict(err), "%v", err)
				}
				_, err = client.List(t.Context(), "c1")
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Empty(t, e.keys.locks)
}
