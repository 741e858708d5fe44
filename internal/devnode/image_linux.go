package devnode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// imageName is the annotation by which containerd names an imported image.
const imageName = "io.containerd.image.name"

// entrypoints are those of the images, which are made from scratch, of one static program. The kubelet asks for names
// without a registry as docker.io's.
var entrypoints = map[string][]string{
	"docker.io/" + Image:        {"/workload"},
	"docker.io/devnode/pause:1": {"/workload", "pause"},
}

// writeImages writes an archive in the OCI image layout with all images.
func writeImages(archive, program string) error {
	layer, err := programLayer(program)
	if err != nil {
		return err
	}
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	layout := &layout{out: tar.NewWriter(file)}
	return errors.Join(layout.writeAll(layer), layout.out.Close(), file.Close())
}

// programLayer is a file system with nothing but the program.
func programLayer(program string) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "workload", Mode: 0o755, Size: int64(len(content))})
	if err == nil {
		_, err = out.Write(content)
	}
	return layer.Bytes(), errors.Join(err, out.Close())
}

// layout writes an OCI image layout as a tar stream.
type layout struct{ out *tar.Writer }

func (l *layout) writeAll(layer []byte) error {
	layerBlob, err := l.blob(v1.MediaTypeImageLayer, layer)
	if err != nil {
		return err
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, name := range slices.Sorted(maps.Keys(entrypoints)) {
		image := v1.Image{
			Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
			Config:   v1.ImageConfig{Entrypoint: entrypoints[name]},
			RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerBlob.Digest}},
		}
		config, err := l.object(v1.MediaTypeImageConfig, image)
		if err != nil {
			return err
		}
		manifest, err := l.object(v1.MediaTypeImageManifest, v1.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
			Config: config, Layers: []v1.Descriptor{layerBlob},
		})
		if err != nil {
			return err
		}
		manifest.Annotations = map[string]string{imageName: name}
		index.Manifests = append(index.Manifests, manifest)
	}
	text, err := json.Marshal(index)
	if err != nil {
		return err
	}
	version, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	return errors.Join(l.file(v1.ImageIndexFile, text), l.file(v1.ImageLayoutFile, version))
}

// object writes a blob of JSON.
func (l *layout) object(mediaType string, object any) (v1.Descriptor, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return l.blob(mediaType, text)
}

func (l *layout) blob(mediaType string, content []byte) (v1.Descriptor, error) {
	sum := digest.FromBytes(content)
	return v1.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(content))},
		l.file(v1.ImageBlobsDir+"/"+sum.Algorithm().String()+"/"+sum.Encoded(), content)
}

func (l *layout) file(name string, content []byte) error {
	if err := l.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.Copy(l.out, bytes.NewReader(content))
	return err
}
