package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// row is one pod of the table, and what has to become of it.
type row struct {
	Name string `json:"name"`
	// Namespace defaults to tenant-a.
	Namespace string `json:"namespace"`
	// Annotations go into Metadata, which is called p unless it says otherwise.
	Annotations object `json:"annotations"`
	Metadata    object `json:"metadata"`
	// Spec defaults to one container "app". Containers without an image get one.
	Spec object `json:"spec"`
	// Padding adds that many bytes of environment to the first container.
	Padding int  `json:"padding"`
	Want    want `json:"want"`
}

// want is one of: admitted (VF or PF set), refused by one of three, or untouched.
type want struct {
	// VF and PF are what was decided for the type, such as "2 of mellanox.com/mlnx_sriov_rdma".
	VF string `json:"vf"`
	PF string `json:"pf"`
	// Devices are the requests and limits, by container and pool, that the pod has then and did not have as it was sent.
	Devices map[string]map[string]string `json:"devices"`
	// Networks is the annotation after admission, by default as it was sent.
	Networks *string `json:"networks"`
	// Multus are the interfaces that Multus makes besides eth0 when our networks, called ours-0, ours-1, …, have been
	// appended. They must be given for a pod with networks of its own.
	Multus   []string `json:"multus"`
	Warnings []string `json:"warnings"`

	// Untouched: the pod is created as if there were no tenant-webhook.
	Untouched bool `json:"untouched"`

	// Refused is all that tenant-webhook says behind "is invalid: ".
	Refused string `json:"refused"`
	// Denied is all that the policy says behind "denied request: ", Invalid all that the API server itself says.
	Denied  string `json:"denied"`
	Invalid string `json:"invalid"`

	// Reviews are those that tenant-webhook counts, by default one with the result that the above says.
	Reviews map[string]int `json:"reviews"`
}

func (w want) admitted() bool { return w.VF != "" || w.PF != "" }

// loadRows reads the table, by file.
func loadRows(t *testing.T) map[string][]row {
	t.Helper()
	files, err := filepath.Glob("testdata/rows/*.yaml")
	require.NoError(t, err)
	table, seen := map[string][]row{}, map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var rows []row
		require.NoError(t, yaml.UnmarshalStrict(data, &rows), file)
		for i := range rows {
			require.NotEmpty(t, rows[i].Name, "%s row %d", file, i)
			require.False(t, seen[rows[i].Name], "row %q stands twice", rows[i].Name)
			seen[rows[i].Name] = true
			rows[i].complete()
		}
		table[strings.TrimSuffix(filepath.Base(file), ".yaml")] = rows
	}
	return table
}

func (r *row) complete() {
	if r.Namespace == "" {
		r.Namespace = tenantA
	}
	metadata := object{"name": "p"}
	if r.Metadata["generateName"] != nil {
		metadata = object{}
	}
	maps.Copy(metadata, r.Metadata)
	if r.Annotations != nil {
		metadata["annotations"] = r.Annotations
	}
	r.Metadata = metadata
	if r.Spec == nil {
		r.Spec = object{"containers": []any{object{"name": "app"}}}
	}
	for _, c := range containersOf(r.Spec) {
		if c["image"] == nil {
			c["image"] = "app"
		}
	}
	if r.Padding > 0 {
		var env []any
		for i := range r.Padding / 1000 {
			env = append(env, object{"name": fmt.Sprintf("V%d", i), "value": strings.Repeat("x", 980)})
		}
		containersOf(r.Spec)[0]["env"] = env
	}
}

// containersOf are the containers, first the init containers, as far as they are objects.
func containersOf(spec object) []object {
	var all []object
	for _, key := range []string{"initContainers", "containers"} {
		list, _ := spec[key].([]any)
		for _, entry := range list {
			if c, ok := entry.(object); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

func (r *row) body(t *testing.T) []byte {
	return marshal(t, object{"metadata": r.Metadata, "spec": r.Spec})
}

func marshal(t *testing.T, content any) []byte {
	t.Helper()
	body, err := json.Marshal(content)
	require.NoError(t, err)
	return body
}

// clone is a deep copy, with numbers as the API server's answers have them.
func clone(t *testing.T, content object) object {
	t.Helper()
	var copied object
	require.NoError(t, json.Unmarshal(marshal(t, content), &copied))
	return copied
}

// set sets a field, and makes the objects on the way.
func set(content object, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, ok := content[key].(object)
		if !ok {
			next = object{}
			content[key] = next
		}
		content = next
	}
	content[path[len(path)-1]] = value
}

func annotationsOf(pod object) object {
	metadata, _ := pod["metadata"].(object)
	annotations, _ := metadata["annotations"].(object)
	return annotations
}

func ourKey(key string) bool {
	return strings.HasPrefix(key, rdma.Domain) && key != rdma.ContainerAnnotation
}

func finalizersOf(pod object) []any {
	metadata, _ := pod["metadata"].(object)
	finalizers, _ := metadata["finalizers"].([]any)
	return finalizers
}

// withoutOurWords is a pod that may be created where tenant-webhook has no say.
func withoutOurWords(t *testing.T, pod object) object {
	t.Helper()
	pod = clone(t, pod)
	maps.DeleteFunc(annotationsOf(pod), func(key string, _ any) bool { return ourKey(key) })
	if finalizers := finalizersOf(pod); finalizers != nil {
		set(pod, slices.DeleteFunc(finalizers, func(f any) bool { return f == rdma.Finalizer }), "metadata", "finalizers")
	}
	return pod
}

// expected is the pod as it should be: what was sent, with what the row wants written into it by hand, as the API server
// completes it elsewhere, and our words.
func (w *world) expected(t *testing.T, r row) object {
	t.Helper()
	sent := clone(t, object{"metadata": r.Metadata, "spec": r.Spec})
	pod := withoutOurWords(t, sent)
	if metadata, ok := pod["metadata"].(object); ok {
		delete(metadata, "namespace")
	}
	if r.Want.Networks != nil {
		set(pod, *r.Want.Networks, "metadata", "annotations", rdma.NetworksAnnotation)
		if *r.Want.Networks == "" {
			delete(annotationsOf(pod), rdma.NetworksAnnotation)
		}
	}
	if r.Want.admitted() {
		delete(annotationsOf(pod), rdma.NetworkStatusAnnotation)
		set(pod, rdma.SchedulerName, "spec", "schedulerName")
	}
	spec, _ := pod["spec"].(object)
	for container, devices := range r.Want.Devices {
		i := slices.IndexFunc(containersOf(spec), func(c object) bool { return c["name"] == container })
		require.GreaterOrEqual(t, i, 0, "the row names no container %q", container)
		for pool, count := range devices {
			set(containersOf(spec)[i], count, "resources", "requests", pool)
			set(containersOf(spec)[i], count, "resources", "limits", pool)
		}
	}
	completed, err := w.create(t.Context(), elsewhere, marshal(t, pod), true)
	require.NoError(t, err, "what the row wants must be a pod")
	plain(completed)
	if !r.Want.admitted() {
		return completed
	}
	for key, value := range r.Want.words(t) {
		set(completed, value, "metadata", "annotations", key)
	}
	finalizers := finalizersOf(sent)
	if !slices.Contains(finalizers, any(rdma.Finalizer)) {
		finalizers = append(finalizersOf(completed), rdma.Finalizer)
	}
	set(completed, finalizers, "metadata", "finalizers")
	return completed
}

// plain takes out what no two pods have in common, and what is called after the namespace.
func plain(pod object) {
	metadata, _ := pod["metadata"].(object)
	for _, key := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace"} {
		delete(metadata, key)
	}
	if metadata["generateName"] != nil {
		delete(metadata, "name")
	}
}

var decided = regexp.MustCompile(`^([0-9]+) of (\S+)$`)

// decisions are what the row wants for each type, in their order.
func (w want) decisions(t *testing.T) (types, pools, counts []string) {
	t.Helper()
	for _, entry := range []struct{ name, text string }{{"vf", w.VF}, {"pf", w.PF}} {
		if entry.text == "" {
			continue
		}
		parts := decided.FindStringSubmatch(entry.text)
		require.NotNil(t, parts, "%s: %q must be like \"2 of a.com/b\"", entry.name, entry.text)
		types, pools, counts = append(types, entry.name), append(pools, parts[2]), append(counts, parts[1])
	}
	return types, pools, counts
}

func (w want) words(t *testing.T) map[string]string {
	t.Helper()
	types, pools, counts := w.decisions(t)
	return map[string]string{
		"tenant.network/resource-type":  strings.Join(types, ","),
		"tenant.network/resource-pool":  strings.Join(pools, ","),
		"tenant.network/resource-count": strings.Join(counts, ","),
	}
}

// requireSame compares whole pods but for the admission id, whose form it checks.
func requireSame(t *testing.T, want, got object) {
	t.Helper()
	got = clone(t, got)
	plain(got)
	if id, ok := annotationsOf(got)[rdma.AdmissionIDAnnotation]; ok {
		assert.Regexp(t, `^[a-z0-9]{16}$`, id)
		delete(annotationsOf(got), rdma.AdmissionIDAnnotation)
	}
	want = clone(t, want)
	delete(annotationsOf(want), rdma.AdmissionIDAnnotation)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the pod (- wanted, + created):\n%s", diff)
	}
}
