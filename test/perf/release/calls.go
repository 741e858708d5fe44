package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"tenant.network/tenant-webhook/internal/devcluster"
)

const webhookUser = "system:serviceaccount:webhook-system:tenant-webhook"

var errBadLine = errors.New("a line that is no event")

// callsSince counts tenant-webhook's requests in the API server's audit log. Watches and leases are not a pod's.
func callsSince(path string, since time.Time) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	calls := 0
	data = data[:bytes.LastIndexByte(data, '\n')+1] // a line may be half written
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			return 0, fmt.Errorf("%s: %w: %w", path, errBadLine, err)
		}
		if event.Stage != auditv1.StageResponseComplete || event.User.Username != webhookUser || event.RequestReceivedTimestamp.Time.Before(since) {
			continue
		}
		if event.Verb == "watch" || event.ObjectRef == nil || event.ObjectRef.Resource == "leases" {
			continue
		}
		calls++
	}
	return calls, scanner.Err()
}

// throttled counts the lines in which client-go says that it held a request of tenant-webhook back.
func throttled(cluster *devcluster.Cluster) (int, error) {
	lines := 0
	for i := range 2 {
		log, err := os.ReadFile(cluster.LogPath(devcluster.WebhookReplica(i)))
		if err != nil {
			return 0, err
		}
		lines += strings.Count(string(log), "client-side throttling")
	}
	return lines, nil
}
