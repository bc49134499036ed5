package deploy

import (
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"sigs.k8s.io/yaml"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// peersPKI makes the certificates of compose's stores, and of a tier that is a client of
// both.
func peersPKI(t *testing.T) *pki.PKI {
	t.Helper()
	made, err := pki.Ensure(t.TempDir(), pki.Options{
		ExtraNames: []string{"etcd-0", "nats-0"},
		Clients: []pki.Client{
			{Name: "etcd/core", CommonName: "triune-core", Authority: pki.EtcdCA},
			{Name: "nats/core", CommonName: "triune-core", Authority: pki.NATSCA},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestEtcdPeers checks that an etcd with compose's settings accepts its members as peers,
// and no other holder of a certificate of the same CA. Peers are not subject to etcd's
// permissions: they can propose anything.
func TestEtcdPeers(t *testing.T) {
	made := peersPKI(t)
	member := startEtcd(t, made)
	members := func(keys pki.Pair) (int, error) {
		pair, err := keys.Load()
		if err != nil {
			t.Fatal(err)
		}
		roots, err := pki.LoadPool(made.EtcdCA.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get(member + "/members")
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	eventually(t, time.Minute, func() error {
		code, err := members(made.EtcdServer)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
	if code, err := members(made.Clients["etcd/core"]); err == nil {
		t.Errorf("a tier's certificate is believed to be a member's: status %d", code)
	}
}

func freePorts(t *testing.T) (ports [3]int) {
	t.Helper()
	for i := range ports {
		port, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = port
	}
	return ports
}

// startEtcd starts a member with compose's settings and returns its peer URL.
func startEtcd(t *testing.T, made *pki.PKI) (url string) {
	t.Helper()
	binary, err := tools.Path(t.Context(), "etcd")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path(t, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Settings map[string]string `json:"x-etcd-environment"`
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	ports := freePorts(t)
	at := func(scheme string, i int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[i]) }
	url = at("https", 0)
	settings := maps.Clone(compose.Settings)
	maps.Copy(settings, map[string]string{
		"ETCD_NAME": "etcd-0", "ETCD_DATA_DIR": t.TempDir(), "ETCD_INITIAL_CLUSTER": "etcd-0=" + url,
		"ETCD_INITIAL_CLUSTER_STATE": "new", "ETCD_INITIAL_ADVERTISE_PEER_URLS": url, "ETCD_LISTEN_PEER_URLS": url,
		"ETCD_LISTEN_CLIENT_URLS": at("https", 1), "ETCD_ADVERTISE_CLIENT_URLS": at("https", 1), "ETCD_LISTEN_METRICS_URLS": at("http", 2),
	})
	etcd := exec.Command(binary)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		etcd.Env = append(etcd.Env, name+"="+strings.ReplaceAll(settings[name], "/pki/etcd/", filepath.Dir(made.EtcdCA.CertFile)+"/"))
	}
	etcd.Stderr = t.Output()
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = etcd.Wait() // it was killed
	})
	return url
}

// TestNATSRoutes checks that servers with compose's cluster configuration find each other,
// and refuse routes with a client's certificate. A server can read and write all streams.
func TestNATSRoutes(t *testing.T) {
	made := peersPKI(t)
	ports := freePorts(t)
	dir := t.TempDir()
	start := func(i int, keys pki.Pair) *server.Server {
		t.Helper()
		name := fmt.Sprintf("nats-%d", i)
		own := filepath.Join(dir, name)
		if err := os.Mkdir(own, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"common.conf", "cluster.conf"} {
			text, err := os.ReadFile(path(t, "deploy", "nats", file))
			if err != nil {
				t.Fatal(err)
			}
			replaced := strings.NewReplacer(
				"/pki/nats/server.crt", keys.CertFile, "/pki/nats/server.key", keys.KeyFile, "/pki/nats/ca.crt", made.NATSCA.CertFile,
				"/data", t.TempDir(), "0.0.0.0:4222", "127.0.0.1:-1", `https: "127.0.0.1:8222"`, "",
				"0.0.0.0:6222", fmt.Sprintf("127.0.0.1:%d", ports[i]),
				"nats-0:6222", fmt.Sprintf("localhost:%d", ports[0]), "nats-1:6222", fmt.Sprintf("localhost:%d", ports[1]), "nats-2:6222", fmt.Sprintf("localhost:%d", ports[2]),
			).Replace(string(text))
			if err := os.WriteFile(filepath.Join(own, file), []byte(replaced), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("NATS_SERVER_NAME", name)
		options, err := server.ProcessConfigFile(filepath.Join(own, "cluster.conf"))
		if err != nil {
			t.Fatal(err)
		}
		options.NoSigs, options.NoLog = true, true
		s, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		return s
	}
	first, second := start(0, made.NATSServer), start(1, made.NATSServer)
	level := func(want int) error {
		for _, s := range []*server.Server{first, second} {
			if got := s.NumRemotes(); got != want {
				return fmt.Errorf("%s has %d servers beside it", s.Name(), got)
			}
		}
		return nil
	}
	eventually(t, time.Minute, func() error { return level(1) })
	rogue := start(2, made.Clients["nats/core"])
	// It retries every second; a server that accepted it would have the route at once.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if rogue.NumRemotes() > 0 {
			t.Fatal("a tier's certificate is believed to be a server's")
		}
		if err := level(1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChartPeersAreNamed checks that members of the chart's etcd accept a name that each of
// their certificates must have anyway, so that the others can connect.
func TestChartPeersAreNamed(t *testing.T) {
	out := helm(t).must(t, "template", "t", chart(t), "--values", filepath.Join(chart(t), "ci", "default-values.yaml"), "--show-only=templates/etcd.yaml")
	var first, allowed string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if members, ok := strings.CutPrefix(line, "- --initial-cluster="); ok {
			_, member, _ := strings.Cut(strings.Split(members, ",")[0], "=")
			peer, err := url.Parse(member)
			if err != nil {
				t.Fatal(err)
			}
			first = peer.Hostname()
		}
		if name, ok := strings.CutPrefix(line, "- --peer-cert-allowed-hostname="); ok {
			allowed = name
		}
	}
	if first == "" || allowed != first {
		t.Errorf("members believe %q, and the first one is %q", allowed, first)
	}
}
