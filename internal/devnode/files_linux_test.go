package devnode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func readTar(t *testing.T, in io.Reader) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for reader := tar.NewReader(in); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all[header.Name], err = io.ReadAll(reader)
		require.NoError(t, err)
	}
}

// blob returns the content that a descriptor is about.
func blob(t *testing.T, files map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	content := files["blobs/sha256/"+d.Digest.Encoded()]
	require.Equal(t, d.Digest, digest.FromBytes(content))
	require.Len(t, content, int(d.Size))
	return content
}

func TestImagesHoldTheProgramAndNothingElse(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("the program"), 0o755))
	archive := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, writeImages(archive, program))
	file, err := os.Open(archive)
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // only read from
	files := readTar(t, file)

	var index v1.Index
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	got := map[string][]string{}
	for _, m := range index.Manifests {
		var manifest v1.Manifest
		require.NoError(t, json.Unmarshal(blob(t, files, m), &manifest))
		var image v1.Image
		require.NoError(t, json.Unmarshal(blob(t, files, manifest.Config), &image))
		require.Len(t, manifest.Layers, 1)
		require.Equal(t, []digest.Digest{manifest.Layers[0].Digest}, image.RootFS.DiffIDs)
		layer := readTar(t, bytes.NewReader(blob(t, files, manifest.Layers[0])))
		assert.Equal(t, map[string][]byte{"workload": []byte("the program")}, layer)
		got[m.Annotations[imageName]] = image.Config.Entrypoint
	}
	assert.Equal(t, entrypoints, got)
}

func TestANodesDirectory(t *testing.T) {
	for name, tc := range map[string]struct {
		dir, want string
	}{
		"may be anywhere":                           {"/srv/node", ""},
		"may have a name that begins like another":  {"/var/library/node", ""},
		"must not be hidden by the node's /run":     {"/run/node", "must not lie below /run"},
		"must not be hidden by the node's /var/lib": {"/var/lib/node", "must not lie below /var/lib"},
		"must not be such a directory itself":       {"/var/log", "must not lie below /var/log"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Config{Dir: tc.dir, BinDir: "/srv/bin"}.complete()
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "node-1", config.Name)
		})
	}
}

func TestCleanLeavesOtherDirectoriesAlone(t *testing.T) {
	parent := t.TempDir()
	dir, other := filepath.Join(parent, "node"), filepath.Join(parent, "other")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run"), 0o755))
	require.NoError(t, os.Mkdir(other, 0o755))
	require.NoError(t, Clean(dir))
	assert.NoDirExists(t, dir)
	assert.DirExists(t, other)
	require.NoError(t, Clean(dir), "what is clean is cleaned again")
	assert.NotEqual(t, Cgroup(dir), Cgroup(other))
}
