package options

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes/scheme"
	cliflag "k8s.io/component-base/cli/flag"

	"triune.dev/shared/process/pki"
)

var (
	middle = Tier{Name: "aggregator", Next: "core", Scheme: scheme.Scheme, Codecs: scheme.Codecs}
	last   = Tier{Name: "extensions", Scheme: scheme.Scheme, Codecs: scheme.Codecs, Admission: genericoptions.NewAdmissionOptions}
)

// parse returns the completed options of a command line.
func parse(t *testing.T, tier Tier, args ...string) *Options {
	t.Helper()
	o := New(tier)
	o.Registerer = prometheus.NewRegistry()
	var sections cliflag.NamedFlagSets
	o.AddFlags(&sections)
	flags := pflag.NewFlagSet(tier.Name, pflag.ContinueOnError)
	for _, section := range sections.FlagSets {
		flags.AddFlagSet(section)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := o.Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

func newPKI(t *testing.T) *pki.PKI {
	t.Helper()
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestValidate(t *testing.T) {
	made := newPKI(t)
	proxy := []string{"--proxy-client-cert-file=" + made.FrontProxyClient.CertFile, "--proxy-client-key-file=" + made.FrontProxyClient.KeyFile}
	good := append([]string{"--etcd-servers=http://127.0.0.1:2379"}, proxy...)
	toNext := []string{"--next-url=https://core:6443", "--next-ca-file=" + made.ClusterCA.CertFile}
	toCore := []string{"--core-url=https://core:6443", "--core-ca-file=" + made.ClusterCA.CertFile}
	tests := map[string]struct {
		tier Tier
		args [][]string
		want []string // one for each problem, in order
	}{
		"middle, no flags":    {middle, nil, []string{"--etcd-servers", "--next-url", "--proxy-client-cert-file", "--proxy-client-key-file"}},
		"last, no flags":      {last, nil, []string{"--etcd-servers", "--core-url", "--proxy-client-cert-file", "--proxy-client-key-file"}},
		"middle, complete":    {middle, [][]string{good, toNext}, nil},
		"last, complete":      {last, [][]string{good, toCore}, nil},
		"core at another URL": {middle, [][]string{good, toNext, toCore}, nil},
		"core's CA is next's": {middle, [][]string{good, toNext, {"--core-url=https://core:7443"}}, nil},
		"next without CA":     {middle, [][]string{good, {"--next-url=https://core:6443"}}, []string{"--next-ca-file"}},
		"core without CA":     {last, [][]string{good, {"--core-url=https://core:6443"}}, []string{"--core-ca-file"}},
		"invalid URLs": {middle, [][]string{good, toNext, {"--next-url=http://core:1", "--next-url=https://core/path", "--next-url=core:6443"}},
			[]string{"--next-url=http://core:1", "--next-url=https://core/path", "--next-url=core:6443"}},
		"invalid CA": {middle, [][]string{good, {"--next-url=https://core:6443", "--next-ca-file=" + made.ClusterCA.KeyFile}}, []string{"--next-ca-file=" + made.ClusterCA.KeyFile}},
		"one problem in every part": {last, [][]string{good, toCore, {
			"--request-timeout=-1s", "--storage-media-type=text/plain", "--secure-port=70000", "--tls-cert-file=a", "--tls-cipher-suites=none",
			"--tls-min-version=VersionTLS09", "--audit-log-path=/tmp/audit", "--audit-log-format=xml", "--token-auth-file=/no/tokens", "--authorization-mode=ABAC",
			"--runtime-config=no.such.group/v1=true", "--enable-admission-plugins=NoSuchPlugin", "--tracing-config-file=/no/tracing",
			"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--http2-server=nginx",
		}}, []string{
			"--request-timeout", "--storage-media-type", "--secure-port", "--tls-cert-file=a", "--tls-cipher-suites=none", "--tls-min-version=VersionTLS09",
			"--http2-server=nginx", "--audit-*", "--token-auth-file=/no/tokens", "--authorization-mode=ABAC",
			"--tracing-config-file", "--runtime-config", "--enable-admission-plugins", "--max-requests-inflight=0",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, some := range test.args {
				args = append(args, some...)
			}
			problems := parse(t, test.tier, args...).Validate()
			var got []string
			for _, problem := range problems {
				got = append(got, problem.Error())
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %d problems, want %d:\n%s", len(got), len(test.want), strings.Join(got, "\n"))
			}
			for i, want := range test.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %d does not name %s: %s", i, want, got[i])
				}
			}
		})
	}
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		tier Tier
		has  []string
		not  []string
	}{
		"middle": {middle, []string{"next-url", "core-url", "etcd-servers", "client-ca-file", "authorization-mode"}, []string{"enable-admission-plugins", "service-account-issuer"}},
		"last":   {last, []string{"core-url", "enable-admission-plugins", "admission-control-config-file"}, []string{"next-url", "next-ca-file"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var sections cliflag.NamedFlagSets
			New(test.tier).AddFlags(&sections)
			known := map[string]*pflag.Flag{}
			for _, section := range sections.FlagSets {
				section.VisitAll(func(f *pflag.Flag) { known[f.Name] = f })
			}
			for _, flag := range test.has {
				if known[flag] == nil {
					t.Errorf("there is no --%s", flag)
				}
			}
			for _, flag := range append(test.not, "insecure-port") {
				if known[flag] != nil {
					t.Errorf("there is a --%s", flag)
				}
			}
			for flag, want := range map[string]string{"secure-port": "6443", "cert-dir": "/var/run/kubernetes", "etcd-prefix": "/registry", "bind-address": "0.0.0.0"} {
				if got := known[flag].DefValue; got != want {
					t.Errorf("--%s is %s by default, want kube-apiserver's %s", flag, got, want)
				}
			}
			var help bytes.Buffer
			cliflag.PrintSections(&help, sections, 0)
			if !strings.Contains(help.String(), "Tiers flags:") {
				t.Error("the help has no section for the tiers")
			}
		})
	}
}

func TestEnsureServingCert(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	ensure := func() (*genericoptions.SecureServingOptions, pki.Pair) {
		o := New(last)
		o.SecureServing.ServerCert.CertDirectory = dir
		if err := ensureServingCert(o.SecureServing, "192.0.2.7", dnsNames("extensions")); err != nil {
			t.Fatal(err)
		}
		files := o.SecureServing.ServerCert.CertKey
		return o.SecureServing, pki.Pair{CertFile: files.CertFile, KeyFile: files.KeyFile}
	}
	serving, files := ensure()
	if want := filepath.Join(dir, "apiserver.crt"); files.CertFile != want {
		t.Errorf("the certificate is in %s, want %s", files.CertFile, want)
	}
	first, err := files.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubernetes.default.svc", "localhost", "192.0.2.7", "127.0.0.1"} {
		if err := first.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	pool, err := pki.LoadPool(files.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Leaf.Verify(verifyOptions(pool)); err != nil {
		t.Errorf("the file does not verify its own certificate: %v", err)
	}
	_, again := ensure()
	second, err := again.Load()
	if err != nil {
		t.Fatal(err)
	}
	if !second.Leaf.Equal(first.Leaf) {
		t.Error("an existing certificate was replaced")
	}
	// Upstream's function uses the same files.
	serving.ServerCert.CertKey = genericoptions.CertKey{}
	if err := serving.MaybeDefaultWithSelfSignedCerts("192.0.2.7", nil, nil); err != nil {
		t.Fatal(err)
	}
	if serving.ServerCert.CertKey.CertFile != files.CertFile {
		t.Errorf("k8s.io/apiserver uses %s", serving.ServerCert.CertKey.CertFile)
	}
	third, err := files.Load()
	if err != nil {
		t.Fatal(err)
	}
	if !third.Leaf.Equal(first.Leaf) {
		t.Error("k8s.io/apiserver replaced the certificate")
	}
}

func BenchmarkSelfSigned(b *testing.B) {
	for b.Loop() {
		if _, _, err := selfSigned("127.0.0.1", dnsNames("extensions"), nil); err != nil {
			b.Fatal(err)
		}
	}
}
