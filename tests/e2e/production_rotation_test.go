package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/cluster"
)

// checkRotation rotates the key of Secrets as Kubernetes documents it: new writes use the new
// key, all Secrets are written again, and then the old key is removed.
func checkRotation(t *testing.T, c *cluster.Cluster, p *production) {
	ctx, client, namespace := t.Context(), clientset(t, c), newNamespace(t, c)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"word": "before"}}
	if _, err := client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reload(t, c, p.file("encryption.yaml"), encryption("two", "one"))
	all, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) == 0 {
		t.Fatalf("%d Secrets, %v", len(all.Items), err)
	}
	for _, secret := range all.Items {
		if _, err := client.CoreV1().Secrets(secret.Namespace).Update(ctx, &secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reload(t, c, p.file("encryption.yaml"), encryption("two"))
	for _, version := range []string{"", "0"} { // from etcd, and from memory
		again, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil || len(again.Items) != len(all.Items) {
			t.Fatalf("without the old key: %d Secrets, %v; %d with it", len(again.Items), err, len(all.Items))
		}
	}
	got, err := client.CoreV1().Secrets(namespace).Get(ctx, "sealed", metav1.GetOptions{})
	if err != nil || string(got.Data["word"]) != "before" {
		t.Errorf("what was written with the old key: %q, %v", got.Data["word"], err)
	}
}

// reloads matches the number of successful reloads of the encryption configuration.
var reloads = regexp.MustCompile(`(?m)^apiserver_encryption_config_controller_automatic_reloads_total\{.*status="success"\} (\S+)`)

// reload replaces the encryption configuration and waits until every replica has read it.
func reload(t *testing.T, c *cluster.Cluster, file, content string) {
	t.Helper()
	count := func(url string) string {
		config := restConfig(t, c)
		config.Host = url
		if match := reloads.FindStringSubmatch(raw(t, config, "/metrics")); match != nil {
			return match[1]
		}
		return "0"
	}
	before := map[string]string{}
	for _, tier := range c.ServingTiers() {
		for i := 0; c.Process(tier, i) != nil; i++ {
			url := c.ReplicaURL(tier, i)
			before[url] = count(url)
		}
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	// kube-apiserver looks once a minute.
	eventually(t, 90*time.Second, func(context.Context) error {
		for url, n := range before {
			if count(url) == n {
				return fmt.Errorf("%s has not read the new configuration", url)
			}
		}
		return nil
	})
}
