package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
	"triune.dev/tests/hooks"
)

// tenant is a user who may write ConfigMaps of a namespace and belongs to no group that is
// exempt from limits.
type tenant struct {
	token, configMaps string
}

func newTenant(t *testing.T, c *cluster.Cluster, namespace string) tenant {
	t.Helper()
	k := newKubectl(t, c, namespace)
	who := newTokenUser(t, c, k)
	k.Run("create", "role", "tenant", "--verb=*", "--resource=configmaps")
	k.Run("create", "rolebinding", "tenant", "--role=tenant", "--user="+who.name)
	x := tenant{who.token, "/api/v1/namespaces/" + namespace + "/configmaps"}
	// Authorizers may learn of the binding a little later.
	eventually(t, patience, func(context.Context) error {
		if code, answer := asToken(t, c, x.token, http.MethodGet, x.configMaps, ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, answer)
		}
		return nil
	})
	return x
}

// works reads and writes without any retries, unlike client-go.
func (x tenant) works(t *testing.T, c *cluster.Cluster, times int) {
	t.Helper()
	for i := range times {
		name := fmt.Sprintf("%s-%d", slug(t), i)
		body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q}}`, name)
		if code, answer := asToken(t, c, x.token, http.MethodPost, x.configMaps, body); code != http.StatusCreated {
			t.Errorf("create: %d %s", code, answer)
		}
		if code, answer := asToken(t, c, x.token, http.MethodGet, x.configMaps+"/"+name, ""); code != http.StatusOK {
			t.Errorf("get: %d %s", code, answer)
		}
	}
}

// TestStrangersKeepNobodyFromWorking checks that clients without credentials cannot affect
// the connections of others.
func TestStrangersKeepNobodyFromWorking(t *testing.T) {
	c := server(t)
	namespace := newNamespace(t, c)
	somebody := newTenant(t, c, namespace)
	anonymous := rest.AnonymousClientConfig(restConfig(t, c))

	t.Run("bodies that never come", func(t *testing.T) {
		address, err := url.Parse(c.URL)
		if err != nil {
			t.Fatal(err)
		}
		config, err := rest.TLSConfigFor(anonymous)
		if err != nil {
			t.Fatal(err)
		}
		config.NextProtos = []string{"http/1.1"}
		for range 700 * *replicas {
			conn, err := tls.Dial("tcp", address.Host, config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
		}
		somebody.works(t, c, 200)
	})
	t.Run("answers that end a connection", func(t *testing.T) {
		// Over HTTP/2 a server closes the connections of such clients at once, which slows
		// them down.
		config := rest.CopyConfig(anonymous)
		config.NextProtos = []string{"http/1.1"}
		stranger, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var answered atomic.Int64
		for range 16 {
			wg.Go(func() {
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/v1/namespaces/default/pods", nil)
					if err != nil {
						t.Error(err)
						return
					}
					// The request or its connection may be refused.
					if res, err := stranger.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
						answered.Add(1)
					}
				}
			})
		}
		somebody.works(t, c, 200)
		stop()
		wg.Wait()
		if answered.Load() == 0 {
			t.Error("no request without credentials was answered")
		}
	})
}

// webhook is a server on the loopback address.
type webhook struct {
	URL  string
	port int
	// ca is the CA bundle that verifies it, in PEM.
	ca []byte
}

// startWebhook serves until the test ends, under the loopback address and under the name of the
// Service remote of a namespace.
func startWebhook(t *testing.T, namespace string, handler http.Handler) webhook {
	t.Helper()
	certificate, err := hooks.NewCertificate("remote." + namespace + ".svc")
	if err != nil {
		t.Fatal(err)
	}
	s := certificate.Serve(handler)
	t.Cleanup(s.Close)
	return webhook{URL: s.URL, port: s.Listener.Addr().(*net.TCPAddr).Port, ca: certificate.CA}
}

// TestWebhookThatAnswers401 checks that the webhook is called once, and that the client
// gets its answer.
func TestWebhookThatAnswers401(t *testing.T) {
	c := server(t)
	namespace := newNamespace(t, c)
	client := clientset(t, c)
	var asked atomic.Int64
	webhook := startWebhook(t, namespace, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{
			Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: "say who you are",
		}}
		asked.Add(1)
		review.Response, review.Request = answer, nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "webhook.neighbours.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &webhook.URL, CABundle: webhook.ca,
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			FailurePolicy:     &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	create := func(ctx context.Context, name string) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually(t, patience, func(ctx context.Context) error {
		if err := create(ctx, "known"); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("the webhook is not asked yet: %w", err)
		}
		return nil
	})
	for i := range 20 {
		asked.Store(0)
		if err := create(t.Context(), fmt.Sprint("object-", i)); !apierrors.IsUnauthorized(err) {
			t.Errorf("got %v, want the webhook's 401", err)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the webhook was asked %d times", n)
		}
	}
}
