package pki_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/shared/process/pki"
)

func TestEnsureIsIdempotentAndKeysArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "pki")
	ensure(t, dir, pki.Options{})
	first := snapshot(t, dir)
	ensure(t, dir, pki.Options{})
	if diff := cmp.Diff(first, snapshot(t, dir)); diff != "" {
		t.Errorf("a second Ensure changed files (-first +second):\n%s", diff)
	}
	for name, content := range first {
		if strings.HasSuffix(name, ".key") && !strings.HasPrefix(content, "-rw-------\n") {
			t.Errorf("%s has mode %s", name, content[:10])
		}
		if strings.HasPrefix(filepath.Base(name), ".") && name != ".lock" {
			t.Errorf("%s was left behind", name)
		}
	}
}

func TestEnsureByManyProcessesMakesOneInstallation(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, err := pki.Ensure(dir, pki.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := p.Admin.Load(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ensure(t, dir, pki.Options{})
}

func TestLeafIsIssuedAgain(t *testing.T) {
	start := time.Now()
	cases := []struct {
		name string
		next pki.Options
		// changed are the files that may differ afterwards.
		changed []string
	}{
		{"not while it is far from its end", pki.Options{Now: func() time.Time { return start.Add(200 * 24 * time.Hour) }}, nil},
		{"when a name is added", pki.Options{ExtraNames: []string{"new.example.org"}},
			[]string{"aggregator.crt", "core.crt", "etcd/server.crt", "extensions.crt", "nats/server.crt"}},
		{"not when a name is no longer wanted", pki.Options{ExtraNames: []string{}}, nil},
		{"when it is about to expire", pki.Options{Now: func() time.Time { return start.Add(300 * 24 * time.Hour) }},
			[]string{"admin.crt", "aggregator.crt", "controller-manager.crt", "core.crt", "etcd/client.crt", "etcd/server.crt",
				"extensions.crt", "front-proxy-client.crt",
				"front-proxy/aggregator.crt", "front-proxy/core.crt", "front-proxy/extensions.crt", "nats/client.crt", "nats/server.crt", "scheduler.crt"}},
		{"when it has expired", pki.Options{Now: func() time.Time { return start.Add(3 * 365 * 24 * time.Hour) }},
			[]string{"admin.crt", "aggregator.crt", "controller-manager.crt", "core.crt", "etcd/client.crt", "etcd/server.crt",
				"extensions.crt", "front-proxy-client.crt",
				"front-proxy/aggregator.crt", "front-proxy/core.crt", "front-proxy/extensions.crt", "nats/client.crt", "nats/server.crt", "scheduler.crt"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			ensure(t, dir, pki.Options{})
			before := snapshot(t, dir)
			p := ensure(t, dir, c.next)
			var changed []string
			after := snapshot(t, dir)
			for name := range after {
				if before[name] != after[name] {
					changed = append(changed, filepath.ToSlash(name))
				}
			}
			slices.Sort(changed)
			if diff := cmp.Diff(c.changed, changed); diff != "" {
				t.Errorf("changed files (-want +got):\n%s", diff)
			}
			now := start
			if c.next.Now != nil {
				now = c.next.Now()
			}
			// The key stays, so the pair must still fit and be valid at that time.
			if _, err := leafOf(t, p.Serving["core"]).Verify(x509.VerifyOptions{DNSName: "localhost", Roots: pool(t, p.ClusterCA), CurrentTime: now}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLeafDoesNotOutliveItsAuthority(t *testing.T) {
	p := ensure(t, t.TempDir(), pki.Options{CALifetime: 24 * time.Hour})
	ca, leaf := leafOf(t, p.ClusterCA), leafOf(t, p.Admin)
	if leaf.NotAfter.After(ca.NotAfter) {
		t.Errorf("the leaf ends %v, its authority %v", leaf.NotAfter, ca.NotAfter)
	}
}

func TestEnsureRefusesWhatIsBrokenAndChangesNothing(t *testing.T) {
	copyFile := func(t *testing.T, from, to string) {
		t.Helper()
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, to, data)
	}
	cases := []struct {
		name   string
		damage func(t *testing.T, p, other *pki.PKI)
		want   string
	}{
		{"key of another certificate", func(t *testing.T, p, other *pki.PKI) { copyFile(t, other.Admin.KeyFile, p.Admin.KeyFile) },
			"admin.key does not belong to "},
		{"CA key of another CA", func(t *testing.T, p, other *pki.PKI) { copyFile(t, other.ClusterCA.KeyFile, p.ClusterCA.KeyFile) },
			"ca.key does not belong to "},
		{"leaf of another CA", func(t *testing.T, p, other *pki.PKI) {
			copyFile(t, other.Admin.KeyFile, p.Admin.KeyFile)
			copyFile(t, other.Admin.CertFile, p.Admin.CertFile)
		}, "admin.crt was not issued by "},
		{"CA lost", func(t *testing.T, p, _ *pki.PKI) { remove(t, p.ClusterCA.CertFile, p.ClusterCA.KeyFile) },
			"aggregator.crt was not issued by "},
		{"key lost", func(t *testing.T, p, _ *pki.PKI) { remove(t, p.Scheduler.KeyFile) },
			"scheduler.key is not"},
		{"certificate truncated", func(t *testing.T, p, _ *pki.PKI) { write(t, p.Admin.CertFile, []byte("-----BEGIN CERT")) },
			"admin.crt holds no usable certificate"},
		{"key empty", func(t *testing.T, p, _ *pki.PKI) { write(t, p.Admin.KeyFile, nil) },
			"admin.key holds no usable private key"},
		{"CA is a leaf", func(t *testing.T, p, _ *pki.PKI) {
			copyFile(t, p.Admin.CertFile, p.ClusterCA.CertFile)
			copyFile(t, p.Admin.KeyFile, p.ClusterCA.KeyFile)
		}, "ca.crt is not a CA certificate"},
		{"token keys mixed up", func(t *testing.T, p, other *pki.PKI) {
			copyFile(t, other.ServiceAccountPublicKey, p.ServiceAccountPublicKey)
		}, "sa.pub does not hold the public key of "},
		{"token key lost", func(t *testing.T, p, _ *pki.PKI) { remove(t, p.ServiceAccountKey) }, "sa.key is not"},
		{"CA key kept elsewhere and a leaf to issue", func(t *testing.T, p, _ *pki.PKI) {
			remove(t, p.ClusterCA.KeyFile, p.Admin.CertFile)
		}, "admin.crt cannot be issued (it does not exist): "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p, other := ensure(t, dir, pki.Options{}), ensure(t, t.TempDir(), pki.Options{})
			c.damage(t, p, other)
			before := snapshot(t, dir)
			_, err := pki.Ensure(dir, pki.Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestEnsureRefusesAnAuthorityOfAnotherTime(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, pki.Options{CALifetime: time.Hour})
	before := snapshot(t, dir)
	for want, later := range map[string]time.Duration{
		"ca.crt expired on ":    2 * time.Hour,
		"ca.crt is valid from ": -24 * time.Hour,
	} {
		_, err := pki.Ensure(dir, pki.Options{Now: func() time.Time { return time.Now().Add(later) }})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

func TestEnsureCompletesAnInterruptedStart(t *testing.T) {
	dir := t.TempDir()
	p := ensure(t, dir, pki.Options{})
	key, err := os.ReadFile(p.EtcdCA.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	// A crash between two renames leaves keys without their certificates.
	remove(t, p.EtcdCA.CertFile, p.EtcdServer.CertFile, p.EtcdClient.CertFile, p.EtcdClient.KeyFile, p.ServiceAccountPublicKey)
	ensure(t, dir, pki.Options{})
	if again, err := os.ReadFile(p.EtcdCA.KeyFile); err != nil || string(again) != string(key) {
		t.Errorf("the CA key was replaced (%v)", err)
	}
	if _, err := leafOf(t, p.EtcdServer).Verify(x509.VerifyOptions{DNSName: "localhost", Roots: pool(t, p.EtcdCA)}); err != nil {
		t.Error(err)
	}
}

func TestEnsureWorksWithoutTheAuthoritysKey(t *testing.T) {
	dir := t.TempDir()
	p := ensure(t, dir, pki.Options{})
	remove(t, p.ClusterCA.KeyFile)
	ensure(t, dir, pki.Options{})
}

func TestEnsureSaysWhyItCannotWrite(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain-file")
	write(t, plain, []byte("x"))
	_, err := pki.Ensure(filepath.Join(plain, "pki"), pki.Options{})
	if err == nil || !strings.Contains(err.Error(), "plain-file") {
		t.Errorf("error %v, want one that names the path", err)
	}
	// A file cannot replace a directory. Until then only the lock may have been written.
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sa.pub", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Ensure(dir, pki.Options{}); err == nil {
		t.Error("a directory in the place of sa.pub was accepted")
	}
	left := snapshot(t, dir)
	delete(left, ".lock")
	if len(left) != 0 {
		t.Errorf("files were left behind: %d", len(left))
	}
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	cases := map[string]pki.Options{
		"wanted twice":         {Clients: []pki.Client{{Name: "admin", CommonName: "x"}}},
		"no usable file name":  {Clients: []pki.Client{{Name: "../x", CommonName: "x"}}},
		"has no common name":   {Clients: []pki.Client{{Name: "x"}}},
		"unknown authority":    {Clients: []pki.Client{{Name: "x", CommonName: "x", Authority: "y"}}},
		"renewed":              {LeafLifetime: time.Hour},
		`"" is no usable file`: {Tiers: []string{""}},
	}
	for want, o := range cases {
		dir := t.TempDir()
		if _, err := pki.Ensure(dir, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if left := snapshot(t, dir); len(left) != 0 {
			t.Errorf("%s: files were written", want)
		}
	}
}

// BenchmarkEnsure makes an installation, and checks a complete one:
//
//	go test -bench Ensure -run '^$' ./shared/process/pki
func BenchmarkEnsure(b *testing.B) {
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ensure(b, b.TempDir(), pki.Options{})
		}
	})
	b.Run("complete", func(b *testing.B) {
		dir := b.TempDir()
		ensure(b, dir, pki.Options{})
		b.ReportAllocs()
		for b.Loop() {
			ensure(b, dir, pki.Options{})
		}
	})
}
