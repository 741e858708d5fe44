package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// maxNetworks bounds one pod's networks: a node has fewer devices, and a wrong count must not fill the cluster.
const maxNetworks = 512

func validateKey(cluster string, podUID types.UID) error {
	if cluster == "" {
		return malformed("cluster is missing")
	}
	if podUID == "" {
		return malformed("the pod UID is missing")
	}
	if errs := validation.IsValidLabelValue(string(podUID)); len(errs) > 0 {
		return malformed("pod UID %q: %s", podUID, strings.Join(errs, "; "))
	}
	return nil
}

// validate names the first field that breaks the contract.
func validate(podUID types.UID, ask tenant.EnsureRequest) error {
	if err := validateKey(ask.Cluster, podUID); err != nil {
		return err
	}
	for _, field := range []struct{ name, value string }{
		{"namespace", ask.Namespace}, {"pod", ask.Pod}, {"tenant", ask.Tenant}, {"node", ask.Node},
	} {
		if field.value == "" {
			return malformed("%s is missing", field.name)
		}
	}
	if ask.Generation < 0 {
		return malformed("generation must not be negative, is %d", ask.Generation)
	}
	if len(ask.Requests) == 0 {
		return malformed("requests are missing")
	}
	return validateRequests(ask.Requests)
}

func validateRequests(requests []tenant.Request) error {
	total := int64(0)
	for i, r := range requests {
		switch {
		case r.Type != "vf" && r.Type != "pf":
			return malformed("requests[%d].type is vf or pf, not %q", i, r.Type)
		case r.Pool == "":
			return malformed("requests[%d].pool is missing", i)
		case r.Count < 1:
			return malformed("requests[%d].count is at least 1, not %d", i, r.Count)
		case r.Count > maxNetworks:
			return invalid("requests[%d].count: %d are more than %d networks", i, r.Count, maxNetworks)
		}
		total += r.Count
	}
	if total > maxNetworks {
		return invalid("requests: %d are more than %d networks for one pod", total, maxNetworks)
	}
	return nil
}

// networksFor names the networks by what never changes for a pod UID, so that a restart finds the same ones. The UID
// itself would be clearer but makes the pod's annotation longer than it need be.
func networksFor(k key, ask tenant.EnsureRequest) []tenant.Network {
	sum := sha256.Sum256([]byte(k.String()))
	prefix := "nad-" + hex.EncodeToString(sum[:6])
	var networks []tenant.Network
	for _, request := range ask.Requests {
		for range request.Count {
			networks = append(networks, tenant.Network{
				Namespace: ask.Namespace,
				Name:      fmt.Sprintf("%s-%d", prefix, len(networks)),
				Pool:      request.Pool,
			})
		}
	}
	return networks
}
