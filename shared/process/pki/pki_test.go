package pki_test

import (
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/keyutil"

	"triune.dev/shared/process/pki"
)

func ensure(t testing.TB, dir string, o pki.Options) *pki.PKI {
	t.Helper()
	p, err := pki.Ensure(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func leafOf(t testing.TB, p pki.Pair) *x509.Certificate {
	t.Helper()
	cert, err := p.Load()
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

func pool(t testing.TB, p pki.Pair) *x509.CertPool {
	t.Helper()
	roots, err := pki.LoadPool(p.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	return roots
}

// snapshot returns the content and the mode of every file in dir.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files[name] = info.Mode().String() + "\n" + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestServingCertificatesHoldForEveryName(t *testing.T) {
	p := ensure(t, t.TempDir(), pki.Options{ExtraNames: []string{"api.example.org", "192.0.2.7", "[2001:db8::7]"}})
	names := []string{
		"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "10.0.0.1", "api.example.org", "192.0.2.7", "2001:db8::7",
	}
	for _, tier := range pki.DefaultTiers {
		leaf := leafOf(t, p.Serving[tier])
		for _, name := range append(names, tier) {
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool(t, p.ClusterCA)}); err != nil {
				t.Errorf("%s as %s: %v", tier, name, err)
			}
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(t, p.ClusterCA), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
			t.Errorf("the serving certificate of %s passes for a client certificate", tier)
		}
	}
	for _, server := range []struct{ pair, ca pki.Pair }{{p.EtcdServer, p.EtcdCA}, {p.NATSServer, p.NATSCA}} {
		if _, err := leafOf(t, server.pair).Verify(x509.VerifyOptions{DNSName: "127.0.0.1", Roots: pool(t, server.ca)}); err != nil {
			t.Errorf("%s: %v", server.pair.CertFile, err)
		}
	}
}

func TestClientCertificatesVerifyAgainstTheirOwnAuthorityOnly(t *testing.T) {
	p := ensure(t, t.TempDir(), pki.Options{Clients: []pki.Client{
		{Name: "aggregator-client", CommonName: "system:triune:aggregator", Organizations: []string{"system:triune", "system:masters"}},
		{Name: "nats/core", CommonName: "core", Authority: pki.NATSCA},
	}})
	cases := []struct {
		pair, ca     pki.Pair
		user         string
		groups       []string
		wantNotValid []pki.Pair
	}{
		{p.Admin, p.ClusterCA, "kubernetes-admin", []string{"system:masters"}, []pki.Pair{p.FrontProxyCA, p.EtcdCA, p.NATSCA}},
		{p.ControllerManager, p.ClusterCA, "system:kube-controller-manager", nil, []pki.Pair{p.FrontProxyCA}},
		{p.Scheduler, p.ClusterCA, "system:kube-scheduler", nil, []pki.Pair{p.FrontProxyCA}},
		{p.FrontProxyClient, p.FrontProxyCA, "front-proxy-client", nil, []pki.Pair{p.ClusterCA, p.EtcdCA, p.NATSCA}},
		{p.Tier["core"], p.FrontProxyCA, "system:triune:core", nil, []pki.Pair{p.ClusterCA, p.EtcdCA, p.NATSCA}},
		{p.Clients["aggregator-client"], p.ClusterCA, "system:triune:aggregator", []string{"system:masters", "system:triune"}, []pki.Pair{p.FrontProxyCA}},
		{p.Clients["nats/core"], p.NATSCA, "core", nil, []pki.Pair{p.ClusterCA}},
		{p.EtcdClient, p.EtcdCA, "triune-etcd-client", nil, []pki.Pair{p.ClusterCA}},
		{p.NATSClient, p.NATSCA, "triune-nats-client", nil, []pki.Pair{p.ClusterCA}},
	}
	for _, c := range cases {
		leaf := leafOf(t, c.pair)
		asClient := func(ca pki.Pair) error {
			_, err := leaf.Verify(x509.VerifyOptions{Roots: pool(t, ca), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			return err
		}
		if err := asClient(c.ca); err != nil {
			t.Errorf("%s: %v", c.pair.CertFile, err)
		}
		for _, other := range c.wantNotValid {
			if asClient(other) == nil {
				t.Errorf("%s is valid under %s", c.pair.CertFile, other.CertFile)
			}
		}
		if leaf.Subject.CommonName != c.user {
			t.Errorf("%s names %q, want %q", c.pair.CertFile, leaf.Subject.CommonName, c.user)
		}
		if diff := cmp.Diff(c.groups, slices.Sorted(slices.Values(leaf.Subject.Organization))); diff != "" {
			t.Errorf("%s groups (-want +got):\n%s", c.pair.CertFile, diff)
		}
	}
}

func TestServiceAccountKeysBelongTogether(t *testing.T) {
	p := ensure(t, t.TempDir(), pki.Options{})
	private, err := keyutil.PrivateKeyFromFile(p.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	public, err := keyutil.PublicKeysFromFile(p.ServiceAccountPublicKey)
	if err != nil {
		t.Fatal(err)
	}
	derived, err := keyutil.PublicKeysFromFile(p.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(public, derived) || private == nil {
		t.Errorf("sa.pub is not the public half of sa.key")
	}
}

func TestLoadPoolRefusesAFileWithoutCertificates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	write(t, path, []byte("nothing"))
	if _, err := pki.LoadPool(path); err == nil {
		t.Error("no error")
	}
}

func TestServiceAddressesFollowTheRanges(t *testing.T) {
	p := ensure(t, t.TempDir(), pki.Options{ServiceIPs: []net.IP{net.ParseIP("10.96.0.1"), net.ParseIP("fd00::1")}, Domain: "example.test"})
	leaf := leafOf(t, p.Serving["core"])
	for _, name := range []string{"10.96.0.1", "fd00::1", "kubernetes.default.svc.example.test"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if leaf.VerifyHostname("10.0.0.1") == nil {
		t.Error("the default address is there beside the given ones")
	}
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
