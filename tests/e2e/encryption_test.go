package e2e

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"triune.dev/tests/cluster"
)

// TestEncryptedOnItsWay checks that an object that is encrypted in etcd is encrypted in the
// event log, too, and that readers and watchers get it decrypted.
func TestEncryptedOnItsWay(t *testing.T) {
	needs(t)
	full(t)
	config := swapConfig()
	config.ExternalNATS = true
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aesgcm: {keys: [{name: one, secret: %s}]}
  - identity: {}
`, key)), 0o600); err != nil {
		t.Fatal(err)
	}
	flag := []string{"--encryption-provider-config=" + file}
	config.Flags = map[cluster.Tier][]string{}
	for _, tier := range []cluster.Tier{cluster.Tier(cluster.Triune), cluster.Aggregator, cluster.Core, cluster.Extensions} {
		config.Flags[tier] = flag
	}
	c := cluster.Run(t, config)
	rest, err := c.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, ctx := kubernetes.NewForConfigOrDie(rest), t.Context()

	const plain = "nobody-may-read-this"
	secrets := client.CoreV1().Secrets("default")
	events, err := secrets.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=sealed"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"word": plain + "-1"}}
	if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Read etcd before the object is deleted.
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{c.EtcdURL}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	stored, err := etcd.Get(ctx, "/registry/secrets/default/sealed")
	if err != nil || len(stored.Kvs) != 1 {
		t.Fatalf("the secret in etcd: %v, %v", stored, err)
	}
	const sealed = "k8s:enc:aesgcm:v1:one:"
	if v := stored.Kvs[0].Value; !bytes.HasPrefix(v, []byte(sealed)) || bytes.Contains(v, []byte(plain)) {
		t.Fatalf("etcd has %.40q", v)
	}
	patch := []byte(`{"stringData": {"word": "` + plain + `-2"}}`)
	if _, err := secrets.Patch(ctx, "sealed", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := secrets.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || string(list.Items[0].Data["word"]) != plain+"-2" {
		t.Fatalf("the list has %v", list.Items)
	}
	if err := secrets.Delete(ctx, "sealed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		event watch.EventType
		word  string
	}{{watch.Added, plain + "-1"}, {watch.Modified, plain + "-2"}, {watch.Deleted, plain + "-2"}} {
		got := <-events.ResultChan()
		if object, ok := got.Object.(*corev1.Secret); !ok || got.Type != want.event || string(object.Data["word"]) != want.word {
			t.Fatalf("a watcher receives %v, want %s of %s", got, want.event, want.word)
		}
	}

	// Three messages of the event log contain it: its creation, its change with the
	// previous state, and its deletion.
	var messages, about int
	for _, message := range logged(t, c.ReplicaURL(cluster.NATS, 0)) {
		data := message.Data
		messages++
		if bytes.Contains(data, []byte(plain)) {
			t.Errorf("NATS has it in the clear: %.200q", data)
		}
		if bytes.Contains(data, []byte("/registry/secrets/default/sealed")) {
			about++
			if !bytes.Contains(data, []byte(sealed)) {
				t.Errorf("NATS has it neither in the clear nor sealed: %.200q", data)
			}
		}
	}
	if about != 3 {
		t.Errorf("of %d messages of the event log %d are about the secret, want 3", messages, about)
	}
}

// logged returns the messages in the streams of all tiers.
func logged(t *testing.T, url string) (all []*jetstream.RawStreamMsg) {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	streams := js.ListStreams(t.Context())
	for info := range streams.Info() {
		if !strings.HasPrefix(info.Config.Name, "triune-") {
			continue
		}
		stream, err := js.Stream(t.Context(), info.Config.Name)
		if err != nil {
			t.Fatal(err)
		}
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
			message, err := stream.GetMsg(t.Context(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue // replaced by newer progress
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, message)
		}
	}
	if err := streams.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
