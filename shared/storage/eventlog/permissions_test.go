package eventlog

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"triune.dev/shared/testing/etcdtest"
)

// secured starts NATS with TLS and a user for the relay and for each tier. It returns the
// options to connect as each of them.
func secured(t *testing.T, routes *Routes) (*natsServer, map[string]ConnectOptions) {
	t.Helper()
	dir := t.TempDir()
	config, ca := serverTLS(t, dir)
	s := &natsServer{opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: filepath.Join(dir, "nats"),
		MaxPayload: 4 << 20, NoSigs: true, NoLog: true, TLSConfig: config, TLSTimeout: 5,
	}}
	users := map[string]ConnectOptions{}
	allow := func(name string, p Permissions) {
		permissions := &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: p.Publish},
			Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
		}
		file := filepath.Join(dir, name)
		content := name + ":secret-" + name + "\n"
		if name == string(Extensions) { // with an nkey
			pair, err := nkeys.CreateUser()
			if err != nil {
				t.Fatal(err)
			}
			public, _ := pair.PublicKey()
			seed, _ := pair.Seed()
			content = string(seed)
			s.opts.Nkeys = append(s.opts.Nkeys, &server.NkeyUser{Nkey: public, Permissions: permissions})
		} else {
			s.opts.Users = append(s.opts.Users, &server.User{Username: name, Password: "secret-" + name, Permissions: permissions})
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		users[name] = ConnectOptions{Name: name, CredentialsFile: file, CAFile: ca, Inbox: p.Inbox}
	}
	allow("relay", routes.RelayPermissions(Tiers))
	for _, tier := range Tiers {
		allow(string(tier), routes.ReaderPermissions(tier))
	}
	s.run(t)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	for name, o := range users {
		o.URLs = []string{s.ClientURL()}
		users[name] = o
	}
	return s, users
}

func serverTLS(t *testing.T, dir string) (config *tls.Config, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nats"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca = filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, ca
}

func connectAs(t *testing.T, o ConnectOptions) *nats.Conn {
	t.Helper()
	conn, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	eventually(t, "connected as "+o.Name, conn.IsConnected)
	return conn
}

func TestATierReachesItsOwnStreamAndNoOther(t *testing.T) {
	b := &bench{server: etcdtest.Start(t), routes: NewRoutes("cluster-a", "/registry"), ackTimeout: time.Second}
	b.etcd = b.server.Dial(t)
	var users map[string]ConnectOptions
	b.nats, users = secured(t, b.routes)
	background(t, b.relayBy(t, "a", b.server.Dial(t), connectAs(t, users["relay"]), nil).Run)
	w := newWitness(t, b.etcd, b.routes)
	conn := connectAs(t, users[string(Core)])
	r, sink := b.readBy(t, conn, func(r *Reader) { r.cfg.Patience = hang }) // a busy machine is no stall
	waitSource(t, r, sink, SourceStream)
	start := b.put(t, "secrets/ns/a", "secret of core")
	b.put(t, "example.com/things/ns/a", "of extensions")
	last := b.put(t, "secrets/ns/a", "secret of core")
	sink.until(t, last)
	w.verify(t, sink, b.routes, Core, last)
	if s := r.Status(); s.Source != SourceStream || s.Gaps+s.Stalls != 0 {
		t.Errorf("with a tier's permissions: %+v", s)
	}
	if _, err := b.etcd.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if got, err := since(t, r, "/registry/secrets/", start, last); err != nil || len(got) != 1 {
		t.Errorf("history with a tier's permissions: %v, %v", got, err)
	}
	if err := r.RequestProgress(t.Context()); err != nil {
		t.Error(err)
	}
	sink.until(t, b.put(t, "example.com/things/ns/b", "x"))

	extensions := connectAs(t, users[string(Extensions)])
	js, err := jetstream.New(extensions)
	if err != nil {
		t.Fatal(err)
	}
	core := b.routes.Stream(Core)
	subject := b.routes.Route("/registry/secrets/ns/a").Subject
	denied := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s is allowed", what)
		}
	}
	within := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		denied(what, do(ctx))
	}
	within("a consumer on another stream", func(ctx context.Context) error {
		_, err := js.CreateConsumer(ctx, core, jetstream.ConsumerConfig{FilterSubject: subject})
		return err
	})
	within("an ordered consumer on another stream", func(ctx context.Context) error {
		_, err := js.OrderedConsumer(ctx, core, jetstream.OrderedConsumerConfig{})
		return err
	})
	request := func(subject, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := extensions.RequestWithContext(ctx, subject, []byte(body))
			return err
		}
	}
	within("a message of another stream", request("$JS.API.STREAM.MSG.GET."+core, `{"seq":1}`))
	within("a direct get", request("$JS.API.DIRECT.GET."+core, `{"seq":1}`))
	within("a direct get by subject", request("$JS.API.DIRECT.GET."+core+"."+subject, ""))
	within("purging one's own stream", request("$JS.API.STREAM.PURGE."+b.routes.Stream(Extensions), ""))
	within("deleting one's own stream", request("$JS.API.STREAM.DELETE."+b.routes.Stream(Extensions), ""))
	within("a stream that copies another one", request("$JS.API.STREAM.CREATE.copy", `{"name":"copy","sources":[{"name":"`+core+`"}]}`))
	within("publishing on another stream", func(ctx context.Context) error {
		_, err := js.Publish(ctx, subject, []byte("x"))
		return err
	})
	within("publishing on one's own stream", func(ctx context.Context) error {
		_, err := js.Publish(ctx, b.routes.Route("/registry/example.com/things/a").Subject, []byte("x"))
		return err
	})
	for _, s := range []string{core + ".>", ">", "$JS.>", "_INBOX.>", users[string(Core)].Inbox + ".>", b.routes.Stream(Extensions) + ".>", core + progressRequestSubject} {
		refused := make(chan error, 1)
		extensions.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case refused <- err:
			default:
			}
		})
		if _, err := extensions.SubscribeSync(s); err != nil {
			continue
		}
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "ermissions violation") {
				t.Errorf("subscribing to %s: %v", s, err)
			}
		case <-time.After(2 * time.Second):
			t.Errorf("subscribing to %s is allowed", s)
		}
	}
	// A consumer may deliver to any subject, even one of another stream. Messages that arrive
	// there carry the wrong fence. While both streams are idle their IDs rise in step.
	before := b.messagesAs(t, users["relay"])
	own, err := js.CreateConsumer(t.Context(), b.routes.Stream(Extensions), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	err = extensions.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+b.routes.Stream(Extensions)+"."+own.CachedInfo().Name, subject, []byte(`{"batch":10,"expires":2000000000}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := extensions.Flush(); err != nil {
		t.Fatal(err)
	}
	// Ten messages went to the wrong stream once the consumer has delivered ten.
	eventually(t, "ten messages are delivered", func() bool {
		info, err := own.Info(t.Context())
		return err == nil && info.Delivered.Consumer >= 10
	})
	sink.until(t, b.put(t, "secrets/ns/a", "again"))
	after := b.messagesAs(t, users["relay"])
	if len(after) < len(before) {
		t.Fatalf("%d messages are left of %d", len(after), len(before))
	}
	if foreign := slices.DeleteFunc(after[len(before):], func(m *message) bool { return m != nil && m.Incarnation == before[0].Incarnation }); len(foreign) > 0 {
		t.Errorf("%d messages of another stream got in", len(foreign))
	}
}

// messagesAs returns the messages of core's stream, nil for those that no relay published.
func (b *bench) messagesAs(t *testing.T, o ConnectOptions) (out []*message) {
	t.Helper()
	js, err := jetstream.New(connectAs(t, o))
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), b.routes.Stream(Core))
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		raw, err := s.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // newer progress has replaced it
		}
		if err != nil {
			t.Fatal(err)
		}
		if m := decodeStored(raw); m == nil || m.Type != typeProgress {
			out = append(out, m)
		}
	}
	return out
}

func TestConnectRefusesWhatItCannotUse(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "odd")
	if err := os.WriteFile(odd, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]ConnectOptions{
		"no such credentials":            {CredentialsFile: filepath.Join(dir, "none")},
		"credentials of no known kind":   {CredentialsFile: odd},
		"a certificate without its key":  {CertFile: odd},
		"a CA file without certificates": {CAFile: odd},
	} {
		o.URLs = []string{"nats://127.0.0.1:1"}
		conn, err := Connect(o)
		if err == nil {
			connected := conn.IsConnected()
			conn.Close()
			if name != "a CA file without certificates" || connected {
				t.Errorf("%s: no error", name)
			}
		}
	}
}
