package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	"k8s.io/client-go/dynamic"

	"triune.dev/tests/cluster"
	"triune.dev/tests/kms"
)

// vault is an etcd with encrypted content, the plugin with the keys, and the servers that
// use both.
type vault struct {
	plugin *kms.Plugin
	// file is the EncryptionConfiguration of all servers.
	file string
	etcd *clientv3.Client
	// tested is the server under test, reference a kube-apiserver on the same etcd; nil
	// before startReference.
	tested, reference *cluster.Cluster
}

// newVault starts the server under test. content returns the EncryptionConfiguration, which
// servers reload; flags are for all tiers.
func newVault(t *testing.T, content func(*kms.Plugin) string, replicas int, flags ...string) *vault {
	t.Helper()
	v := &vault{}
	var err error
	if v.plugin, err = kms.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.plugin.Close(); err != nil {
			t.Error(err)
		}
	})
	v.file = writeFile(t, "encryption.yaml", content(v.plugin))
	config := swapConfig()
	config.ExternalNATS, config.Replicas = true, replicas
	v.tested = v.launch(t, config, flags...)
	if v.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{v.tested.EtcdURL}, DialTimeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.etcd.Close() })
	return v
}

// startReference starts a kube-apiserver beside the server under test.
func (v *vault) startReference(t *testing.T) {
	t.Helper()
	v.reference = v.launch(t, cluster.Config{Topology: cluster.KubeAPIServer, EtcdURL: v.tested.EtcdURL, PKI: v.tested.PKI})
}

func (v *vault) launch(t *testing.T, config cluster.Config, flags ...string) *cluster.Cluster {
	t.Helper()
	flags = append([]string{"--encryption-provider-config=" + v.file, "--encryption-provider-config-automatic-reload=true"}, flags...)
	config.Flags = map[cluster.Tier][]string{}
	for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
		config.Flags[tier] = flags
	}
	return cluster.Run(t, config)
}

// servers returns the server under test and the reference.
func (v *vault) servers() []*cluster.Cluster { return []*cluster.Cluster{v.tested, v.reference} }

// stored returns the value of a key in etcd and its mod revision.
func (v *vault) stored(t *testing.T, key string) (value []byte, revision int64) {
	t.Helper()
	got, err := v.etcd.Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%s in etcd: %v, %v", key, got, err)
	}
	return got.Kvs[0].Value, got.Kvs[0].ModRevision
}

// keyID returns the ID of the plugin's key that encrypts an object, by the name of the
// provider.
func (v *vault) keyID(t *testing.T, provider, key string) string {
	t.Helper()
	value, _ := v.stored(t, key)
	sealed, ok := bytes.CutPrefix(value, []byte("k8s:enc:kms:v2:"+provider+":"))
	var object kmstypes.EncryptedObject
	if !ok || proto.Unmarshal(sealed, &object) != nil {
		t.Fatalf("etcd has %.60q under %s", value, key)
	}
	return object.KeyID
}

// sealed is a resource that is encrypted, and how it is stored.
type sealed struct {
	schema.GroupVersionResource
	kind string
	// fields returns the fields of an object besides its metadata; nil stands for none.
	fields func(name string) map[string]any
	// under is the directory of its objects in etcd; their values begin with prefix.
	under, prefix string
	cluster       bool // cluster-scoped
}

func (s sealed) key(namespace, name string) string {
	if s.cluster {
		return s.under + name
	}
	return s.under + namespace + "/" + name
}

// object returns an object with a word in an annotation.
func (s sealed) object(name, word string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	if s.fields != nil {
		o.Object = s.fields(name)
	}
	o.SetAPIVersion(s.GroupVersion().String())
	o.SetKind(s.kind)
	o.SetName(name)
	o.SetAnnotations(map[string]string{"vault.triune.dev/word": word})
	return o
}

func (s sealed) client(t *testing.T, c *cluster.Cluster, namespace string) dynamic.ResourceInterface {
	t.Helper()
	resource := dynamic.NewForConfigOrDie(restConfig(t, c)).Resource(s.GroupVersionResource)
	if s.cluster {
		return resource
	}
	return resource.Namespace(namespace)
}

// wordOf returns the word of an object of sealed.object.
func wordOf(o *unstructured.Unstructured) string { return o.GetAnnotations()["vault.triune.dev/word"] }

// localKey returns a provider with one key of 32 bytes.
func localKey(provider, name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s: {keys: [{name: %s, secret: %s}]}", provider, name, base64.StdEncoding.EncodeToString(sum[:]))
}

// kmsKey returns a provider that uses a plugin.
func kmsKey(p *kms.Plugin, name string) string {
	return fmt.Sprintf("kms: {apiVersion: v2, name: %s, endpoint: %q, timeout: 1s}", name, p.Endpoint)
}

// encrypted returns the entry of an EncryptionConfiguration for a resource; the first
// provider encrypts.
func encrypted(resource string, providers ...string) string {
	return "- resources: [" + resource + "]\n  providers:\n  - " + strings.Join(providers, "\n  - ") + "\n"
}

func encryptionConfiguration(entries ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" + strings.Join(entries, "")
}

const sealDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: seals.vault.triune.dev}
spec:
  group: vault.triune.dev
  scope: Namespaced
  names: {plural: seals, singular: seal, kind: Seal}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// replicaURLs returns the addresses of all serving processes.
func replicaURLs(c *cluster.Cluster) (urls []string) {
	for _, tier := range c.ServingTiers() {
		for i := 0; c.Process(tier, i) != nil; i++ {
			urls = append(urls, c.ReplicaURL(tier, i))
		}
	}
	return urls
}

// logFiles returns the logs of all processes of a cluster.
func logFiles(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Dir, "logs", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the logs of %s: %v, %v", c.Config.Topology, files, err)
	}
	return files
}
