package pools

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

var bothTypes = []rdma.Type{rdma.VF, rdma.PF}

func TestParseConfigReadsPools(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []Pool
	}{
		{"the plain list of the product's first description", "mellanox.com/mlnx_sriov_rdma\nrdma/hca_shared_devices_a\n",
			[]Pool{{sriov, bothTypes, false}, {hca, bothTypes, true}}},
		{"comments, blank lines and white space", "# highest first\n\n  mellanox.com/mlnx_sriov_rdma  # the fast ones\n\t\n#a.com/b\n\trdma/hca_shared_devices_a#no blank",
			[]Pool{{sriov, bothTypes, false}, {hca, bothTypes, true}}},
		{"lines that end as on Windows", "mellanox.com/mlnx_sriov_rdma type=vf\r\nmellanox.com/mlnx_pf_rdma type=pf\r\n",
			[]Pool{{sriov, []rdma.Type{rdma.VF}, false}, {pfPool, []rdma.Type{rdma.PF}, false}}},
		{"options in any order", "a.com/b shared=true type=pf\nc.com/d type=vf shared=false",
			[]Pool{{"a.com/b", []rdma.Type{rdma.PF}, true}, {"c.com/d", []rdma.Type{rdma.VF}, false}}},
		{"pools of the shared device plugin are shared unless said otherwise", "rdma/a\nrdma/b shared=false\nrdma/c shared=true\nrdma.com/d",
			[]Pool{{"rdma/a", bothTypes, true}, {"rdma/b", bothTypes, false}, {"rdma/c", bothTypes, true}, {"rdma.com/d", bothTypes, false}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := ParseConfig(map[string]string{PoolsKey: tc.text})
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(tc.want, cfg.Pools))
		})
	}
}

func TestParseConfigReadsPolicy(t *testing.T) {
	defaults := Policy{WhenFull: Queue, GatedPods: CountGated, MaxCount: 64, ReservationSeconds: 30,
		GroupKeys: DefaultGroupKeys(), Sidecars: DefaultSidecars()}
	with := func(f func(*Policy)) Policy {
		p := defaults
		f(&p)
		return p
	}
	for _, tc := range []struct {
		name, text string
		want       Policy
	}{
		{"nothing means the defaults", "", defaults},
		{"a comment means the defaults", "# nothing yet\n", defaults},
		{"an empty object means the defaults", "{}", defaults},
		{"each field can be set", "whenFull: reject\ngatedPods: ignore\nmaxCount: 8\nreservationSeconds: 60\ngroupKeys: [{label: a.com/gang}]\nsidecars: [proxy]",
			Policy{WhenFull: Reject, GatedPods: IgnoreGated, MaxCount: 8, ReservationSeconds: 60, GroupKeys: []GroupKey{{Label: "a.com/gang"}}, Sidecars: []string{"proxy"}}},
		{"JSON is YAML", `{"maxCount": 1024}`, with(func(p *Policy) { p.MaxCount = 1024 })},
		{"no groups at all can be wished for", "groupKeys: []\nsidecars: []", with(func(p *Policy) { p.GroupKeys, p.Sidecars = []GroupKey{}, []string{} })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := ParseConfig(map[string]string{PoolsKey: "a.com/b", PolicyKey: tc.text, "other": "is not read"})
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(tc.want, cfg.Policy))
		})
	}
	assert.Equal(t, 30*time.Second, defaults.Reservation())
}

func TestParseConfigMustNotAccept(t *testing.T) {
	for _, tc := range []struct{ name, pools, policy, want string }{
		{"an empty list", "", "", `key "resource-pools" names no pool; at least one extended resource such as mellanox.com/mlnx_sriov_rdma is needed`},
		{"a list of comments", "# a.com/b\n\n", "", `key "resource-pools" names no pool`},
		{"a pool that stands twice", "a.com/b\n# x\na.com/b type=vf", "", `key "resource-pools" line 3: pool "a.com/b" stands twice; a pool has one place in the order`},
		{"a name without domain", "a.com/b\nhca_shared_devices_a", "",
			`key "resource-pools" line 2: "hca_shared_devices_a" is not an extended resource; it must be domain/name outside kubernetes.io, such as mellanox.com/mlnx_sriov_rdma`},
		{"a resource of Kubernetes' own", "cpu", "", `line 1: "cpu" is not an extended resource; it must be domain/name`},
		{"a name under kubernetes.io", "kubernetes.io/b", "", `line 1: "kubernetes.io/b" is not an extended resource; it must be domain/name outside kubernetes.io`},
		{"a name in a domain below kubernetes.io", "x.kubernetes.io/b", "", `line 1: "x.kubernetes.io/b" is not an extended resource`},
		{"a quota's spelling", "requests.a.com/b", "", `line 1: "requests.a.com/b" is not an extended resource`},
		{"a name with two slashes", "a.com/b/c", "", `line 1: "a.com/b/c" is not an extended resource: `},
		{"a domain in capitals", "A.com/b", "", `line 1: "A.com/b" is not an extended resource: `},
		{"an empty name", "a.com/", "", `line 1: "a.com/" is not an extended resource: name part must be non-empty`},
		{"an empty domain", "/b", "", `line 1: "/b" is not an extended resource: `},
		{"a name of 64 characters", "a.com/" + strings.Repeat("x", 64), "", "must be no more than 63"},
		{"a domain that is too long as a quota", strings.Repeat("a.", 122) + "com/b", "", "must be no more than 253"},
		{"JSON", `["a.com/b"]`, "", `line 1: "[\"a.com/b\"]" is not an extended resource: `},
		{"two pools on a line", "a.com/b c.com/d", "", `line 1: pool "a.com/b": option "c.com/d" is unknown; known are type=vf, type=pf, shared=true and shared=false`},
		{"an unknown option", "\n\na.com/b prio=1", "", `line 3: pool "a.com/b": option "prio=1" is unknown`},
		{"an option in capitals", "a.com/b Type=vf", "", `option "Type=vf" is unknown`},
		{"an unknown type", "a.com/b type=sf", "", `line 1: pool "a.com/b": option "type=sf": the type must be vf or pf; without the option a pool serves both`},
		{"a type without value", "a.com/b type", "", `option "type": the type must be vf or pf`},
		{"both types in one option", "a.com/b type=vf,pf", "", `option "type=vf,pf": the type must be vf or pf`},
		{"an option twice", "a.com/b type=vf type=pf", "", `line 1: pool "a.com/b": option "type" stands twice`},
		{"shared without value", "a.com/b shared", "", `option "shared": must be shared=true or shared=false`},
		{"shared=yes", "a.com/b shared=yes", "", `option "shared=yes": must be shared=true or shared=false`},

		{"a misspelt key", "a.com/b", "whenful: reject", `key "policy": `},
		{"a misspelt key is named", "a.com/b", "whenful: reject", `unknown field "whenful"`},
		{"a key twice", "a.com/b", "maxCount: 1\nmaxCount: 2", `key "maxCount" already set`},
		{"a text where a number belongs", "a.com/b", "maxCount: many", `key "policy": `},
		{"a list", "a.com/b", "- whenFull", `key "policy": `},
		{"no YAML at all", "a.com/b", "whenFull: [", `key "policy": `},
		{"an unknown whenFull", "a.com/b", "whenFull: drop", `key "policy": whenFull: "drop" must be "queue" or "reject"`},
		{"an unknown gatedPods", "a.com/b", "gatedPods: Count", `key "policy": gatedPods: "Count" must be "count" or "ignore"`},
		{"a negative maximum", "a.com/b", "maxCount: -1", `key "policy": maxCount: -1 must be from 1 to 1024 devices`},
		{"too large a maximum", "a.com/b", "maxCount: 1025", "maxCount: 1025 must be from 1 to 1024 devices"},
		{"a negative reservation", "a.com/b", "reservationSeconds: -1", "reservationSeconds: -1 must be from 1 to 600 seconds"},
		{"too long a reservation", "a.com/b", "reservationSeconds: 601", "reservationSeconds: 601 must be from 1 to 600 seconds"},
		{"a group key of nothing", "a.com/b", "groupKeys: [{label: a}, {}]", `key "policy": groupKeys[1]: label "" and field "": exactly one of them must be set`},
		{"a group key of both", "a.com/b", "groupKeys: [{label: a, field: spec.schedulingGroup}]", `groupKeys[0]: label "a" and field "spec.schedulingGroup": exactly one of them must be set`},
		{"an unknown field", "a.com/b", "groupKeys: [{field: spec.nodeName}]", `groupKeys[0]: field: "spec.nodeName" must be "spec.schedulingGroup"`},
		{"a label that cannot be", "a.com/b", "groupKeys: [{label: a/b/c}]", `groupKeys[0]: label: "a/b/c": a valid label key`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := ParseConfig(map[string]string{PoolsKey: tc.pools, PolicyKey: tc.policy})
			require.Nil(t, cfg)
			require.ErrorContains(t, err, tc.want)
		})
	}
	t.Run("a ConfigMap without the key", func(t *testing.T) {
		_, err := ParseConfig(map[string]string{"resource-pool": "a.com/b"})
		require.EqualError(t, err, `key "resource-pools" is missing; it lists the pools, one extended resource a line, highest priority first`)
	})
}

func TestServes(t *testing.T) {
	cfg := mustConfig("a.com/vf type=vf\nb.com/pf type=pf\nc.com/both\nrdma/shared")
	for _, tc := range []struct {
		pool  corev1.ResourceName
		typ   rdma.Type
		count int64
		want  bool
	}{
		{"a.com/vf", rdma.VF, 64, true}, {"a.com/vf", rdma.PF, 1, false}, {"b.com/pf", rdma.PF, 2, true}, {"b.com/pf", rdma.VF, 1, false},
		{"c.com/both", rdma.VF, 2, true}, {"c.com/both", rdma.PF, 2, true}, {"rdma/shared", rdma.VF, 1, true}, {"rdma/shared", rdma.VF, 2, false},
	} {
		pool, ok := cfg.Lookup(tc.pool)
		require.True(t, ok)
		assert.Equal(t, tc.want, pool.Serves(tc.typ, tc.count), "%+v", tc)
	}
	_, ok := cfg.Lookup("a.com/v")
	assert.False(t, ok)
}

func FuzzParseConfig(f *testing.F) {
	f.Add("mellanox.com/mlnx_sriov_rdma type=vf # x\nrdma/hca shared=false\n", "whenFull: reject")
	f.Add("a.com/b\r\n\r\nc.com/d", "{}")
	f.Add("a.com/b=c", "groupKeys: [{label: a}]\nsidecars: null")
	f.Add("a", "maxCount: 1e3")
	f.Add("a.com/b", "&a [*a]")
	f.Fuzz(func(t *testing.T, text, policy string) {
		cfg, err := ParseConfig(map[string]string{PoolsKey: text, PolicyKey: policy})
		if err != nil {
			require.Nil(t, cfg)
			require.True(t, strings.HasPrefix(err.Error(), `key "resource-pools"`) || strings.HasPrefix(err.Error(), `key "policy": `), "%v", err)
			return
		}
		require.NotEmpty(t, cfg.Pools)
		require.NoError(t, cfg.Policy.validate())
		seen := map[corev1.ResourceName]bool{}
		for _, pool := range cfg.Pools {
			require.True(t, IsExtendedResource(pool.Name), "%q", pool.Name)
			require.False(t, seen[pool.Name])
			require.NotEmpty(t, pool.Types)
			seen[pool.Name] = true
		}
	})
}
