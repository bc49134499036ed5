package deploy

import (
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/tests/tools"
)

// TestComposeUpWaits checks that the commands of README.md return without an error once the
// API can be used, although the job has exited by then.
func TestComposeUpWaits(t *testing.T) {
	full(t)
	needEngine(t)
	ctx := t.Context()
	// The machine may have a version before 2, which lacks --wait.
	if _, err := tools.Path(ctx, "docker-compose"); err != nil {
		t.Fatal(err)
	}
	p, dir := composeProject(t, nil, []string{"TRIUNE_BUILD_TARGET=prebuilt", "TRIUNE_BASE_IMAGE=scratch"})
	if _, err := p.Compose(ctx, "up", "-d", "--build", "--wait"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) < 4 {
		t.Errorf("kubectl get namespaces: %v, %v", list, err)
	}
	// The second time, as after a change, the job has already exited.
	if _, err := p.Compose(ctx, "up", "-d", "--wait"); err != nil {
		t.Error(err)
	}
}
