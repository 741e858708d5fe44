package devnode

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const runtimeTimeout = 5 * time.Second

// withRuntime asks containerd something. The connection is not kept: containerd dies in tests, and its socket moves with
// the node's first process.
func (n *Node) withRuntime(ctx context.Context, ask func(context.Context, cri.RuntimeServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+n.path(containerdSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close() //nolint:errcheck // only asked
	return ask(ctx, cri.NewRuntimeServiceClient(connection))
}

func (n *Node) runtimeReady(ctx context.Context) error {
	return n.withRuntime(ctx, func(ctx context.Context, client cri.RuntimeServiceClient) error {
		answer, err := client.Status(ctx, &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range answer.GetStatus().GetConditions() {
			if condition.GetType() == "RuntimeReady" && !condition.GetStatus() {
				return fmt.Errorf("runtime: %s", condition.GetMessage())
			}
		}
		return nil
	})
}

// Running returns the UIDs of the pods that have a running container, as the container runtime knows it: whatever the API
// server or the kubelet say.
func (n *Node) Running(ctx context.Context) (map[types.UID]bool, error) {
	running := map[types.UID]bool{}
	err := n.withRuntime(ctx, func(ctx context.Context, client cri.RuntimeServiceClient) error {
		answer, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		}})
		for _, container := range answer.GetContainers() {
			running[types.UID(container.GetLabels()["io.kubernetes.pod.uid"])] = true
		}
		return err
	})
	return running, err
}

// Sandboxes is the number of pods that still have a sandbox, which holds their networks. The kubelet removes those that
// were stopped only after a while.
func (n *Node) Sandboxes(ctx context.Context) (int, error) {
	count := 0
	err := n.withRuntime(ctx, func(ctx context.Context, client cri.RuntimeServiceClient) error {
		answer, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
			State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		}})
		count = len(answer.GetItems())
		return err
	})
	return count, err
}
