package admission

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	testInDocs   = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	caseInName   = regexp.MustCompile(`\bW[0-9]+\b`)
)

// TestCasesAreWhereTheDocsSay holds docs/cases.md to the tests that are there, and the table to docs/cases.md.
func TestCasesAreWhereTheDocsSay(t *testing.T) {
	docs, err := os.ReadFile("../../docs/cases.md")
	require.NoError(t, err)
	functions := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range testFunction.FindAllSubmatch(source, -1) {
			functions[string(match[1])] = true
		}
		return err
	}))
	for _, match := range testInDocs.FindAllSubmatch(docs, -1) {
		assert.True(t, functions[string(match[1])], "docs/cases.md names a test that does not exist: %s", match[1])
	}
	areas := map[string][]string{}
	for area, rows := range loadRows(t) {
		for _, r := range rows {
			for _, name := range caseInName.FindAllString(r.Name, -1) {
				areas[name] = append(areas[name], area)
			}
		}
	}
	for line := range strings.SplitSeq(string(docs), "\n") {
		name := caseInName.FindString(line)
		_, listed, found := strings.Cut(line, "`TestAdmission` (")
		if !found || !strings.HasPrefix(line, "| W") {
			continue
		}
		listed, _, _ = strings.Cut(listed, ")")
		for area := range strings.SplitSeq(listed, ", ") {
			if area == "life" || strings.HasPrefix(area, "and ") {
				continue
			}
			assert.Contains(t, areas[name], area, "docs/cases.md says that %s is in the table", name)
		}
		delete(areas, name)
	}
	assert.Empty(t, areas, "cases of the table that docs/cases.md does not list there")
}
