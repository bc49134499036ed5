package core

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/storage/etcdembed"
	"triune.dev/shared/testing/polltest"
)

var rewrite = flag.Bool("rewrite", false, "write testdata instead of comparing with it")

// cluster is a running core with an etcd of its own.
type cluster struct {
	server *Server
	config *rest.Config // the administrator's
	client *kubernetes.Clientset
	http   *http.Client
	url    string
	etcd   *clientv3.Client
	stores stores
}

// TestCore starts one core for many tests, since a start takes seconds.
func TestCore(t *testing.T) {
	c := start(t)
	t.Run("readyz waits for namespaces", c.testReadyzWaitsForNamespaces) // first: it needs a new cluster
	t.Run("resources", c.testResources)
	t.Run("discovery equals upstream's", c.testDiscovery)
	t.Run("storage", c.testStorage)
	t.Run("caches", c.testCaches)
	t.Run("selectable fields", c.testSelectableFields)
	t.Run("printed", c.testPrinted)
	t.Run("issuer", c.testIssuer)
	t.Run("bootstrap objects", c.testBootstrapObjects)
	t.Run("unknown paths", c.testUnknownPaths)
}

// start runs a core with the given flags and those that every core needs.
func start(t *testing.T, flags ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	made, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	etcd := startEtcd(t)
	options := parsed(t, append(flags,
		"--etcd-servers="+etcd,
		"--bind-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(port),
		"--advertise-address=192.0.2.1", // RFC 5737; endpoints must not be loopback addresses
		"--tls-cert-file="+made.Serving["core"].CertFile,
		"--tls-private-key-file="+made.Serving["core"].KeyFile,
		"--client-ca-file="+made.ClusterCA.CertFile,
		"--authorization-mode=Node,RBAC",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://issuer.example.com",
		"--service-account-key-file="+made.ServiceAccountPublicKey,
		"--service-account-signing-key-file="+made.ServiceAccountKey,
	)...)
	options.SecureServing.Listener = listener
	c := &cluster{url: "https://" + listener.Addr().String()}
	c.config = &rest.Config{
		Host: c.url, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: made.ClusterCA.CertFile, CertFile: made.Admin.CertFile, KeyFile: made.Admin.KeyFile},
	}
	if c.http, err = rest.HTTPClientFor(c.config); err != nil {
		t.Fatal(err)
	}
	if c.client, err = kubernetes.NewForConfigAndClient(c.config, c.http); err != nil {
		t.Fatal(err)
	}
	if c.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{etcd}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.etcd.Close() })
	c.run(t, options)
	return c
}

// run runs core until the test ends, and checks that it then returns in time.
func (c *cluster) run(t *testing.T, options *Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	completed, err := options.Complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range completed.Validate() {
		t.Error(err)
	}
	// These tests run several cores in a process, which has one registry.
	log, err := completed.EventLog().Open(Tier, metrics.NewKubeRegistry().Registerer())
	if err != nil {
		t.Fatal(err)
	}
	config, err := completed.Config(ctx, Environment{EventLog: &log})
	if err != nil {
		t.Fatal(err)
	}
	c.stores = stores{config.Generic.RESTOptionsGetter, map[schema.GroupResource]storeConfig{}}
	config.Generic.RESTOptionsGetter = c.stores
	if c.server, err = New(config); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run has not returned")
		}
	})
}

// parsed returns the options of a command line.
func parsed(t testing.TB, args ...string) *Options {
	t.Helper()
	if err := utilcompatibility.DefaultComponentGlobalsRegistry.Set(); err != nil {
		t.Fatal(err)
	}
	options := NewOptions()
	var sections cliflag.NamedFlagSets
	options.AddFlags(&sections)
	flags := pflag.NewFlagSet("core", pflag.ContinueOnError)
	for _, section := range sections.FlagSets {
		flags.AddFlagSet(section)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return options
}

// startEtcd starts an etcd that ends with the test, and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = filepath.Join(t.TempDir(), "etcd")
	config.LogLevel, config.LogOutputs = "fatal", []string{os.DevNull}
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 10, 100
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	member, err := etcdembed.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	return "http://" + member.Addrs()[0].String()
}

// get returns the response to a request of the administrator.
func (c *cluster) get(t *testing.T, path string) (code int, header http.Header, body string) {
	t.Helper()
	res, err := c.http.Get(c.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(read)
}

// await waits until ok returns true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, 2*time.Minute, what, ok)
}

// testReadyzWaitsForNamespaces checks that objects can be created in default as soon as
// readyz is green. With kube-apiserver, that may fail.
func (c *cluster) testReadyzWaitsForNamespaces(t *testing.T) {
	await(t, "readyz is green", func() bool {
		code, _, body := c.get(t, "/readyz")
		if code != http.StatusOK && code != http.StatusInternalServerError {
			t.Fatalf("readyz: %d %q", code, body)
		}
		return code == http.StatusOK
	})
	// One attempt, without waiting.
	if _, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("create right after readyz turned green: %v", err)
	}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := c.client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("namespace right after readyz turned green: %v", err)
		}
	}
	// The roles must exist as well, or the first request of a component is forbidden.
	if _, err := c.client.RbacV1().ClusterRoleBindings().Get(t.Context(), "system:kube-scheduler", metav1.GetOptions{}); err != nil {
		t.Errorf("role binding right after readyz turned green: %v", err)
	}
}
