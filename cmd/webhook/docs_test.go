package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// documented are the rows of the flags' table in the documents: flag and default.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/TENANT_CLIENT_CONFIG.md")
	require.NoError(t, err)
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| (?:`[A-Z_]+`)? ?\\| (?:`([^`]*)`)? ?\\|").FindAllSubmatch(text, -1) {
		require.NotContains(t, rows, string(row[1]), "documented twice")
		rows[string(row[1])] = string(row[2])
	}
	return rows
}

func TestEveryFlagIsDocumentedWithItsDefault(t *testing.T) {
	t.Setenv("TENANT_CONTROLLER_URL", "")
	rows := documented(t)
	newOptions().flags.VisitAll(func(flag *pflag.Flag) {
		shown, ok := rows[flag.Name]
		require.True(t, ok, "--%s is not documented", flag.Name)
		want := flag.DefValue
		if want == "0s" || want == "0" || want == "false" {
			want = "" // as --help has it
		}
		require.Equal(t, want, shown, "--%s", flag.Name)
		delete(rows, flag.Name)
	})
	require.Empty(t, rows, "documented, but there are no such flags")
}
