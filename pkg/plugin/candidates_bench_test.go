package plugin

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// algorithm is a whole scheduler that places pods in memory: what a pod costs without the API server.
type algorithm struct {
	sched     *scheduler.Scheduler
	framework framework.Framework
	snapshot  *internalcache.Snapshot
	assumed   []*framework.PodInfo
	sequence  int
}

// without takes our plugin out of a profile.
func without(profile config.KubeSchedulerProfile) config.KubeSchedulerProfile {
	drop := func(set *config.PluginSet) {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p config.Plugin) bool { return p.Name == Name })
	}
	drop(&profile.Plugins.MultiPoint)
	drop(&profile.Plugins.Filter)
	drop(&profile.Plugins.PostFilter)
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: pluginnames.DefaultBinder}}}
	profile.PluginConfig = slices.DeleteFunc(profile.PluginConfig, func(c config.PluginConfig) bool { return c.Name == Name })
	return profile
}

// newAlgorithm has nodes with the given number of devices each, of which the first taken nodes are full.
func newAlgorithm(b *testing.B, nodes, taken, devices int, profile config.KubeSchedulerProfile) *algorithm {
	b.Helper()
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	client := fake.NewClientset(clusterObjects()...)
	nads := newNADs()
	factory := func(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		args, err := parseArgs(object)
		if err != nil {
			return nil, err
		}
		return newPlugin(ctx, args, handle, newFakeAllocator(nads), attachments{client: nads}, clock.RealClock{})
	}
	sched, err := scheduler.New(ctx, client, scheduler.NewInformerFactory(client, 0, nil), nil,
		func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		scheduler.WithProfiles(profile), scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{Name: factory}))
	require.NoError(b, err)
	a := &algorithm{sched: sched, framework: sched.Profiles[rdma.SchedulerName]}
	snapshot, ok := a.framework.SnapshotSharedLister().(*internalcache.Snapshot)
	require.True(b, ok)
	a.snapshot = snapshot
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i*7919%nodes) // taken nodes are spread over the list
		a.sched.Cache.AddNode(klog.Logger{}, newNode(name, vfPool, devices))
		if i < taken {
			require.NoError(b, a.sched.Cache.AddPod(klog.Logger{}, vfPod(fmt.Sprintf("holder-%d", i), int64(devices), onNode(name))))
		}
	}
	return a
}

// place schedules one pod and keeps the number of pods placed by it below a hundred.
func (a *algorithm) place(b *testing.B, pod *corev1.Pod) {
	ctx := klog.NewContext(b.Context(), klog.Logger{})
	if err := a.sched.Cache.UpdateSnapshot(klog.Logger{}, a.snapshot); err != nil {
		b.Fatal(err)
	}
	a.sequence++
	pod.Name = fmt.Sprint("pod-", a.sequence)
	pod.UID = podUID(pod.Name)
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		b.Fatal(err)
	}
	result, err := a.sched.SchedulePod(ctx, a.framework, framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
	if err != nil {
		b.Fatal(err)
	}
	placed := info.DeepCopy()
	placed.Pod.Spec.NodeName = result.SuggestedHost
	if err := a.sched.Cache.AssumePod(klog.Logger{}, placed.Pod); err != nil {
		b.Fatal(err)
	}
	if a.assumed = append(a.assumed, placed); len(a.assumed) > 100 {
		if err := a.sched.Cache.ForgetPod(klog.Logger{}, a.assumed[0].Pod); err != nil {
			b.Fatal(err)
		}
		a.assumed = a.assumed[1:]
	}
}

func BenchmarkSchedulePod(b *testing.B) {
	shipped := shippedConfig(b).Profiles[0]
	plain := without(*shipped.DeepCopy())
	for _, c := range []struct{ nodes, taken, devices int }{
		{500, 0, 8}, {500, 250, 1}, {500, 350, 1},
		{5000, 0, 1}, {5000, 1000, 1}, {5000, 2500, 1}, {5000, 3500, 1}, {5000, 4500, 1}, {5000, 4800, 1},
	} {
		for name, profile := range map[string]config.KubeSchedulerProfile{"ours": shipped, "default": plain} {
			b.Run(fmt.Sprintf("nodes=%d/taken=%d/%s", c.nodes, c.taken, name), func(b *testing.B) {
				before := heap()
				a := newAlgorithm(b, c.nodes, c.taken, c.devices, profile)
				for range 120 {
					a.place(b, vfPod("p", 1))
				}
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					a.place(b, vfPod("p", 1))
				}
				b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MiB")
				goruntime.KeepAlive(a)
			})
		}
	}
}

// heap is what is in use, in bytes, once everything that can be is collected.
func heap() int64 {
	goruntime.GC()
	goruntime.GC()
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// BenchmarkCandidates compares the index with a scan that reads every NodeInfo. Between two looks one node changes, as
// when a pod is placed.
func BenchmarkCandidates(b *testing.B) {
	for _, c := range []struct{ nodes, taken int }{{500, 450}, {5000, 0}, {5000, 2500}, {5000, 3500}, {5000, 4800}, {15000, 14000}} {
		a := newAlgorithm(b, c.nodes, c.taken, 1, without(*shippedConfig(b).Profiles[0].DeepCopy()))
		require.NoError(b, a.sched.Cache.UpdateSnapshot(klog.Logger{}, a.snapshot))
		nodes, err := a.snapshot.NodeInfos().List()
		require.NoError(b, err)
		needs := newCycle(rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}}).needs
		probably := probablyFits(vfPod("p", 1), needs)
		changed, ok := nodes[c.nodes/2].(*framework.NodeInfo)
		require.True(b, ok)
		look := func(index *candidates, read bool) func(*testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					changed.SetNode(changed.Node())
					if read {
						clear(index.columns)
					}
					index.find(needs, nodes, sampleSize, probably)
				}
			}
		}
		name := fmt.Sprintf("nodes=%d/taken=%d", c.nodes, c.taken)
		b.Run(name+"/index", look(newCandidates(), false))
		b.Run(name+"/scan", look(newCandidates(), true))
	}
}
