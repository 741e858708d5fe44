package admission

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const testPools = `
mellanox.com/mlnx_sriov_rdma type=vf
mellanox.com/other_vf type=vf
mellanox.com/mlnx_pf_rdma type=pf
example.com/both`

// newInjector has one node that offers every pool, and knows three networks.
func newInjector(t testing.TB) (*Injector, *pools.Ledger) {
	t.Helper()
	cfg, err := pools.ParseConfig(map[string]string{pools.PoolsKey: testPools})
	require.NoError(t, err)
	ledger := pools.NewLedger(nil)
	var node corev1.Node
	require.NoError(t, yaml.UnmarshalStrict([]byte(`
metadata: {name: n1}
status:
  allocatable: {cpu: "64", memory: 64Gi, mellanox.com/mlnx_sriov_rdma: "8", mellanox.com/other_vf: "8", mellanox.com/mlnx_pf_rdma: "8", example.com/both: "8"}
  conditions: [{type: Ready, status: "True"}]`), &node))
	ledger.SetNode(&node)
	return &Injector{
		Ledger: ledger,
		Pools:  func() *pools.Config { return cfg },
		NewID:  func() string { return "0123456789abcdef" },
		Attachments: func(namespace, name string) (Attachment, bool) {
			a, ok := map[string]Attachment{
				"tenant-a/mine":    {},
				"tenant-a/on-pool": {Pool: "mellanox.com/mlnx_sriov_rdma"},
				"tenant-a/lent":    {PodUID: "another"}, // of a shared pool
				"tenant-a/stale":   {Pool: "mellanox.com/mlnx_sriov_rdma", PodUID: "another"},
			}[namespace+"/"+name]
			a.Missing = !ok
			return a, true
		},
	}, ledger
}

func podFrom(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), pod))
	return pod
}

// apply makes the patch in its own way: as the API server does it, on the JSON.
func apply(t testing.TB, before, after *corev1.Pod) *corev1.Pod {
	t.Helper()
	raw, err := json.Marshal(before)
	require.NoError(t, err)
	ops, err := json.Marshal(patch(before, after))
	require.NoError(t, err)
	decoded, err := jsonpatch.DecodePatch(ops)
	require.NoError(t, err)
	patched, err := decoded.Apply(raw)
	require.NoError(t, err, "patch %s", ops)
	pod := &corev1.Pod{}
	require.NoError(t, json.Unmarshal(patched, pod))
	return pod
}

const plain = `
metadata:
  name: p
  annotations: {rdma.vf: "2"}
spec:
  schedulerName: default-scheduler
  containers: [{name: app, image: app}]`

func TestInjectWritesEverythingThatTheSchedulerAndTheReleaseNeed(t *testing.T) {
	injector, ledger := newInjector(t)
	pod := podFrom(t, plain)
	result, errs := injector.Inject(pod, "tenant-a", false)
	require.Empty(t, errs)
	got := apply(t, pod, result.Pod)
	want := podFrom(t, `
metadata:
  name: p
  annotations:
    rdma.vf: "2"
    tenant.network/resource-type: vf
    tenant.network/resource-pool: mellanox.com/mlnx_sriov_rdma
    tenant.network/resource-count: "2"
    tenant.network/admission-id: 0123456789abcdef
  finalizers: [tenant.network/cleanup]
spec:
  schedulerName: tenant-scheduler
  containers:
  - name: app
    image: app
    resources:
      requests: {mellanox.com/mlnx_sriov_rdma: "2"}
      limits: {mellanox.com/mlnx_sriov_rdma: "2"}`)
	require.Empty(t, cmp.Diff(want, got))
	assignment, ours := rdma.Ours(got)
	require.True(t, ours)
	require.Equal(t, rdma.Assignment{{Type: rdma.VF, Pool: "mellanox.com/mlnx_sriov_rdma", Count: 2}}, assignment)
	require.Equal(t, int64(2), ledger.UsageOf("mellanox.com/mlnx_sriov_rdma").Reserved)
	require.Equal(t, podFrom(t, plain), pod, "the pod as it was sent must not be changed")
}

func TestInjectContainers(t *testing.T) {
	const vfPool = "mellanox.com/mlnx_sriov_rdma"
	for name, tc := range map[string]struct {
		annotations string
		spec        string
		// want is the resources of each init container and container, "-" for none of any pool.
		want    []string
		refused string
	}{
		"cpu and memory stay as they are": {`{rdma.vf: "1"}`,
			`{containers: [{name: app, resources: {requests: {cpu: "1"}, limits: {memory: 1Gi}}}]}`, []string{vfPool + "=1"}, ""},
		"the first container that is no known sidecar gets the devices": {`{rdma.vf: "1"}`,
			`{containers: [{name: istio-proxy}, {name: app}]}`, []string{"-", vfPool + "=1"}, ""},
		"the first container gets them when all are sidecars": {`{rdma.vf: "1"}`,
			`{containers: [{name: istio-proxy}]}`, []string{vfPool + "=1"}, ""},
		"the container that the user names gets them": {`{rdma.vf: "1", tenant.network/container: b}`,
			`{containers: [{name: a}, {name: b}]}`, []string{"-", vfPool + "=1"}, ""},
		"a container that asks already is not doubled": {`{rdma.vf: "1"}`,
			`{containers: [{name: a}, {name: b, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "1"}}}]}`, []string{"-", vfPool + "=1"}, ""},
		"a container that asks for less is filled up": {`{rdma.vf: "3"}`,
			`{containers: [{name: a}, {name: b, resources: {requests: {mellanox.com/mlnx_sriov_rdma: "1"}}}]}`, []string{"-", vfPool + "=3"}, ""},
		"what two containers ask for is added up": {`{rdma.vf: "2"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "1"}}}, {name: b, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "1"}}}]}`,
			[]string{vfPool + "=1", vfPool + "=1"}, ""},
		"a request pins the pod to a pool of lower priority": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/other_vf: "1"}}}]}`, []string{"mellanox.com/other_vf=1"}, ""},
		"an init container pins the pool as well, and is a maximum": {`{rdma.vf: "1"}`,
			`{initContainers: [{name: i, resources: {limits: {mellanox.com/other_vf: "1"}}}], containers: [{name: a}]}`,
			[]string{"mellanox.com/other_vf=1", "mellanox.com/other_vf=1"}, ""},
		"a sidecar's request is part of the sum": {`{rdma.vf: "2"}`,
			`{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "1"}}}], containers: [{name: a}]}`,
			[]string{vfPool + "=1", vfPool + "=1"}, ""},
		"vf and pf go into one container": {`{rdma.vf: "1", rdma.pf: "2"}`,
			`{containers: [{name: a}]}`, []string{"mellanox.com/mlnx_pf_rdma=2 " + vfPool + "=1"}, ""},
		"vf and pf pinned to one pool are its sum": {`{rdma.vf: "1", rdma.pf: "2"}`,
			`{containers: [{name: a, resources: {limits: {example.com/both: "3"}}}]}`, []string{"example.com/both=3"}, ""},
		"a pinned pool that holds one type exactly leaves the other to the choice": {`{rdma.vf: "1", rdma.pf: "2"}`,
			`{containers: [{name: a, resources: {limits: {example.com/both: "1"}}}]}`, []string{"example.com/both=1 mellanox.com/mlnx_pf_rdma=2"}, ""},
		"requests for a pool of the other type are left alone": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/mlnx_pf_rdma: "1"}}}]}`, []string{"mellanox.com/mlnx_pf_rdma=1 " + vfPool + "=1"}, ""},

		"more than the annotation says is refused": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "2"}}}]}`, nil,
			`metadata.annotations[rdma.vf]: Invalid value: "1": the pod requests 2 of mellanox.com/mlnx_sriov_rdma, but the annotations ask for 1; accepted are requests of at most the number in the annotation, init containers and overhead included`},
		"an init container with more than the annotation says is refused": {`{rdma.vf: "1"}`,
			`{initContainers: [{name: i, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "2"}}}], containers: [{name: a}]}`, nil,
			`metadata.annotations[rdma.vf]: Invalid value: "1": the pod requests 2 of`},
		"two pools for one type are refused": {`{rdma.vf: "2"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/mlnx_sriov_rdma: "1", mellanox.com/other_vf: "1"}}}]}`, nil,
			`spec.containers: Invalid value: "\"mellanox.com/mlnx_sriov_rdma\" and \"mellanox.com/other_vf\"": the containers request 2 pools for 1 types; accepted is one pool for each of rdma.vf and rdma.pf`},
		"a request that differs from its limit is refused": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {requests: {mellanox.com/mlnx_sriov_rdma: "1"}, limits: {mellanox.com/mlnx_sriov_rdma: "2"}}}]}`, nil,
			`spec.containers[0].resources.requests[mellanox.com/mlnx_sriov_rdma]: Invalid value: "1": must equal the limit "2": devices cannot be overcommitted`},
		"a part of a device is refused": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/mlnx_sriov_rdma: 500m}}}]}`, nil,
			`spec.containers[0].resources.limits[mellanox.com/mlnx_sriov_rdma]: Invalid value: "500m": must be a whole number of devices, such as "1"`},
		"a negative number of devices is refused": {`{rdma.vf: "1"}`,
			`{initContainers: [{name: i, resources: {requests: {mellanox.com/mlnx_sriov_rdma: "-3"}}}], containers: [{name: a}]}`, nil,
			`spec.initContainers[0].resources.requests[mellanox.com/mlnx_sriov_rdma]: Invalid value: "-3": must be a whole number of devices, such as "1"`},
		"a number of devices that no computer can count is refused": {`{rdma.vf: "1"}`,
			`{containers: [{name: a, resources: {limits: {mellanox.com/other_vf: 1e30}}}]}`, nil,
			`spec.containers[0].resources.limits[mellanox.com/other_vf]: Invalid value: "1e+30": must be a whole number of devices`},
		"a container that does not exist is refused": {`{rdma.vf: "1", tenant.network/container: c}`,
			`{containers: [{name: a}, {name: b}]}`, nil,
			`metadata.annotations[tenant.network/container]: Unsupported value: "c": supported values: "a", "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			injector, _ := newInjector(t)
			pod := podFrom(t, "metadata: {name: p, annotations: "+tc.annotations+"}\nspec: "+tc.spec)
			result, errs := injector.Inject(pod, "tenant-a", false)
			if tc.refused != "" {
				require.NotEmpty(t, errs)
				require.Contains(t, errs.ToAggregate().Error(), tc.refused)
				return
			}
			require.Empty(t, errs)
			got := apply(t, pod, result.Pod)
			var all []string
			eachContainer(got, func(c *corev1.Container, _ place) { all = append(all, devicesOf(t, c)) })
			require.Equal(t, tc.want, all)
			for i := range pod.Spec.Containers {
				for name, quantity := range pod.Spec.Containers[i].Resources.Requests {
					if !strings.Contains(string(name), "/") {
						require.Equal(t, quantity, got.Spec.Containers[i].Resources.Requests[name])
					}
				}
			}
			again, errs := injector.Inject(got, "tenant-a", false)
			require.Empty(t, errs)
			require.Empty(t, patch(got, again.Pod), "a second pass must change nothing")
		})
	}
}

func TestInjectRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ annotations, spec, want string }{
		"a node chosen by hand": {`{rdma.vf: "1"}`, `{nodeName: n1, containers: [{name: a}]}`,
			`spec.nodeName: Invalid value: "n1": must be empty: a pod with rdma.vf or rdma.pf is placed by tenant-scheduler; use a node selector to choose the node`},
		"another scheduler": {`{rdma.vf: "1"}`, `{schedulerName: volcano, containers: [{name: a}]}`,
			`spec.schedulerName: Unsupported value: "volcano": supported values: "default-scheduler", "tenant-scheduler"`},
		"the host's network": {`{rdma.vf: "1"}`, `{hostNetwork: true, containers: [{name: a}]}`,
			`spec.hostNetwork: Invalid value: true: must be false: Multus attaches no networks to a pod in the host's network namespace`},
		"a count that is no whole number": {`{rdma.vf: "1.5"}`, `{containers: [{name: a}]}`,
			`metadata.annotations[rdma.vf]: Invalid value: "1.5": must be a whole number of devices from 1 to 64, digits only`},
		"networks that Multus cannot read": {`{rdma.vf: "1", k8s.v1.cni.cncf.io/networks: "a,b,"}`, `{containers: [{name: a}]}`,
			`metadata.annotations[k8s.v1.cni.cncf.io/networks]`},
		"a user's network on a pool, which would take our device": {`{rdma.vf: "1", k8s.v1.cni.cncf.io/networks: on-pool}`, `{containers: [{name: a}]}`,
			`mellanox.com/mlnx_sriov_rdma`},
		"a default network that was made for another pod": {`{rdma.vf: "1", v1.multus-cni.io/default-network: tenant-a/lent}`, `{containers: [{name: a}]}`,
			`metadata.annotations[v1.multus-cni.io/default-network]: Invalid value: "tenant-a/lent": must not name a network that was made for another pod`},
		"overhead that takes devices, which no container can be given": {`{rdma.vf: "1"}`, `{overhead: {mellanox.com/mlnx_sriov_rdma: "1"}, containers: [{name: a}]}`,
			`metadata.annotations[rdma.vf]: Invalid value: "1": the pod requests 2 of mellanox.com/mlnx_sriov_rdma`},
		"several faults at once": {`{rdma.vf: x, rdma.pf: "0"}`, `{hostNetwork: true, containers: [{name: a}]}`,
			`[metadata.annotations[rdma.vf]: Invalid value: "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			injector, ledger := newInjector(t)
			_, errs := injector.Inject(podFrom(t, "metadata: {annotations: "+tc.annotations+"}\nspec: "+tc.spec), "tenant-a", false)
			require.NotEmpty(t, errs)
			require.Contains(t, errs.ToAggregate().Error(), tc.want)
			for _, usage := range ledger.Usage() {
				require.Zero(t, usage.Reserved, "a refused pod must reserve nothing")
			}
		})
	}
}

func TestInjectStaleCopies(t *testing.T) {
	copied := `
metadata:
  annotations:
    rdma.vf: "1"
    tenant.network/resource-type: vf
    tenant.network/resource-pool: mellanox.com/other_vf
    tenant.network/admission-id: aaaaaaaaaaaaaaaa
    tenant.network/forged: "yes"
    tenant.network/container: app
    k8s.v1.cni.cncf.io/networks: '[{"name":"mine","mac":"00:11:22:33:44:55"},{"name":"stale","namespace":"tenant-a","interface":"rdma0"}]'
  finalizers: [example.com/theirs, tenant.network/cleanup]
spec:
  schedulerName: tenant-scheduler
  containers: [{name: app}]`
	t.Run("annotations of ours are written anew and forged ones go", func(t *testing.T) {
		injector, _ := newInjector(t)
		pod := podFrom(t, copied)
		result, errs := injector.Inject(pod, "tenant-a", false)
		require.Empty(t, errs)
		got := apply(t, pod, result.Pod)
		require.Equal(t, map[string]string{
			"rdma.vf":                       "1",
			"tenant.network/resource-type":  "vf",
			"tenant.network/resource-pool":  "mellanox.com/mlnx_sriov_rdma",
			"tenant.network/resource-count": "1",
			"tenant.network/admission-id":   "aaaaaaaaaaaaaaaa",
			"tenant.network/container":      "app",
			"k8s.v1.cni.cncf.io/networks":   `[{"name":"mine","mac":"00:11:22:33:44:55"}]`,
		}, got.Annotations)
		require.Equal(t, []string{"example.com/theirs", "tenant.network/cleanup"}, got.Finalizers)
	})
	t.Run("no key of ours is written but those that the guard knows", func(t *testing.T) {
		injector, _ := newInjector(t)
		pod := podFrom(t, "metadata: {annotations: {rdma.vf: \"1\"}}\nspec: {containers: [{name: app}]}")
		result, errs := injector.Inject(pod, "tenant-a", false)
		require.Empty(t, errs)
		got := apply(t, pod, result.Pod).Annotations
		delete(got, rdma.VFAnnotation)
		require.ElementsMatch(t, rdma.WrittenAnnotations(), slices.Collect(maps.Keys(got)))
	})
	t.Run("the id of an existing pod is not taken over", func(t *testing.T) {
		injector, ledger := newInjector(t)
		pod := podFrom(t, copied)
		ledger.SetPod(pools.Charge{UID: "existing", AdmissionID: "aaaaaaaaaaaaaaaa"})
		result, errs := injector.Inject(pod, "tenant-a", false)
		require.Empty(t, errs)
		require.Equal(t, "0123456789abcdef", result.Pod.Annotations["tenant.network/admission-id"])
	})
	t.Run("an id that is not of our making is not kept", func(t *testing.T) {
		injector, _ := newInjector(t)
		pod := podFrom(t, strings.ReplaceAll(copied, "aaaaaaaaaaaaaaaa", "../../etc"))
		result, errs := injector.Inject(pod, "tenant-a", false)
		require.Empty(t, errs)
		require.Equal(t, "0123456789abcdef", result.Pod.Annotations["tenant.network/admission-id"])
	})
	t.Run("a networks annotation with nothing but stale entries goes", func(t *testing.T) {
		injector, _ := newInjector(t)
		pod := podFrom(t, plain)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, rdma.NetworksAnnotation, "tenant-a/stale@rdma0")
		result, errs := injector.Inject(pod, "tenant-a", false)
		require.Empty(t, errs)
		require.NotContains(t, apply(t, pod, result.Pod).Annotations, rdma.NetworksAnnotation)
	})
}

func TestADryRunReservesNothing(t *testing.T) {
	injector, ledger := newInjector(t)
	result, errs := injector.Inject(podFrom(t, plain), "tenant-a", true)
	require.Empty(t, errs)
	require.Contains(t, result.Pod.Finalizers, rdma.Finalizer)
	require.Zero(t, ledger.UsageOf("mellanox.com/mlnx_sriov_rdma").Reserved)
}

func TestAPodThatHasToWaitIsAdmittedWithAWarning(t *testing.T) {
	injector, ledger := newInjector(t)
	ledger.SetPod(pools.Charge{UID: "hog", Node: "n1", Devices: pools.Counts{"mellanox.com/mlnx_sriov_rdma": 8, "mellanox.com/other_vf": 8, "example.com/both": 8}})
	result, errs := injector.Inject(podFrom(t, plain), "tenant-a", false)
	require.Empty(t, errs)
	require.Equal(t, []string{"rdma.vf: pool mellanox.com/mlnx_sriov_rdma has no devices free for this pod now; it waits for them (required 2)"}, result.Warnings)
}

// devicesOf lists a container's devices in order, and makes sure that requests and limits agree.
func devicesOf(t testing.TB, c *corev1.Container) string {
	t.Helper()
	var all []string
	for name, quantity := range c.Resources.Requests {
		if !strings.Contains(string(name), "/") {
			continue
		}
		limit := c.Resources.Limits[name]
		require.Zero(t, quantity.Cmp(limit), "request and limit of %s", name)
		all = append(all, string(name)+"="+quantity.String())
	}
	if len(all) == 0 {
		return "-"
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
