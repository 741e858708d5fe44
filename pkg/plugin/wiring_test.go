package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
)

func TestWiring(t *testing.T) {
	const anotherName = "FakePreBind"
	anotherPreBind := tf.RegisterPreBindPlugin(anotherName, tf.NewFakePreBindPlugin(nil, nil))
	binder := &tf.FakeExtender{ExtenderName: "binder.example"}
	everywhere := ours("PreFilter", "Filter", "Score", "Reserve", "PreBind", "Bind")
	for name, tc := range map[string]struct {
		plugins   []tf.RegisterPluginFunc
		extenders []fwk.Extender
		// want is empty where RDMA pods pass.
		want []string
	}{
		"first at bind and alone at preBind passes": {plugins: []tf.RegisterPluginFunc{everywhere, defaultBinder}},
		"first at bind and last at preBind passes":  {plugins: []tf.RegisterPluginFunc{anotherPreBind, everywhere, defaultBinder}},
		"an extender that binds nothing passes": {
			plugins:   []tf.RegisterPluginFunc{everywhere, defaultBinder},
			extenders: []fwk.Extender{filterOnly{&tf.FakeExtender{}}},
		},
		"behind DefaultBinder is refused": {
			plugins: []tf.RegisterPluginFunc{defaultBinder, everywhere},
			want:    []string{"first at bind", "tenant-scheduler", "[DefaultBinder TenantNetwork]", "disable DefaultBinder at bind"},
		},
		"missing at bind is refused": {
			plugins: []tf.RegisterPluginFunc{ours("PreFilter", "Filter", "Reserve", "PreBind"), defaultBinder},
			want:    []string{"first at bind", "[DefaultBinder]"},
		},
		"missing at preBind is refused": {
			plugins: []tf.RegisterPluginFunc{ours("PreFilter", "Filter", "Reserve", "Bind"), defaultBinder},
			want:    []string{"last at preBind", "[]"},
		},
		"another plugin behind ours at preBind is refused": {
			plugins: []tf.RegisterPluginFunc{everywhere, anotherPreBind, defaultBinder},
			want:    []string{"last at preBind", anotherName},
		},
		"an extender that binds is refused": {
			plugins:   []tf.RegisterPluginFunc{everywhere, defaultBinder},
			extenders: []fwk.Extender{filterOnly{&tf.FakeExtender{}}, binder},
			want:      []string{"binder.example", "bindVerb"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{plugins: tc.plugins, options: []frameworkruntime.Option{frameworkruntime.WithExtenders(tc.extenders)}})

			_, status := f.preFilter(vfPod("rdma", 1))
			if len(tc.want) == 0 {
				requireSuccess(t, status)
			} else {
				require.Equal(t, fwk.UnschedulableAndUnresolvable.String(), status.Code().String())
			}
			for _, want := range tc.want {
				require.Contains(t, status.Message(), want)
			}

			_, status = f.preFilter(plainPod(teamA, "plain"))
			requireSuccess(t, status)
		})
	}
}

// filterOnly is an extender without a bindVerb.
type filterOnly struct{ *tf.FakeExtender }

func (filterOnly) IsBinder() bool { return false }

// handleWithoutList is a framework that does not tell its plugins.
type handleWithoutList struct{ fwk.Handle }

func TestWiringMustNotBeGuessed(t *testing.T) {
	require.ErrorContains(t, checkWiring(handleWithoutList{}), "does not tell which plugins")
}
