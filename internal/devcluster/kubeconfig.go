package devcluster

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// unlimited switches client-side rate limits off: the API server's own priority and fairness is the limit, as in a test
// of a burst it should be.
const unlimited = -1

// restConfig is how to reach the API server, without saying who one is.
func restConfig(server string, ca []byte) *rest.Config {
	return &rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: unlimited}
}

// userConfig identifies by a client certificate.
func userConfig(server string, a *authority, user string, groups ...string) (*rest.Config, error) {
	cert, key, err := a.client(user, groups...)
	if err != nil {
		return nil, err
	}
	config := restConfig(server, a.pem)
	config.CertData, config.KeyData = cert, key
	return config, nil
}

// tokenConfig identifies by a bearer token.
func tokenConfig(server string, ca []byte, token string) *rest.Config {
	config := restConfig(server, ca)
	config.BearerToken = token
	return config
}

// writeKubeconfig writes a file with all credentials in it, so that it can be copied around.
func writeKubeconfig(path, user string, config *rest.Config) error {
	const cluster = "devcluster"
	file := clientcmdapi.NewConfig()
	file.Clusters[cluster] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[user] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	file.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	file.CurrentContext = cluster
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return nil
}
