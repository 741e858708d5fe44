package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// TestTheGuardNamesEveryWordThatWeWrite: a key that is written and not named there could be forged.
func TestTheGuardNamesEveryWordThatWeWrite(t *testing.T) {
	manifest, err := tenantwebhook.Manifests.ReadFile("manifests/guard.yaml")
	require.NoError(t, err)
	named := map[string][]string{}
	for text := range strings.SplitSeq(string(manifest), "\n---\n") {
		var policy admissionv1.ValidatingAdmissionPolicy
		require.NoError(t, yaml.Unmarshal([]byte(text), &policy))
		for _, variable := range policy.Spec.Variables {
			if list := regexp.MustCompile(`^\[([^\]]*)\]\s*\.filter\(`).FindStringSubmatch(variable.Expression); list != nil {
				for word := range strings.SplitSeq(list[1], ",") {
					named[policy.Name] = append(named[policy.Name], strings.Trim(word, " \n'"))
				}
			}
		}
	}
	written := rdma.WrittenAnnotations()
	require.ElementsMatch(t, written, named["tenant-webhook-guard-create"])
	require.ElementsMatch(t, append(written, rdma.NetworksAnnotation, rdma.DefaultNetworkAnnotation), named["tenant-webhook-guard"])
}
