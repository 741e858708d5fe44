package devcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

const probeTimeout = 2 * time.Second

// portPlan is every port of the cluster.
type portPlan struct {
	etcd, etcdPeer, apiServer, controllerManager, kubeScheduler, kwok int
	mock, balancer, tenantScheduler                                   int
	webhooks                                                          []webhookPorts
}

type webhookPorts struct{ serving, metrics, health int }

func planPorts(p *ports, replicas int) (portPlan, error) {
	plan := portPlan{webhooks: make([]webhookPorts, replicas)}
	all := []*int{
		&plan.etcd, &plan.etcdPeer, &plan.apiServer, &plan.controllerManager, &plan.kubeScheduler, &plan.kwok,
		&plan.mock, &plan.balancer, &plan.tenantScheduler,
	}
	for i := range plan.webhooks {
		w := &plan.webhooks[i]
		all = append(all, &w.serving, &w.metrics, &w.health)
	}
	for _, port := range all {
		var err error
		if *port, err = p.free(); err != nil {
			return plan, err
		}
	}
	return plan, nil
}

func (c *Cluster) startStore(ctx context.Context) error {
	if err := c.run(ctx, c.etcd()); err != nil {
		return err
	}
	return c.run(ctx, c.apiServer())
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	var components []component
	for name, component := range map[string]func() component{
		ControllerManager: c.controllerManager, KubeScheduler: c.kubeScheduler, Kwok: c.kwok,
	} {
		if c.config.with(name) {
			components = append(components, component())
		}
	}
	return errors.Join(c.run(ctx, components...), c.keepLeases(ctx))
}

// controlplane is a component that is a subcommand of the multi-call binary.
func (c *Cluster) controlplane(name, readyURL string, args ...string) component {
	return component{
		name: name, path: c.binary("controlplane"), args: append([]string{name}, args...), ready: c.probe(readyURL),
	}
}

func (c *Cluster) etcd() component {
	client, peer := "http://"+loopback(c.port.etcd), "http://"+loopback(c.port.etcdPeer)
	etcd := c.controlplane(Etcd, client+"/readyz",
		"--name=devcluster",
		"--data-dir="+c.path("data", "etcd"),
		"--listen-client-urls="+client,
		"--advertise-client-urls="+client,
		"--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer,
		"--initial-cluster=devcluster="+peer,
		// The data survives the death of etcd, only not that of the machine, and goes with the cluster anyway.
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
	etcd.afterRestart = c.resyncKwok
	return etcd
}

func (c *Cluster) apiServer() component {
	args := []string{
		"--etcd-servers=http://" + loopback(c.port.etcd),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.port.apiServer),
		"--endpoint-reconciler-type=none", // Endpoints may not hold a loopback address.
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC",
		"--client-ca-file=" + c.path("certs", "ca.crt"),
		"--tls-cert-file=" + c.path("certs", "tls.crt"),
		"--tls-private-key-file=" + c.path("certs", "tls.key"),
		"--requestheader-client-ca-file=" + c.path("certs", "ca.crt"), // without it the schedulers' logs fill with complaints
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("certs", "sa.key"),
		"--service-account-signing-key-file=" + c.path("certs", "sa.key"),
		"--allow-privileged=true",
		"--profiling=false",
	}
	if c.config.AuditLog {
		args = append(args,
			"--audit-policy-file="+c.path("config", "audit-policy.yaml"),
			"--audit-log-path="+c.AuditLogPath(),
			"--audit-log-format=json",
			"--audit-log-mode=blocking", // a test reads it right after the request
			"--audit-log-maxsize=10240",
		)
	}
	server := c.controlplane(APIServer, c.server+"/readyz", append(args, c.config.APIServerArgs...)...)
	if c.config.APIServerBinary != "" {
		server.path, server.args = c.config.APIServerBinary, server.args[1:] // without the subcommand
	}
	server.afterRestart = c.resyncKwok
	return server
}

func (c *Cluster) controllerManager() component {
	args := append(c.servedBy(ControllerManager, c.port.controllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.path("certs", "sa.key"),
		"--root-ca-file="+c.path("certs", "ca.crt"),
		"--allocate-node-cidrs=false",
		"--kube-api-qps=1000", "--kube-api-burst=2000", // a burst of pods is the test's, not ours to slow down
	)
	return c.controlplane(ControllerManager, "https://"+loopback(c.port.controllerManager)+"/healthz",
		append(args, c.config.ControllerManagerArgs...)...)
}

func (c *Cluster) kubeScheduler() component {
	args := append(c.servedBy(KubeScheduler, c.port.kubeScheduler), "--kube-api-qps=1000", "--kube-api-burst=2000")
	return c.controlplane(KubeScheduler, "https://"+loopback(c.port.kubeScheduler)+"/readyz",
		append(args, c.config.KubeSchedulerArgs...)...)
}

// servedBy are the flags common to the programs that use component-base's secure serving. No leader election: there is
// one of each, and after a kill the successor would wait for the dead one's lease.
func (c *Cluster) servedBy(name string, port int) []string {
	kubeconfig := c.kubeconfigOf(name)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + c.path("certs", "tls.crt"),
		"--tls-private-key-file=" + c.path("certs", "tls.key"),
		"--leader-elect=false",
		"--profiling=false",
	}
}

func (c *Cluster) kwok() component {
	address := loopback(c.port.kwok)
	k := c.controlplane(Kwok, "http://"+address+"/healthz",
		"--kubeconfig="+c.kubeconfigOf(Kwok),
		"--config="+c.path("config", "kwok.yaml"),
		"--manage-all-nodes=true",
		"--node-ip=127.0.0.1",
		"--node-lease-duration-seconds=0", // see keepLeases
		"--cidr=10.244.0.0/16",
		"--server-address="+address,
	)
	k.env = []string{"KWOK_WORKDIR=" + c.path("data", "kwok")} // or it reads ~/.kwok/kwok.yaml as well
	return k
}

// resyncKwok has kwok begin anew after its API server was away. It retries a write only where the connection was refused
// and never a failed list of a node's pods, so what failed in between would stay as it was; a new kwok goes by what is
// there.
func (c *Cluster) resyncKwok() {
	if p, err := c.process(Kwok); err == nil {
		_ = p.kill() // not running: it begins anew anyway
	}
}

// unreadyError is an answer to a probe that is not 200.
type unreadyError struct{ url, status, body string }

func (e *unreadyError) Error() string { return e.url + ": " + e.status + " " + e.body }

// probe asks a URL for 200, trusting the cluster's CA and nobody else.
func (c *Cluster) probe(url string) func(context.Context) error {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca.cert)
	// No keep-alive: a connection to a component's dead predecessor must not decide about the successor.
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // only read from
		if response.StatusCode == http.StatusOK {
			return nil
		}
		body, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return &unreadyError{url: url, status: response.Status, body: string(body)}
	}
}

// auditPolicy logs what a test of the writes to pods needs in full.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: RequestResponse
    resources:
      - group: ""
        resources: [pods, pods/binding, pods/status]
  - level: Metadata
`

func (c *Cluster) writeAuditPolicy() error {
	return os.WriteFile(c.path("config", "audit-policy.yaml"), []byte(auditPolicy), 0o644)
}
