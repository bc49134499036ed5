package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"

	"triune.dev/tests/cluster"
)

// readManifests decodes all documents below the manifests directory.
func readManifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	slices.Sort(files)
	var objects []*unstructured.Unstructured
	for _, file := range files {
		objects = append(objects, decodeFile(t, file)...)
	}
	return objects
}

func decodeFile(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

func newMapper(t *testing.T, c *cluster.Cluster) meta.RESTMapper {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(restConfig(t, c)))
	if err != nil {
		t.Fatal(err)
	}
	return restmapper.NewDiscoveryRESTMapper(groups)
}

// expectAsWritten checks that every object has all fields of its manifest, unchanged; the
// server may add fields, and normalize quantities.
func expectAsWritten(t *testing.T, c *cluster.Cluster, objects []*unstructured.Unstructured) {
	t.Helper()
	each(t, c, objects, func(want *unstructured.Unstructured, get func(context.Context) (*unstructured.Unstructured, error)) {
		got, err := get(t.Context())
		if err != nil {
			t.Errorf("get %s: %v", objectID(want), err)
			return
		}
		for _, problem := range missing(want.Object, got.Object, "") {
			t.Errorf("%s: %s", objectID(want), problem)
		}
		if got.GetUID() == "" || got.GetResourceVersion() == "" || got.GetCreationTimestamp() == (metav1.Time{}) {
			t.Errorf("%s: uid, resourceVersion or creationTimestamp is not set: %v", objectID(want), got.Object["metadata"])
		}
	})
}

// missing lists the parts of want that got lacks. Lists must have the same order and
// length.
func missing(want, got any, path string) []string {
	switch want := want.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok {
			if len(want) == 0 && got == nil {
				return nil // an empty struct may be left out
			}
			return []string{fmt.Sprintf("%s is %v, want an object", path, got)}
		}
		var out []string
		for name, value := range want {
			out = append(out, missing(value, have[name], path+"."+name)...)
		}
		return out
	case []any:
		have, _ := got.([]any)
		if len(have) != len(want) {
			return []string{fmt.Sprintf("%s has %d items, want %d", path, len(have), len(want))}
		}
		var out []string
		for i := range want {
			out = append(out, missing(want[i], have[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return out
	default:
		if equality.Semantic.DeepEqual(want, got) || equalQuantities(want, got) || isZero(want) && got == nil {
			return nil
		}
		return []string{fmt.Sprintf("%s is %v, want %v", path, got, want)}
	}
}

func isZero(v any) bool { return v == nil || v == "" || v == int64(0) || v == false }

func equalQuantities(a, b any) bool {
	x, errX := resource.ParseQuantity(fmt.Sprint(a))
	y, errY := resource.ParseQuantity(fmt.Sprint(b))
	return errX == nil && errY == nil && x.Cmp(y) == 0
}

// expectGone waits until no object is left. If no namespace controller runs, it finalizes
// namespaces itself.
func expectGone(t *testing.T, c *cluster.Cluster, objects []*unstructured.Unstructured) {
	t.Helper()
	each(t, c, objects, func(want *unstructured.Unstructured, get func(context.Context) (*unstructured.Unstructured, error)) {
		eventually(t, patience, func(ctx context.Context) error {
			got, err := get(ctx)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if want.GetKind() == "Namespace" {
				return finalize(ctx, t, c, got)
			}
			return fmt.Errorf("%s is still there, with finalizers %v", objectID(want), got.GetFinalizers())
		})
	})
}

func finalize(ctx context.Context, t *testing.T, c *cluster.Cluster, o *unstructured.Unstructured) error {
	var ns corev1.Namespace
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &ns); err != nil {
		return err
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		return fmt.Errorf("namespace %s is %s", ns.Name, ns.Status.Phase)
	}
	ns.Spec.Finalizers = nil
	_, err := clientset(t, c).CoreV1().Namespaces().Finalize(ctx, &ns, metav1.UpdateOptions{})
	if err == nil {
		return fmt.Errorf("namespace %s was finalized just now", ns.Name)
	}
	return err
}
