package deploy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"triune.dev/tests/deploy/engine"
)

// surviveRenewal gives all containers the files of renewed Secrets while clients read and
// write through all tiers. Every server presents its new certificate without a restart, and
// no request fails.
func (k *kubelet) surviveRenewal(t *testing.T, before map[string]*corev1.Secret, addresses map[string]string) {
	t.Helper()
	servers := map[string]struct {
		workload, secret, port string
		greets                 bool // sends data before TLS begins
	}{
		"aggregator":         {"aggregator", "aggregator", "6443", false},
		"core":               {"core", "core", "6443", false},
		"extensions":         {"extensions", "extensions", "6443", false},
		"etcd":               {"etcd", "etcd-server", "2379", false},
		"NATS":               {"nats", "nats-server", "4222", true},
		"monitoring of NATS": {"nats", "nats-server", "8222", false},
	}
	check := func(secrets map[string]*corev1.Secret) error {
		var errs []error
		for name, s := range servers {
			want, err := serial(secrets["t-triune-"+s.secret].Data["tls.crt"])
			if err != nil {
				return err
			}
			got, err := shown(net.JoinHostPort(addresses["t-triune-"+s.workload], s.port), s.greets)
			if err == nil && got != want {
				err = errors.New("another certificate is shown")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(errs...)
	}
	if err := check(before); err != nil {
		t.Fatalf("before the renewal: %v", err)
	}
	for _, dir := range []string{"aggregator", "core", "extensions", "etcd-server", "nats-server", "front-proxy-core", "etcd-core", "nats-core", "admin"} {
		if a, b := before["t-triune-"+dir], k.r.secrets["t-triune-"+dir]; bytes.Equal(a.Data["tls.key"], b.Data["tls.key"]) || !bytes.Equal(a.Data["ca.crt"], b.Data["ca.crt"]) {
			t.Fatalf("%s has the same key as before, or another authority", dir)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	load := &clients{url: "https://" + addresses["t-triune-aggregator"] + ":6443", admin: before["t-triune-admin"]}
	load.start(ctx, t)
	eventually(t, time.Minute, load.answers)
	for dir, volume := range k.mounted {
		k.write(t, dir, volume)
	}
	// The dynamic certificates of k8s.io/apiserver are checked once a minute, in case a
	// change is missed.
	eventually(t, 3*time.Minute, func() error { return check(k.r.secrets) })
	load.done.Store(0)
	eventually(t, time.Minute, load.answers)
	// The clients now have the renewed certificates.
	fresh := clientWith(t, k.r.secrets["t-triune-admin"], "localhost")
	if err := get(t.Context(), fresh, http.MethodGet, load.url+"/api/v1/namespaces/default", ""); err != nil {
		t.Error(err)
	}
	stop()
	load.wait.Wait()
	for _, err := range load.failed {
		t.Errorf("a request during the renewal: %v", err)
	}
	t.Logf("%d requests", load.total.Load())
}

// surviveRotation replaces all authorities. At the steps that change trusted authorities
// the containers restart, as pods do then; renewed leaf certificates are reloaded. At every
// step all tiers answer the administrator with the certificate and the authorities in the
// Secrets.
func (k *kubelet) surviveRotation(t *testing.T, h host, values string, set []string) {
	t.Helper()
	before := maps.Clone(k.r.secrets)
	for _, step := range []string{"trust", "issue", ""} {
		with := append(slices.Clone(set), "tls.selfSigned.rotation="+step)
		h.apply(t, values, with...)
		r := render(t, values, with...)
		if _, err := h.pkiSecrets(t.Context(), r.jobs["t-triune-pki-hook"].Spec.Template.Spec, t.TempDir()); err != nil {
			t.Fatalf("rotation %q: %v", step, err)
		}
		maps.Copy(k.r.secrets, h.secrets(t))
		for dir, volume := range k.mounted {
			k.write(t, dir, volume)
		}
		if step != "issue" {
			if _, err := engine.Docker(t.Context(), append([]string{"restart", "--time=15"}, k.ids...)...); err != nil {
				t.Fatal(err)
			}
		}
		k.runJob(t, "t-triune-etcd-roles") // it is a client of etcd
		k.runJob(t, "t-triune-test")
	}
	for _, authority := range []string{"ca", "front-proxy-ca", "etcd-ca", "nats-ca"} {
		if a, b := before["t-triune-"+authority], k.r.secrets["t-triune-"+authority]; bytes.Equal(a.Data["tls.crt"], b.Data["tls.crt"]) {
			t.Errorf("%s has not been replaced", authority)
		}
	}
}

// shown returns the serial number of the certificate that a server presents.
func shown(address string, greets bool) (string, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if greets {
		if line, err := bufio.NewReaderSize(conn, 4096).ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
			return "", fmt.Errorf("no INFO but %q: %w", line, err)
		}
	}
	// It requests a certificate that we do not have, but presents its own first.
	var leaf []byte
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
		leaf = raw[0]
		return nil
	}})
	if err := client.Handshake(); leaf == nil {
		return "", fmt.Errorf("no certificate: %w", err)
	}
	return serial(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf}))
}

// clientWith returns a client that presents the certificate of a Secret to a server of that
// name.
func clientWith(t *testing.T, secret *corev1.Secret, name string) *http.Client {
	t.Helper()
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: name, Certificates: []tls.Certificate{pair}},
	}}
}

// clients read and write through all tiers, over long-lived connections and over new ones.
type clients struct {
	url   string
	admin *corev1.Secret
	wait  sync.WaitGroup
	// done counts answers since it was reset, total all of them.
	done, total atomic.Int64

	mu     sync.Mutex
	failed []error
}

// pause is the pause between two requests of a client.
const pause = 20 * time.Millisecond

func (c *clients) start(ctx context.Context, t *testing.T) {
	for _, request := range []struct{ method, path, body string }{
		{http.MethodGet, "/api/v1/namespaces/default", ""},
		{http.MethodGet, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit=1", ""},
		{http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices?limit=1", ""},
		{http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"load-"}}`},
	} {
		for _, lasting := range []bool{true, false} {
			client := clientWith(t, c.admin, "localhost")
			client.Transport.(*http.Transport).DisableKeepAlives = !lasting
			c.wait.Go(func() {
				tick := time.NewTicker(pause)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-tick.C:
					}
					err := get(ctx, client, request.method, c.url+request.path, request.body)
					if ctx.Err() != nil {
						return
					}
					c.done.Add(1)
					c.total.Add(1)
					if err != nil {
						c.mu.Lock()
						c.failed = append(c.failed, err)
						c.mu.Unlock()
					}
				}
			})
		}
	}
}

// answers returns an error unless there have been enough answers since done was reset.
func (c *clients) answers() error {
	if n := c.done.Load(); n < 400 {
		return fmt.Errorf("only %d requests were answered", n)
	}
	return nil
}

func get(ctx context.Context, client *http.Client, method, url, body string) error {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	_, err = fetch(client, request)
	return err
}
