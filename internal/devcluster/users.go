package devcluster

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// tokenLifetime is far beyond any cluster's: the kubeconfigs of the project's programs are written once.
const tokenLifetime = 7 * 24 * time.Hour

// users are the components that come with a client certificate. None is a superuser, as in a real cluster: kwok plays
// the kubelets and is one of system:nodes, which also is what admission policies have to let through.
var users = map[string]struct{ name, group string }{
	ControllerManager: {"system:kube-controller-manager", ""},
	KubeScheduler:     {"system:kube-scheduler", ""},
	Kwok:              {"system:node:kwok", "system:nodes"},
}

func (c *Cluster) kubeconfigOf(component string) string { return c.path("kubeconfigs", component) }

func (c *Cluster) writeUserKubeconfigs() error {
	for component, user := range users {
		config, err := userConfig(c.server, c.ca, user.name, user.group)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(c.kubeconfigOf(component), user.name, config); err != nil {
			return err
		}
	}
	admin, err := userConfig(c.server, c.ca, adminUser, mastersGroup)
	if err != nil {
		return err
	}
	c.admin = admin
	return writeKubeconfig(c.KubeconfigPath(), adminUser, admin)
}

// writeTokenKubeconfig writes the kubeconfig of one of the project's programs: its service account's token, as it would
// find it in its Pod, and so exactly the permissions of the manifests.
func (c *Cluster) writeTokenKubeconfig(ctx context.Context, component, serviceAccount string) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(tokenLifetime.Seconds())),
	}}
	token, err := c.client.CoreV1().ServiceAccounts(systemNamespace).
		CreateToken(ctx, serviceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token for %s: %w", component, err)
	}
	server := c.server
	if component != Mock {
		if server, err = c.through(component, server); err != nil {
			return err
		}
	}
	return writeKubeconfig(c.kubeconfigOf(component), serviceAccount, tokenConfig(server, c.ca.pem, token.Status.Token))
}

// eventually asks until condition says true, or ctx is over; the error then names what was waited for and the last error.
func eventually(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		var done bool
		done, last = condition(ctx)
		return done && last == nil, nil
	})
	switch {
	case err == nil:
		return nil
	case last != nil:
		return fmt.Errorf("wait for %s: %w (last: %w)", what, context.Cause(ctx), last)
	default:
		return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
	}
}
