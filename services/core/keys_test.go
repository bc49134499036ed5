package core

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"triune.dev/shared/storage/eventlog"
)

// TestKeysOfCore checks that the key ranges of core, which its role in etcd contains, are
// those of all resources of Kubernetes, including alpha ones and those that are off by
// default, and of the other keys of kube-apiserver. The list of resources is api/discovery
// of Kubernetes.
func TestKeysOfCore(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "api", "discovery", "api*__v*.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d lists of resources, %v", len(files), err)
	}
	want := map[string]bool{"masterleases": true, "peerserverleases": true, "ranges": true}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		of, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{"apiregistration.k8s.io", "apiextensions.k8s.io"}, of.Group) {
			continue // of the other tiers
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "delete") || strings.Contains(r.Name, "/") {
				continue // reviews and the like, of which nothing is stored, and subresources
			}
			key, ok := kubeapiserver.SpecialDefaultResourcePrefixes[schema.GroupResource{Group: of.Group, Resource: r.Name}]
			if !ok {
				key = r.Name
			}
			first, _, _ := strings.Cut(key, "/")
			want[first] = true
		}
	}
	have := map[string]bool{}
	for _, keys := range eventlog.NewRoutes(eventlog.DefaultCluster, "/registry").Ranges(eventlog.Core) {
		have[strings.TrimSuffix(strings.TrimPrefix(keys.Key, "/registry/"), "/")] = true
	}
	for name := range want {
		if !have[name] {
			t.Errorf("%s is missing in builtInResources of shared/storage/eventlog/ranges.go", name)
		}
	}
	for name := range have {
		if !want[name] {
			t.Errorf("%s in builtInResources of shared/storage/eventlog/ranges.go is no resource", name)
		}
	}
}
