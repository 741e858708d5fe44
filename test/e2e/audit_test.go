package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const schedulerUser = "system:serviceaccount:webhook-system:tenant-scheduler"

// writesBy returns the successful writes of a user to pods and their subresources, by namespace/name, as the API server
// logged them, each like "create pods/binding".
func (w *world) writesBy(user string) map[string][]string {
	w.t.Helper()
	data, err := os.ReadFile(w.AuditLogPath())
	require.NoError(w.t, err)
	writes := map[string][]string{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var event auditv1.Event
		if json.Unmarshal(scanner.Bytes(), &event) != nil || event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil {
			continue // the last line may be half written
		}
		ref := event.ObjectRef
		if event.User.Username != user || ref.Resource != "pods" || event.Verb == "get" || event.Verb == "list" || event.Verb == "watch" {
			continue
		}
		resource := ref.Resource
		if ref.Subresource != "" {
			resource += "/" + ref.Subresource
		}
		key := ref.Namespace + "/" + ref.Name
		writes[key] = append(writes[key], fmt.Sprintf("%s %s %d", event.Verb, resource, event.ResponseStatus.Code))
	}
	return writes
}
