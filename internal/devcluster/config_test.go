package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

func TestPortsAreFreeAndHandedOutOnce(t *testing.T) {
	one, err := newPorts()
	require.NoError(t, err)
	other, err := newPorts()
	require.NoError(t, err)
	seen := map[int]bool{}
	for range 100 {
		for _, p := range []*ports{one, other} {
			port, err := p.free()
			require.NoError(t, err)
			require.False(t, seen[port], "port %d twice", port)
			seen[port] = true
		}
	}
	require.NoError(t, one.close())
	require.NoError(t, other.close())
}

func TestAPortInUseIsNotFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // a test's listener
	require.False(t, listenable(l.Addr().(*net.TCPAddr).Port))
}

func TestAKubeconfigIdentifiesItsUserToTheClustersServerOnly(t *testing.T) {
	ca, err := newAuthority()
	require.NoError(t, err)
	config, err := userConfig("https://127.0.0.1:6443", ca, "jane", "devs", "ops")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, writeKubeconfig(path, "jane", config))

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	read, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:6443", read.Host)
	require.Equal(t, ca.pem, read.CAData)

	block, _ := pem.Decode(read.CertData)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.Equal(t, "jane", cert.Subject.CommonName)
	require.ElementsMatch(t, []string{"devs", "ops"}, cert.Subject.Organization)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
}

func TestATokenKubeconfigCarriesTheToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, writeKubeconfig(path, "tenant-webhook", tokenConfig("https://127.0.0.1:1", []byte("ca"), "secret")))
	read, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.Equal(t, "secret", read.AuthInfos["tenant-webhook"].Token)
}

func TestTheServingCertificateIsGoodForLoopback(t *testing.T) {
	ca, err := newAuthority()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, ca.writeCerts(dir))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		require.NoError(t, pair.Leaf.VerifyHostname(host))
	}
	require.Error(t, pair.Leaf.VerifyHostname("example.com"))
}

func TestTheZeroConfigIsTheDefaultCluster(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "controlplane"), nil, 0o755))
	config, err := Config{BinDir: bin}.complete()
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(config.Dir))
	require.Equal(t, ".devcluster", filepath.Base(config.Dir))
	require.Len(t, config.Nodes, 4)
	require.Equal(t, []string{"tenant-a"}, config.TenantNamespaces)
	require.Equal(t, 2, config.WebhookReplicas)
}

func TestAMissingBinaryIsNamedBeforeAnythingStarts(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "controlplane"), nil, 0o755))
	_, err := Start(t.Context(), Config{
		BinDir: bin, Dir: filepath.Join(bin, "c"), Manifests: fstest.MapFS{}, Without: []string{Mock},
	})
	require.ErrorContains(t, err, "tenant-webhook: build it first")
	require.ErrorContains(t, err, "tenant-scheduler: build it first")
	require.NotContains(t, err.Error(), "tenant-controller-mock")
	require.NoDirExists(t, filepath.Join(bin, "c"))
}

func TestTwoClustersDoNotShareADirectory(t *testing.T) {
	dir := t.TempDir()
	first, second := &Cluster{config: Config{Dir: dir}}, &Cluster{config: Config{Dir: dir}}
	require.NoError(t, first.claimDir())
	require.ErrorContains(t, second.claimDir(), "another cluster runs in")
	require.NoError(t, first.lock.Close())
	require.NoError(t, second.claimDir())
	require.NoError(t, second.lock.Close())
}
