package deploy

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"sigs.k8s.io/yaml"

	"triune.dev/shared/process/pki"
	"triune.dev/shared/storage/eventlog"
)

// permissions has the subjects that a user may publish and subscribe.
type permissions struct{ Publish, Subscribe []string }

func wantedPermissions() map[string]permissions {
	routes := eventlog.NewRoutes("triune", "/registry")
	all := map[string]permissions{}
	for _, tier := range eventlog.Tiers {
		reader := routes.ReaderPermissions(tier)
		p := permissions{reader.Publish, reader.Subscribe}
		if tier == eventlog.Core {
			relay := routes.RelayPermissions(eventlog.Tiers)
			p.Publish = append(p.Publish, relay.Publish...)
			p.Subscribe = append(p.Subscribe, relay.Subscribe...)
		}
		all["CN=triune-"+string(tier)] = p.sorted()
	}
	return all
}

func (p permissions) sorted() permissions {
	slices.Sort(p.Publish)
	slices.Sort(p.Subscribe)
	return permissions{slices.Compact(p.Publish), slices.Compact(p.Subscribe)}
}

// granted parses a configuration with the real server, with the paths in containers
// replaced by those of local certificates.
func granted(t *testing.T, files map[string]string, main string) (map[string]permissions, *server.Options) {
	t.Helper()
	dir := t.TempDir()
	made, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		text = strings.NewReplacer(
			"/pki/nats/", filepath.Dir(made.NATSCA.CertFile)+"/",
			"/pki/server/tls.crt", made.NATSServer.CertFile, "/pki/server/tls.key", made.NATSServer.KeyFile, "/pki/server/ca.crt", made.NATSCA.CertFile,
		).Replace(text)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("NATS_SERVER_NAME", "nats-0")
	t.Setenv("POD_NAME", "nats-0")
	options, err := server.ProcessConfigFile(filepath.Join(dir, main))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]permissions{}
	for _, user := range options.Users {
		all[user.Username] = permissions{slices.Clone(user.Permissions.Publish.Allow), slices.Clone(user.Permissions.Subscribe.Allow)}.sorted()
	}
	return all, options
}

// checkNATS checks that users may do exactly what the event log needs, that others may do
// nothing, and that a message has room for two objects.
func checkNATS(t *testing.T, got map[string]permissions, options *server.Options) {
	t.Helper()
	if diff := cmp.Diff(wantedPermissions(), got); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
	if !options.TLSMap || options.TLSConfig.ClientAuth != tls.RequireAndVerifyClientCert || !options.JetStream || options.NoAuthUser != "" {
		t.Error("clients are not known by their certificates, or there is no JetStream")
	}
	if least := int32(2*1536<<10 + 64<<10); options.MaxPayload < least {
		t.Errorf("max_payload %d is less than %d", options.MaxPayload, least)
	}
}

func TestComposeNATSConfiguration(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"common.conf", "single.conf", "cluster.conf"} {
		text, err := os.ReadFile(path(t, "deploy", "nats", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for main, routes := range map[string]int{"single.conf": 0, "cluster.conf": 3} {
		t.Run(main, func(t *testing.T) {
			got, options := granted(t, files, main)
			checkNATS(t, got, options)
			if len(options.Routes) != routes {
				t.Errorf("%d routes, want %d", len(options.Routes), routes)
			}
		})
	}
}

func TestChartNATSConfiguration(t *testing.T) {
	for values, routes := range map[string]int{"small": 0, "default": 3} {
		t.Run(values, func(t *testing.T) {
			out := helm(t).must(t, "template", "t", chart(t), "--values", filepath.Join(chart(t), "ci", values+"-values.yaml"), "--show-only=templates/nats.yaml")
			var config struct {
				Kind string
				Data map[string]string
			}
			for document := range strings.SplitSeq(out, "\n---\n") {
				if config.Kind == "ConfigMap" {
					break
				}
				if err := yaml.Unmarshal([]byte(document), &config); err != nil {
					t.Fatal(err)
				}
			}
			got, options := granted(t, config.Data, "nats.conf")
			checkNATS(t, got, options)
			if len(options.Routes) != routes {
				t.Errorf("%d routes, want %d", len(options.Routes), routes)
			}
		})
	}
}

// TestNATSUsers checks that a server with this configuration identifies tiers by their
// certificates, gives them their permissions, and accepts no other client.
func TestNATSUsers(t *testing.T) {
	common, err := os.ReadFile(path(t, "deploy", "nats", "common.conf"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	made, err := pki.Ensure(dir, pki.Options{Clients: []pki.Client{
		{Name: "nats/aggregator", CommonName: "triune-aggregator", Authority: pki.NATSCA},
		{Name: "nats/core", CommonName: "triune-core", Authority: pki.NATSCA},
		{Name: "nats/stranger", CommonName: "stranger", Authority: pki.NATSCA},
		{Name: "other", CommonName: "triune-core"}, // signed by another CA
	}})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("/pki/nats/", filepath.Dir(made.NATSCA.CertFile)+"/", "/data", t.TempDir(),
		"0.0.0.0:4222", "127.0.0.1:-1", "https: \"127.0.0.1:8222\"", "").Replace(string(common))
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NATS_SERVER_NAME", "nats-0")
	options, err := server.ProcessConfigFile(file)
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
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	connect := func(name string) (*nats.Conn, error) {
		return nats.Connect(strings.Replace(s.ClientURL(), "nats://", "tls://", 1), nats.RootCAs(made.NATSCA.CertFile),
			nats.ClientCert(made.Clients[name].CertFile, made.Clients[name].KeyFile), nats.CustomInboxPrefix("_INBOX_triune-"+filepath.Base(name)), nats.MaxReconnects(0))
	}
	for _, name := range []string{"nats/stranger", "other"} {
		if conn, err := connect(name); err == nil {
			conn.Close()
			t.Errorf("%s is let in", name)
		}
	}
	streams := func(name string) jetstream.JetStream {
		conn, err := connect(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(conn.Close)
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	core, aggregator := streams("nats/core"), streams("nats/aggregator")
	for _, stream := range []string{"triune-core", "triune-aggregator"} {
		if _, err := core.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := core.Publish(t.Context(), stream+".event.pods", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	within := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		return f(ctx)
	}
	if err := within(func(ctx context.Context) error { _, err := aggregator.Stream(ctx, "triune-aggregator"); return err }); err != nil {
		t.Errorf("aggregator cannot reach its own stream: %v", err)
	}
	for what, try := range map[string]func(context.Context) error{
		"read the stream of core": func(ctx context.Context) error { _, err := aggregator.Stream(ctx, "triune-core"); return err },
		"consume the stream of core": func(ctx context.Context) error {
			_, err := aggregator.CreateConsumer(ctx, "triune-core", jetstream.ConsumerConfig{})
			return err
		},
		"publish": func(ctx context.Context) error {
			_, err := aggregator.Publish(ctx, "triune-aggregator.event.pods", []byte("x"))
			return err
		},
		"delete its stream": func(ctx context.Context) error { return aggregator.DeleteStream(ctx, "triune-aggregator") },
	} {
		if err := within(try); err == nil {
			t.Errorf("aggregator may %s", what)
		}
	}
}
