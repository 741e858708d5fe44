package install

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// request is what an authorizer is asked about.
type request struct {
	account, verb, group, resource, namespace, name string
}

// grant is one verb on one resource that a rule of ours allows. An empty name stands for all names, an empty namespace
// for all namespaces.
type grant request

func (g grant) String() string {
	text := g.account + " may " + g.verb + " " + g.resource
	if g.group != "" {
		text += "." + g.group
	}
	if g.name != "" {
		text += " " + g.name
	}
	return text
}

func (g grant) covers(r request) bool {
	return g.account == r.account && g.verb == r.verb && g.group == r.group && g.resource == r.resource &&
		(g.namespace == "" || g.namespace == r.namespace) && (g.name == "" || g.name == r.name)
}

// fallback is the grant that takes the place of this one here: informers have the API server stream what there is as the
// beginning of a watch, and list it only where it cannot do that.
func (g grant) fallback() grant {
	if g.verb == "list" {
		g.verb = "watch"
	}
	return g
}

// upstream are roles of Kubernetes itself that we are bound to: their rules are not ours to choose.
var upstream = []string{"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}

// unusedFor says why a grant that this test does not see used is there all the same.
var unusedFor = map[string]string{
	"tenant-webhook may patch events.events.k8s.io": "an Event that repeats is counted by a patch of the first, minutes later",
	"tenant-webhook may patch events":               "the same, for the change of leaders",
}

// TestNoPermissionIsUnusedAndNoneIsMissing has the programs do everything that they do, and compares what they asked of
// the API server with what the manifests allow.
func TestNoPermissionIsUnusedAndNoneIsMissing(t *testing.T) {
	w := newWorld(t, devcluster.Config{AuditLog: true, WebhookArgs: []string{"--sweep-period=1s", "--sweep-grace=0s"}})
	w.do("scripts/deploy.sh " + w.overlay)
	w.do("scripts/self-test.sh " + w.overlay)
	w.repair()
	w.breakPools()
	w.bypass()
	w.loseNode()
	w.changeLeaders()

	used, forbidden := w.requests()
	require.Empty(t, forbidden, "what the programs ask must be allowed")
	granted := w.grants()
	require.NotEmpty(t, granted)
	var unused []string
	for _, g := range granted {
		if !slices.ContainsFunc(used, g.covers) && !slices.ContainsFunc(used, g.fallback().covers) && unusedFor[g.String()] == "" {
			unused = append(unused, g.String())
		}
	}
	slices.Sort(unused)
	require.Empty(t, slices.Compact(unused), "what is allowed must be asked for")
	for text := range unusedFor {
		require.True(t, slices.ContainsFunc(granted, func(g grant) bool { return g.String() == text }), "%s: is not granted any more", text)
	}
}

// repair has the sweep ask again for the networks of a running pod, which the mock forgets.
func (w *world) repair() {
	w.t.Helper()
	w.apply("deploy/example-test-pod.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=120s")
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.MockURL()+"/mock/forget", strings.NewReader(`{"all": true}`))
	require.NoError(w.t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	require.NoError(w.t, response.Body.Close())
	require.Less(w.t, response.StatusCode, 300)
	w.event("tenant-a", "NetworkAllocationRepaired")
}

// breakPools makes the pool configuration unusable for a while.
func (w *world) breakPools() {
	w.t.Helper()
	w.do(`kubectl -n webhook-system patch configmap resource-pool-config --type=merge -p '{"data": {"resource-pools": "no resource name"}}'`)
	w.event(system, "InvalidPoolConfig")
	w.do("kubectl apply -k " + w.overlay)
}

// bypass has tenant-scheduler bind a pod that did not go through tenant-webhook.
func (w *world) bypass() {
	w.t.Helper()
	w.do("kubectl -n tenant-a delete pod rdma-test-pod")
	w.do(`kubectl -n default run elsewhere --image=app --annotations=rdma.vf=1 --overrides='{"spec": {"schedulerName": "tenant-scheduler"}}'`)
	w.event("default", "RDMANotInjected")
}

// loseNode takes a node away from under a pod, and then ends the pod: nobody but the API server knows that the node is gone.
func (w *world) loseNode() {
	w.t.Helper()
	w.do(`kubectl -n tenant-a run lost --image=app --annotations=rdma.vf=1 --overrides='{"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}}'`)
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/lost --timeout=120s")
	w.do("kubectl delete node node-2")
	w.do("kubectl -n tenant-a delete pod lost --timeout=180s")
}

// changeLeaders kills the leaders and waits for their successors.
func (w *world) changeLeaders() {
	w.t.Helper()
	for _, name := range []string{devcluster.WebhookReplica(0), devcluster.WebhookReplica(1), devcluster.TenantScheduler} {
		require.NoError(w.t, w.Kill(name))
		require.NoError(w.t, w.WaitReady(w.t.Context(), name))
	}
	w.apply("deploy/example-test-pod.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=180s")
	w.do("kubectl -n tenant-a delete pod rdma-test-pod --timeout=180s")
}

// event waits until an Event with this reason is there.
func (w *world) event(namespace, reason string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		events, err := w.client.CoreV1().Events(namespace).List(w.t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		require.NoError(c, err)
		require.NotEmpty(c, events.Items)
	}, patience, 100*time.Millisecond, "no Event %s in %s", reason, namespace)
}

// requests reads the audit log: what our service accounts were allowed, and what they were denied.
func (w *world) requests() (allowed []request, forbidden []string) {
	w.t.Helper()
	data, err := os.ReadFile(w.AuditLogPath())
	require.NoError(w.t, err)
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 16<<20)
	seen := map[request]bool{}
	for scanner.Scan() {
		var event auditv1.Event
		if json.Unmarshal(scanner.Bytes(), &event) != nil || event.ObjectRef == nil {
			continue // the last line may be half written
		}
		account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+system+":")
		if !ours {
			continue
		}
		ref := event.ObjectRef
		r := request{account, event.Verb, ref.APIGroup, ref.Resource, ref.Namespace, ref.Name}
		if ref.Subresource != "" {
			r.resource += "/" + ref.Subresource
		}
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" {
			forbidden = append(forbidden, fmt.Sprintf("%+v", r))
		} else if !seen[r] {
			seen[r] = true
			allowed = append(allowed, r)
		}
	}
	return allowed, forbidden
}

// grants are those of the roles that we ship.
func (w *world) grants() []grant {
	w.t.Helper()
	ctx, options := w.t.Context(), metav1.ListOptions{LabelSelector: partOf}
	clusterBindings, err := w.client.RbacV1().ClusterRoleBindings().List(ctx, options)
	require.NoError(w.t, err)
	bindings, err := w.client.RbacV1().RoleBindings(metav1.NamespaceAll).List(ctx, options)
	require.NoError(w.t, err)
	var all []grant
	for i := range clusterBindings.Items {
		binding := &clusterBindings.Items[i]
		all = append(all, w.expand(ctx, binding.RoleRef, binding.Subjects, "")...)
	}
	for i := range bindings.Items {
		binding := &bindings.Items[i]
		all = append(all, w.expand(ctx, binding.RoleRef, binding.Subjects, binding.Namespace)...)
	}
	return all
}

func (w *world) expand(ctx context.Context, ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespace string) []grant {
	w.t.Helper()
	if slices.Contains(upstream, ref.Name) {
		return nil
	}
	var rules []rbacv1.PolicyRule
	if ref.Kind == "ClusterRole" {
		role, err := w.client.RbacV1().ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
		require.NoError(w.t, err)
		rules = role.Rules
	} else {
		role, err := w.client.RbacV1().Roles(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		require.NoError(w.t, err)
		rules = role.Rules
	}
	var all []grant
	for _, subject := range subjects {
		require.Equal(w.t, "ServiceAccount", subject.Kind)
		for _, rule := range rules {
			all = append(all, expandRule(subject.Name, namespace, rule)...)
		}
	}
	return all
}

func expandRule(account, namespace string, rule rbacv1.PolicyRule) []grant {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var all []grant
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, grant{account, verb, group, resource, namespace, name})
				}
			}
		}
	}
	return all
}
