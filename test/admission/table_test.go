package admission

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// TestAdmission is one cluster's life: the table, then what takes more than one pod.
func TestAdmission(t *testing.T) {
	table := loadRows(t)
	w := newWorld(t)
	w.startInjectors(t)
	t.Run("table", func(t *testing.T) {
		total, refused := 0, 0
		for _, file := range slices.Sorted(maps.Keys(table)) {
			t.Run(file, func(t *testing.T) {
				for _, r := range table[file] {
					total++
					if !r.Want.admitted() {
						refused++
					}
					t.Run(r.Name, func(t *testing.T) { w.check(t, r) })
				}
			})
		}
		t.Logf("%d pods, %d of them admitted", total, total-refused)
		assert.GreaterOrEqual(t, total, 120)
	})
	t.Run("life", w.testLife)
}

// check sends the row's pod to the API server, and holds the answer against the row.
func (w *world) check(t *testing.T, r row) {
	t.Helper()
	reviews := w.reviews(t)
	reserved, err := w.reserved(t.Context())
	require.NoError(t, err)
	got, err := w.create(t.Context(), r.Namespace, r.body(t), false)
	warnings := slices.Clone(*w.warnings)
	if err == nil {
		metadata, _ := got["metadata"].(object)
		name, _ := metadata["name"].(string)
		defer w.remove(t, r.Namespace, name)
	}
	w.checkReviews(t, r.Want, reviews)
	if refusal := r.Want.Refused + r.Want.Denied + r.Want.Invalid; refusal != "" {
		require.Error(t, err, "the pod was created:\n%v", got)
		checkRefusal(t, r, err)
		now, err := w.reserved(t.Context())
		require.NoError(t, err)
		if r.Want.Invalid == "" || r.Want.Reviews["injected"] == 0 { // else it was refused behind our back
			assert.Equal(t, reserved, now, "a refused pod must reserve nothing")
		}
		return
	}
	require.NoError(t, err)
	require.NotEqual(t, r.Want.admitted(), r.Want.Untouched, "the row must want something")
	assert.Equal(t, r.Want.Warnings, warnings)
	requireSame(t, w.expected(t, r), got)
	if r.Want.admitted() {
		w.checkAdmitted(t, r, got, reserved)
	}
}

func (w *world) checkReviews(t *testing.T, wanted want, before map[string]int) {
	t.Helper()
	expected := wanted.Reviews
	if expected == nil {
		switch {
		case wanted.admitted():
			expected = map[string]int{"injected": 1}
		case wanted.Refused != "":
			expected = map[string]int{"refused": 1}
		default:
			expected = map[string]int{}
		}
	}
	counted := map[string]int{}
	for result, n := range w.reviews(t) {
		if n > before[result] {
			counted[result] = n - before[result]
		}
	}
	assert.Equal(t, expected, counted, "reviews by result")
}

// fault is one entry of a refusal: a field, what is wrong with it, and a sentence.
var fault = regexp.MustCompile(`(?:^|, )(?:metadata|spec)[^ ]*: (?:Invalid value|Unsupported value|Required value|Forbidden)(: .+)?`)

// checkRefusal compares the whole text, and holds tenant-webhook's own to what every refusal of it must do.
func checkRefusal(t *testing.T, r row, err error) {
	t.Helper()
	text := err.Error()
	switch {
	case r.Want.Refused != "":
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		const denied = `admission webhook "pods.tenant.network" denied the request: Pod `
		require.True(t, strings.HasPrefix(text, denied), "%v", err)
		_, text, _ = strings.Cut(text, "is invalid: ")
		require.Equal(t, r.Want.Refused, text)
		assert.Regexp(t, fault, strings.Trim(text, "[]"), "a refusal names the field")
		assert.Regexp(t, `must|supported values:|accepted`, text, "a refusal says what is accepted")
		assert.Less(t, len(text), 4096, "a refusal is short")
	case r.Want.Denied != "":
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		_, text, _ = strings.Cut(text, "denied request: ")
		require.Equal(t, r.Want.Denied, text)
	default:
		require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%v", err)
		require.Equal(t, r.Want.Invalid, text)
	}
}

// checkAdmitted holds an admitted pod to what every one of them must do.
func (w *world) checkAdmitted(t *testing.T, r row, got object, reserved int64) {
	t.Helper()
	eventually(t, "the pod is seen and nothing is reserved for it any more", func(ctx context.Context) error {
		now, err := w.reserved(ctx)
		if err == nil && now != reserved {
			err = fmt.Errorf("%d devices are reserved, before it were %d", now, reserved)
		}
		return err
	})

	again := clone(t, got)
	plain(again)
	set(again, "again", "metadata", "name")
	second, err := w.create(t.Context(), r.Namespace, marshal(t, again), true)
	require.NoError(t, err, "a pod as it was admitted must be admitted")
	delete(again["metadata"].(object), "generateName")
	delete(second["metadata"].(object), "generateName")
	requireSame(t, again, second)

	checkMerge(t, r, got)
}

// checkMerge appends networks as is done when the pod is bound, and reads the result as Multus does.
func checkMerge(t *testing.T, r row, got object) {
	t.Helper()
	user, _ := annotationsOf(got)[rdma.NetworksAnnotation].(string)
	var ours []rdma.Attachment
	_, _, counts := r.Want.decisions(t)
	for _, text := range counts {
		count, err := strconv.Atoi(text)
		require.NoError(t, err)
		for range count {
			ours = append(ours, rdma.Attachment{Namespace: r.Namespace, Name: fmt.Sprintf("ours-%d", len(ours))})
		}
	}
	merged, err := rdma.MergeNetworks(user, r.Namespace, ours)
	require.NoError(t, err)
	interfaces, err := multusReads(merged, r.Namespace)
	require.NoError(t, err, "Multus must be able to read %s", merged)
	expected := r.Want.Multus
	if expected == nil {
		require.Empty(t, user, "the row must say what Multus makes")
		for i := range ours {
			expected = append(expected, fmt.Sprintf("rdma%d=%s/ours-%d", i, r.Namespace, i))
		}
	}
	assert.Equal(t, expected, interfaces, "networks %s", merged)
	kept := strings.TrimRight(user, " \t\n")
	if strings.ContainsAny(user, `[{"`) {
		kept = strings.TrimSuffix(kept, "]")
	}
	assert.True(t, strings.HasPrefix(merged, kept), "the user's text %q is kept in %q", user, merged)
}
