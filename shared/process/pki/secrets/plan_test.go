package secrets

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki"
)

const listOfTest = `
prefix: cp
labels: {app.kubernetes.io/component: pki}
annotations: {helm.sh/resource-policy: keep}
authorityLifetime: 87600h
lifetime: 2160h
authorities:
  - {name: ca, commonName: triune-ca}
  - {name: etcd-ca, commonName: triune-etcd-ca}
certificates:
  - {name: core, authority: ca, commonName: triune-core, server: true, names: [localhost, core.ns.svc], addresses: [127.0.0.1, "::1"]}
  - {name: admin, authority: ca, commonName: kubernetes-admin, organizations: [system:masters], client: true, lifetime: 48h, kubeconfig: "https://api:443"}
  - {name: etcd-core, authority: etcd-ca, commonName: triune-core, client: true}
keys: [service-account]
`

func load(t *testing.T, text string) (*List, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "certificates.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

// site is a namespace with a clock.
type site struct {
	*testing.T
	list *List
	now  time.Time
	have map[string]*corev1.Secret
}

func newSite(t *testing.T) *site {
	t.Helper()
	list, err := load(t, listOfTest)
	if err != nil {
		t.Fatal(err)
	}
	return &site{t, list, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), map[string]*corev1.Secret{}}
}

// ensure carries out a plan, checks the Secrets after each write, and returns the names of
// those that were written, in order, and the problems.
func (s *site) ensure(rotation Rotation) (written []string, problems string) {
	s.Helper()
	p := newPlan(s.list, s.have, s.now, rotation)
	for _, c := range p.changes {
		if c.reason == "" || (s.have[c.secret.Name] == nil) != (c.secret.ResourceVersion == "") {
			s.Errorf("%s is written for the reason %q, with resource version %q", c.secret.Name, c.reason, c.secret.ResourceVersion)
		}
		c.secret.ResourceVersion = "1"
		s.have[c.secret.Name] = c.secret
		written = append(written, strings.TrimPrefix(c.secret.Name, s.list.Prefix+"-"))
		s.consistent()
	}
	var lines []string
	for _, err := range p.problems {
		lines = append(lines, err.Error())
	}
	if len(lines) == 0 {
		if again := newPlan(s.list, s.have, s.now, rotation); len(again.changes) > 0 || len(again.problems) > 0 {
			s.Errorf("a second plan changes %d Secrets: %v", len(again.changes), again.problems)
		}
	}
	return written, strings.Join(lines, "\n")
}

// want calls ensure and fails if there is a problem.
func (s *site) want(rotation Rotation, written ...string) {
	s.Helper()
	got, problems := s.ensure(rotation)
	if diff := cmp.Diff(written, got); diff != "" || problems != "" {
		s.Fatalf("Secrets that were written (-want +got):\n%s%s", diff, problems)
	}
}

// consistent checks that the bundle beside each leaf verifies every other leaf of the same
// authority, since programs read their Secrets at different times.
func (s *site) consistent() {
	s.Helper()
	for _, c := range s.list.Certificates {
		leaf := s.have[s.list.secret(c.Name)]
		for _, other := range s.list.Certificates {
			verifier := s.have[s.list.secret(other.Name)]
			if leaf == nil || verifier == nil || other.Authority != c.Authority || leaf.Annotations["broken"] != "" || verifier.Annotations["broken"] != "" {
				continue
			}
			certificate := s.cert(c.Name, corev1.TLSCertKey)
			if s.now.After(certificate.NotAfter) { // the clock of a test has jumped
				continue
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(verifier.Data[caKey])
			if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.now, KeyUsages: c.usages()}); err != nil {
				s.Errorf("%s by %s: %v", c.Name, other.Name, err)
			}
		}
	}
}

func (s *site) cert(name, key string) *x509.Certificate {
	s.Helper()
	block, _ := pem.Decode(s.have[s.list.secret(name)].Data[key])
	if block == nil {
		s.Fatalf("%s has no %s", name, key)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *site) snapshot() map[string]*corev1.Secret { return maps.Clone(s.have) }

func TestFirstPlanMakesAllSecrets(t *testing.T) {
	s := newSite(t)
	s.want(Done, "ca", "etcd-ca", "core", "admin", "etcd-core", "service-account")
	core, admin := s.cert("core", corev1.TLSCertKey), s.cert("admin", corev1.TLSCertKey)
	for _, name := range []string{"localhost", "core.ns.svc", "127.0.0.1", "::1"} {
		if err := core.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(core.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || !slices.Equal(admin.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("usages are %v and %v", core.ExtKeyUsage, admin.ExtKeyUsage)
	}
	if admin.Subject.CommonName != "kubernetes-admin" || !slices.Equal(admin.Subject.Organization, []string{"system:masters"}) {
		t.Errorf("the administrator is %s", admin.Subject)
	}
	if got := core.NotAfter.Sub(s.now); got != 2160*time.Hour {
		t.Errorf("core's certificate lives %v", got)
	}
	if got := admin.NotAfter.Sub(s.now); got != 48*time.Hour {
		t.Errorf("the administrator's certificate lives %v", got)
	}
	config, err := clientcmd.Load(s.have["cp-admin"].Data[kubeconfigKey])
	if err != nil || config.Clusters[pki.ContextName].Server != "https://api:443" || !bytes.Equal(config.AuthInfos[pki.ContextName].ClientCertificateData, s.have["cp-admin"].Data[corev1.TLSCertKey]) {
		t.Errorf("kubeconfig %v: %v", config, err)
	}
	for name, secret := range s.have {
		if secret.Labels["app.kubernetes.io/component"] != "pki" || secret.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s is marked with %v %v", name, secret.Labels, secret.Annotations)
		}
		// The key of an authority is only in its own Secret.
		for _, authority := range s.list.Authorities {
			key := s.have[s.list.secret(authority.Name)].Data[corev1.TLSPrivateKeyKey]
			for field, data := range secret.Data {
				if name != s.list.secret(authority.Name) && bytes.Contains(data, key) {
					t.Errorf("%s holds in %s the key of %s", name, field, authority.Name)
				}
			}
		}
	}
}

// TestLeavesAreRenewedAtTwoThirds checks that leaves are renewed at two thirds of their
// lifetime, with a new key and by the same authority.
func TestLeavesAreRenewedAtTwoThirds(t *testing.T) {
	s := newSite(t)
	s.ensure(Done)
	before, start := s.snapshot(), s.now
	s.now = start.Add(32*time.Hour - time.Second)
	s.want(Done)
	s.now = start.Add(32 * time.Hour)
	s.want(Done, "admin")
	s.now = start.Add(60*24*time.Hour - time.Second)
	s.want(Done, "admin")
	s.now = start.Add(60 * 24 * time.Hour)
	s.want(Done, "core", "etcd-core")
	for name, secret := range s.have {
		same := bytes.Equal(secret.Data[corev1.TLSPrivateKeyKey], before[name].Data[corev1.TLSPrivateKeyKey])
		if kept := strings.HasSuffix(name, "ca") || name == "cp-service-account"; same != kept {
			t.Errorf("the key of %s is the one from before: %v", name, same)
		}
	}
}

func TestAuthoritiesAreRenewedForTheirKey(t *testing.T) {
	s := newSite(t)
	s.ensure(Done)
	before := s.snapshot()
	s.now = s.now.Add(58400 * time.Hour)
	s.ensure(Done)
	old, _ := pem.Decode(before["cp-ca"].Data[corev1.TLSCertKey])
	if ca := s.cert("ca", corev1.TLSCertKey); bytes.Equal(ca.Raw, old.Bytes) || ca.NotAfter.Sub(s.now) != 87600*time.Hour {
		t.Errorf("the authority holds until %v", ca.NotAfter)
	}
	// The old certificate of the authority verifies leaves of the new one.
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(before["cp-core"].Data[caKey])
	if _, err := s.cert("core", corev1.TLSCertKey).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.now}); err != nil {
		t.Error(err)
	}
}

// TestSecretsOfOthersAreAdopted checks Secrets that Helm made before version 0.2.0 of the
// chart. Their leaves are valid for ten years and are for both servers and clients.
func TestSecretsOfOthersAreAdopted(t *testing.T) {
	s := newSite(t)
	long := *s.list
	long.Lifetime.Duration, long.Labels, long.Annotations = 87600*time.Hour, nil, nil
	long.Certificates = slices.Clone(s.list.Certificates)
	for i := range long.Certificates {
		long.Certificates[i].Server, long.Certificates[i].Client = true, true
	}
	ours := s.list
	s.list = &long
	s.ensure(Done)
	before := s.snapshot()
	s.list = ours
	s.want(Done, "ca", "etcd-ca", "core", "admin", "etcd-core", "service-account")
	for _, name := range []string{"cp-ca", "cp-etcd-ca", "cp-service-account"} {
		if diff := cmp.Diff(before[name].Data, s.have[name].Data); diff != "" {
			t.Errorf("%s is another: %s", name, diff)
		}
	}
	if got := s.cert("core", corev1.TLSCertKey).NotAfter.Sub(s.now); got != 2160*time.Hour {
		t.Errorf("core's certificate lives %v", got)
	}
}

func TestLeavesFollowTheList(t *testing.T) {
	for name, change := range map[string]func(*Certificate){
		"a further name":    func(c *Certificate) { c.Names = append(slices.Clone(c.Names), "api.example.com") },
		"one name less":     func(c *Certificate) { c.Names = c.Names[:1] },
		"another address":   func(c *Certificate) { c.Addresses = []string{"192.0.2.1"} },
		"another user":      func(c *Certificate) { c.CommonName = "core" },
		"a group":           func(c *Certificate) { c.Organizations = []string{"system:masters"} },
		"a further usage":   func(c *Certificate) { c.Client = true },
		"a shorter life":    func(c *Certificate) { c.Lifetime.Duration = time.Hour },
		"another authority": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.ensure(Done)
			if change == nil {
				// etcd's authority must not issue certificates of core.
				s.list.Certificates[0].Authority = "etcd-ca"
				if written, problems := s.ensure(Done); len(written) > 0 || !strings.Contains(problems, "Secret cp-core: tls.crt was not issued by cp-etcd-ca") {
					t.Errorf("%v is written: %s", written, problems)
				}
				return
			}
			change(&s.list.Certificates[0])
			s.want(Done, "core")
		})
	}
}

func TestBrokenSecretsAreReportedAndKept(t *testing.T) {
	foreign := newSite(t)
	foreign.ensure(Done)
	for name, test := range map[string]struct {
		secret string
		spoil  func(*corev1.Secret)
		want   string
		others []string // that are renewed nevertheless
	}{
		"no PEM":               {"cp-core", func(s *corev1.Secret) { s.Data[corev1.TLSCertKey] = []byte("x") }, "Secret cp-core: tls.crt holds no usable certificate", []string{"admin", "etcd-core"}},
		"no key":               {"cp-core", func(s *corev1.Secret) { delete(s.Data, corev1.TLSPrivateKeyKey) }, "Secret cp-core: tls.key holds no usable private key", []string{"admin", "etcd-core"}},
		"another key":          {"cp-core", func(s *corev1.Secret) { s.Data["tls.key"] = foreign.have["cp-core"].Data["tls.key"] }, "Secret cp-core: tls.key does not belong to tls.crt", []string{"admin", "etcd-core"}},
		"a foreign leaf":       {"cp-core", func(s *corev1.Secret) { s.Data = foreign.have["cp-core"].Data }, "Secret cp-core: tls.crt was not issued by cp-ca", []string{"admin", "etcd-core"}},
		"a leaf as authority":  {"cp-ca", func(s *corev1.Secret) { s.Data = foreign.have["cp-core"].Data }, "Secret cp-ca: tls.crt is not the certificate of an authority", []string{"etcd-core"}},
		"an authority's key":   {"cp-ca", func(s *corev1.Secret) { delete(s.Data, corev1.TLSPrivateKeyKey) }, "Secret cp-ca: tls.key holds no usable private key", []string{"etcd-core"}},
		"a foreign authority":  {"cp-ca", func(s *corev1.Secret) { s.Data = foreign.have["cp-ca"].Data }, "Secret cp-core: tls.crt was not issued by cp-ca", []string{"etcd-core"}},
		"a broken next one":    {"cp-ca", func(s *corev1.Secret) { s.Data[nextCertKey] = []byte("x") }, "Secret cp-ca: next.crt holds no usable certificate", []string{"etcd-core"}},
		"a signing key":        {"cp-service-account", func(s *corev1.Secret) { s.Data["tls.key"] = []byte("x") }, "Secret cp-service-account: tls.key holds no usable private key", []string{"core", "admin", "etcd-core"}},
		"an authority is gone": {"cp-ca", nil, "Secret cp-ca: does not exist, but cp-core does", []string{"etcd-core"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.ensure(Done)
			if test.spoil == nil {
				delete(s.have, test.secret)
			} else {
				broken := s.have[test.secret].DeepCopy()
				broken.Annotations["broken"] = "true"
				test.spoil(broken)
				s.have[test.secret] = broken
			}
			before := s.snapshot()
			s.now = s.now.Add(60 * 24 * time.Hour)
			written, problems := s.ensure(Done)
			if !strings.Contains(problems, test.want) {
				t.Errorf("the problems are %q, want %q", problems, test.want)
			}
			if diff := cmp.Diff(test.others, written); diff != "" {
				t.Errorf("Secrets that were written (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before[test.secret], s.have[test.secret]); diff != "" {
				t.Errorf("the broken Secret is another: %s", diff)
			}
		})
	}
}

// TestRotation checks that the Secrets are consistent after each write of a rotation.
func TestRotation(t *testing.T) {
	s := newSite(t)
	s.ensure(Done)
	old := s.cert("ca", corev1.TLSCertKey)
	if _, problems := s.ensure(Issue); !strings.Contains(problems, "no authority has a next one") {
		t.Errorf("an issue by an authority that nobody trusts yet: %q", problems)
	}
	s.want(Trust, "ca", "etcd-ca", "core", "admin", "etcd-core")
	s.want(Done, "core", "admin", "etcd-core", "ca", "etcd-ca") // the rotation is cancelled
	s.want(Trust, "ca", "etcd-ca", "core", "admin", "etcd-core")
	trusting := s.snapshot()
	s.now = s.now.Add(time.Hour)
	s.want(Issue, "ca", "etcd-ca", "core", "admin", "etcd-core")
	next := s.cert("ca", corev1.TLSCertKey)
	if next.Equal(old) || s.cert("core", corev1.TLSCertKey).CheckSignatureFrom(next) != nil {
		t.Error("the old authority still issues")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusting["cp-core"].Data[caKey])
	if _, err := s.cert("admin", corev1.TLSCertKey).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("a reader of the previous step's Secrets: %v", err)
	}
	if _, problems := s.ensure(Trust); !strings.Contains(problems, "end it first") {
		t.Errorf("a rotation during another one: %q", problems)
	}
	s.want(Done, "core", "admin", "etcd-core", "ca", "etcd-ca")
	if bytes.Contains(s.have["cp-core"].Data[caKey], pki.EncodeCertificate(old)) || s.have["cp-ca"].Data[previousKey] != nil {
		t.Error("the old authority is still trusted")
	}
	s.want(Done)
}

func TestListsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		strings.Replace(listOfTest, "lifetime: 2160h", "lifetimes: 2160h", 1):                    `unknown field "lifetimes"`,
		strings.Replace(listOfTest, "lifetime: 2160h", "lifetime: 0s", 1):                        "must be above 0",
		strings.Replace(listOfTest, "authority: etcd-ca", "authority: nats-ca", 1):               `unknown authority "nats-ca"`,
		strings.Replace(listOfTest, "name: etcd-core", "name: core", 1):                          `"cp-core" is wanted twice`,
		strings.Replace(listOfTest, "name: etcd-core", "name: etcd_core", 1):                     `"cp-etcd_core" is no name`,
		strings.Replace(listOfTest, "client: true, lifetime", "lifetime", 1):                     "server or client",
		strings.Replace(listOfTest, "addresses: [127.0.0.1,", "addresses: [localhost,", 1):       `"localhost" is no IP address`,
		strings.Replace(listOfTest, "etcd-ca, commonName: triune-etcd-ca", "etcd-ca", 1):         `authority "etcd-ca" has no commonName`,
		strings.Replace(listOfTest, "keys: [service-account]", "keys: [service-account, ca]", 1): `"cp-ca" is wanted twice`,
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
