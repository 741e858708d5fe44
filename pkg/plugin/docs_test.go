package plugin

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// argumentNames are the paths of all leaves of the arguments, as the scheduler's configuration has them.
func argumentNames(prefix string, of reflect.Type) []string {
	var names []string
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "":
		case field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[metav1.Duration]():
			names = append(names, argumentNames(prefix+name+".", field.Type)...)
		default:
			names = append(names, prefix+name)
		}
	}
	return names
}

func TestEveryArgumentIsDocumentedWithItsDefault(t *testing.T) {
	text, err := os.ReadFile("../../docs/TENANT_CLIENT_CONFIG.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "## tenant-scheduler: arguments of the plugin\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var names []string
	defaults := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\| (?:`([^`]*)`)?").FindAllStringSubmatch(section, -1) {
		names = append(names, row[1])
		defaults[row[1]] = row[2]
	}
	require.ElementsMatch(t, argumentNames("", reflect.TypeFor[Args]()), names)

	args := &Args{}
	args.setDefaults(func(string) string { return "" })
	for name, want := range map[string]any{
		"scoringStrategy": args.ScoringStrategy, "poolConfig.namespace": args.PoolConfig.Namespace, "poolConfig.name": args.PoolConfig.Name,
		"preBindTimeout": args.PreBindTimeout.Duration, "bindTimeout": args.BindTimeout.Duration,
		"breaker.failures": args.Breaker.Failures, "breaker.pause": args.Breaker.Pause.Duration,
		"tenantController.timeout": tenant.DefaultTimeout, "tenantController.retries": tenant.DefaultRetries,
		"tenantController.retryInterval": tenant.DefaultRetryInterval, "tenantController.maxConcurrent": args.TenantController.MaxConcurrent,
	} {
		require.Equal(t, fmt.Sprint(want), defaults[name], name)
	}
}
