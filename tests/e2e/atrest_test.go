package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"triune.dev/tests/cluster"
	"triune.dev/tests/kms"
)

// everyProvider returns a configuration that uses each provider for one resource or more,
// and covers each tier.
func everyProvider(p *kms.Plugin) string {
	const plain = "identity: {}"
	return encryptionConfiguration(
		encrypted("secrets", kmsKey(p, "vault"), plain),
		encrypted("configmaps", localKey("aescbc", "one"), plain),
		encrypted("podtemplates", localKey("aesgcm", "one"), plain),
		encrypted("limitranges", localKey("secretbox", "one"), plain),
		encrypted("resourcequotas", plain),
		encrypted("apiservices.apiregistration.k8s.io", localKey("aesgcm", "two"), plain),
		encrypted("seals.vault.triune.dev", kmsKey(p, "sealer"), plain),
	)
}

var (
	core         = schema.GroupVersion{Version: "v1"}
	sealedSecret = sealed{GroupVersionResource: core.WithResource("secrets"), kind: "Secret", under: "/registry/secrets/", prefix: "k8s:enc:kms:v2:vault:"}
	sealedCustom = sealed{
		GroupVersionResource: schema.GroupVersionResource{Group: "vault.triune.dev", Version: "v1", Resource: "seals"}, kind: "Seal",
		under: "/registry/vault.triune.dev/seals/", prefix: "k8s:enc:kms:v2:sealer:",
	}
)

// sealedByAll are the resources of everyProvider.
var sealedByAll = []sealed{
	sealedSecret, sealedCustom,
	{GroupVersionResource: core.WithResource("configmaps"), kind: "ConfigMap", under: "/registry/configmaps/", prefix: "k8s:enc:aescbc:v1:one:"},
	{
		GroupVersionResource: core.WithResource("podtemplates"), kind: "PodTemplate", under: "/registry/podtemplates/", prefix: "k8s:enc:aesgcm:v1:one:",
		fields: func(string) map[string]any {
			return map[string]any{"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "a"}},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "c"}}},
			}}
		},
	},
	{GroupVersionResource: core.WithResource("limitranges"), kind: "LimitRange", under: "/registry/limitranges/", prefix: "k8s:enc:secretbox:v1:one:"},
	{GroupVersionResource: core.WithResource("resourcequotas"), kind: "ResourceQuota", under: "/registry/resourcequotas/", prefix: "k8s\x00"},
	{
		GroupVersionResource: schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, kind: "APIService",
		under: "/registry/apiregistration.k8s.io/apiservices/", prefix: "k8s:enc:aesgcm:v1:two:", cluster: true,
		fields: func(name string) map[string]any {
			return map[string]any{"spec": map[string]any{
				"group": name[len("v1."):], "version": "v1", "groupPriorityMinimum": int64(10), "versionPriority": int64(10),
				"service": map[string]any{"namespace": "default", "name": "nobody"},
			}}
		},
	},
}

// TestEncryptionAtRest checks that the server under test and a kube-apiserver on the same
// etcd, with the same configuration and plugin, read each other's writes, with every
// provider and in every tier.
func TestEncryptionAtRest(t *testing.T) {
	needs(t)
	dir := t.TempDir()
	v := newVault(t, everyProvider, 1, verboseFlags(t, dir)...)
	v.startReference(t)
	v.defineSeals(t)
	namespace := newNamespace(t, v.tested)
	t.Run("quiet", func(t *testing.T) { v.checkNoLeaks(t, namespace, dir) })
	for _, s := range sealedByAll {
		t.Run(s.Resource, func(t *testing.T) {
			for i, writer := range v.servers() {
				v.exchange(t, s, namespace, writer, v.servers()[1-i])
			}
		})
	}
	// One seed encrypts many objects, so the plugin is rarely asked.
	if n, most := v.plugin.Decrypted(), 20; n > most {
		t.Errorf("the plugin was asked to decrypt %d times, want at most %d", n, most)
	}
	for _, c := range v.servers() {
		for _, url := range replicaURLs(c) {
			if code, body := send(t, restConfig(t, c), "GET", url+"/readyz/kms-providers", ""); code != 200 {
				t.Errorf("%s/readyz/kms-providers: %d %s", url, code, body)
			}
		}
	}
}

// defineSeals creates the custom resource that everyProvider encrypts, and waits until all
// servers serve it.
func (v *vault) defineSeals(t *testing.T) {
	t.Helper()
	newKubectl(t, v.tested, "default").Stdin(sealDefinition).Run("apply", "-f", "-")
	for _, c := range []*cluster.Cluster{v.tested, v.reference} {
		if c == nil {
			continue
		}
		for _, url := range replicaURLs(c) {
			eventually(t, patience, func(context.Context) error {
				if code, body := send(t, restConfig(t, c), "GET", url+"/apis/vault.triune.dev/v1/seals", ""); code != 200 {
					return fmt.Errorf("%s: %d %s", url, code, body)
				}
				return nil
			})
		}
	}
}

// exchange writes an object through each of two servers in turn, and checks that both read
// and watch the same, and that it is stored as it should be.
func (v *vault) exchange(t *testing.T, s sealed, namespace string, writer, reader *cluster.Cluster) {
	t.Helper()
	ctx := t.Context()
	name := "v1." + string(writer.Config.Topology) + ".vault.triune.dev"
	const word = "nobody-may-read-this"
	watches := map[*cluster.Cluster]watch.Interface{}
	for _, c := range []*cluster.Cluster{writer, reader} {
		w, err := s.client(t, c, namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches[c] = w
	}
	expectEvent := func(c *cluster.Cluster, event watch.EventType, word string) {
		t.Helper()
		for got := range watches[c].ResultChan() { // ignore writes of controllers
			o, ok := got.Object.(*unstructured.Unstructured)
			if ok && got.Type == event && wordOf(o) == word {
				return
			}
			if !ok || got.Type == watch.Deleted {
				t.Fatalf("%s sends %v, want %s of %s", c.Config.Topology, got, event, word)
			}
		}
		t.Fatalf("%s ends the watch", c.Config.Topology)
	}
	check := func(event watch.EventType, word string) {
		t.Helper()
		value, _ := v.stored(t, s.key(namespace, name))
		if !bytes.HasPrefix(value, []byte(s.prefix)) {
			t.Errorf("etcd has %.60q, want it to begin with %q", value, s.prefix)
		}
		if plain := s.prefix == "k8s\x00"; bytes.Contains(value, []byte(word)) != plain {
			t.Errorf("etcd has it in the clear: %v, want %v", !plain, plain)
		}
		for _, c := range []*cluster.Cluster{writer, reader} {
			expectEvent(c, event, word)
			resource := s.client(t, c, namespace)
			got, err := resource.Get(ctx, name, metav1.GetOptions{})
			if err != nil || wordOf(got) != word {
				t.Fatalf("%s: %v, %v, want the word %s", c.Config.Topology, got, err, word)
			}
			for _, version := range []string{"", "0"} { // the event has arrived, so caches have the object
				list, err := resource.List(ctx, metav1.ListOptions{ResourceVersion: version, FieldSelector: "metadata.name=" + name})
				if err != nil || len(list.Items) != 1 || wordOf(&list.Items[0]) != word {
					t.Fatalf("%s: list %v, %v", c.Config.Topology, list, err)
				}
			}
		}
	}
	if _, err := s.client(t, writer, namespace).Create(ctx, s.object(name, word+"-1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check(watch.Added, word+"-1")
	for i, c := range []*cluster.Cluster{reader, writer} {
		now := fmt.Sprintf("%s-%d", word, i+2)
		setWord(t, s.client(t, c, namespace), name, now)
		check(watch.Modified, now)
	}
	if err := s.client(t, reader, namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*cluster.Cluster{writer, reader} {
		expectEvent(c, watch.Deleted, word+"-3")
	}
}

// setWord patches an object.
func setWord(t *testing.T, resource dynamic.ResourceInterface, name, word string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"vault.triune.dev/word": %q}}}`, word)
	if _, err := resource.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
