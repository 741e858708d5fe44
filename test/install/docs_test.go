package install

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents are all Markdown files of the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == ".git" || name == "bin" || strings.HasPrefix(name, ".devcluster")) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, texts)
	return texts
}

var (
	makeTarget = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*)")
	link       = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	// Paths as prose and commands have them: below a folder that the repository has.
	path = regexp.MustCompile(`(?:^|[\s` + "`" + `(]|\./)((?:cmd|deploy|docs|hack|internal|manifests|mock|pkg|scripts|test|charts)/[A-Za-z0-9_./-]*[A-Za-z0-9_])`)
)

func TestDocumentsNameWhatExists(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	require.NoError(t, err)
	for file, text := range documents(t) {
		t.Run(file, func(t *testing.T) {
			for _, match := range makeTarget.FindAllStringSubmatch(text, -1) {
				require.Regexp(t, `(?m)^`+match[1]+`:`, string(makefile), "make %s", match[1])
			}
			for _, match := range link.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(match[1], "://") {
					require.FileExists(t, existing(filepath.Join(filepath.Dir(file), match[1])), "link to %s", match[1])
				}
			}
			for _, match := range path.FindAllStringSubmatch(text, -1) {
				require.FileExists(t, existing(filepath.Join(repository, match[1])), "path %s", match[1])
			}
		})
	}
}

// existing is a file of a path that exists: the path itself, or one in the directory.
func existing(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "../../go.mod"
	}
	return path
}

var (
	shellBlock = regexp.MustCompile("(?ms)^ *```(?:sh|bash)\n(.*?)^ *```")
	// script is a call of one of ours, with its flags.
	script = regexp.MustCompile(`(scripts/[a-z-]+\.sh)((?: +--[a-z-]+)*)`)
)

// TestCommandsOfTheDocumentsAreUnderstood: shell that parses, scripts with flags that they have, programs that are built.
func TestCommandsOfTheDocumentsAreUnderstood(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	require.NoError(t, err)
	program := regexp.MustCompile(`(?m)^\s*bin/([a-z-]+)`)
	for file, text := range documents(t) {
		t.Run(file, func(t *testing.T) {
			for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
				cmd := exec.CommandContext(t.Context(), "bash", "-n")
				cmd.Stdin = strings.NewReader(block[1])
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s\n%s", block[1], out)
				for _, match := range program.FindAllStringSubmatch(block[1], -1) {
					require.Contains(t, string(makefile), "$(BIN)/"+match[1]+" ")
				}
			}
			for _, call := range script.FindAllStringSubmatch(text, -1) {
				help, err := exec.CommandContext(t.Context(), filepath.Join(repository, call[1]), "--help").CombinedOutput()
				require.NoError(t, err)
				for flag := range strings.FieldsSeq(call[2]) {
					require.Contains(t, string(help), flag, call[0])
				}
			}
		})
	}
}
