package devnode

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

const (
	containerdSocket   = "/run/containerd/containerd.sock"
	devicePluginSocket = "/run/deviceplugin.sock"
)

//go:embed files/*
var files embed.FS

//go:embed files/rbac.yaml
var rbac []byte

// writeFiles writes configurations, and links the CNI plugins into one directory: they are looked for in one only.
func (n *Node) writeFiles() error {
	for _, dir := range []string{"run", "var-lib/kubelet", "var-log", "etc/cni", "cni-bin"} {
		if err := os.MkdirAll(filepath.Join(n.config.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	values := struct{ CNIBin, CNIConf, Runc, CAFile, MultusKubeconfig string }{
		CNIBin: filepath.Join(n.config.Dir, "cni-bin"), CNIConf: n.file("cni"), Runc: n.tools.runc,
		CAFile: n.file("ca.crt"), MultusKubeconfig: n.file("multus.kubeconfig"),
	}
	for source, target := range map[string]string{
		"containerd.toml": n.file("containerd.toml"), "kubelet.yaml": n.file("kubelet.yaml"), "multus.conf": n.file("cni/00-multus.conf"),
	} {
		if err := render(source, target, values); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
	}
	if err := os.WriteFile(n.file("ca.crt"), n.cluster.CA(), 0o644); err != nil {
		return err
	}
	links := map[string]string{"multus": n.binary("multus")}
	for _, name := range plugins {
		links[name] = filepath.Join(n.tools.cni, name)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(n.config.Dir, "cni-bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func render(source, target string, values any) error {
	t, err := template.New(source).Option("missingkey=error").ParseFS(files, "files/"+source)
	if err != nil {
		return err
	}
	file, err := os.Create(target)
	if err != nil {
		return err
	}
	return errors.Join(t.Execute(file, values), file.Close())
}

// removeSockets removes those of programs that were killed: a client would wait for a server that is not there, and
// what says that the node is ready.
func removeSockets(dir string) error {
	return errors.Join(
		os.RemoveAll(filepath.Join(dir, "run", "ready")),
		os.RemoveAll(filepath.Join(dir, "run", "deviceplugin.sock")),
		os.RemoveAll(filepath.Join(dir, "run", "netns")),
		os.RemoveAll(filepath.Join(dir, "run", "containerd")),
	)
}
