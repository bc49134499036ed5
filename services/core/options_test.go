package core

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"triune.dev/shared/process/pki"
)

// TestValidateNamesTheFlag checks that each error names the flag.
func TestValidateNamesTheFlag(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	configuration := func(kind, content string) string {
		file := filepath.Join(t.TempDir(), kind)
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: "+kind+"\n"+content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	unsafe := configuration("AuthenticationConfiguration", "jwt: [{issuer: {url: 'http://issuer.example', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]")
	lawless := configuration("AuthorizationConfiguration", "authorizers: []")
	complete := []string{
		"--service-account-issuer=https://issuer.example.com",
		"--service-account-key-file=" + made.ServiceAccountPublicKey, "--service-account-signing-key-file=" + made.ServiceAccountKey,
		"--tls-cert-file=" + made.Serving["core"].CertFile, "--tls-private-key-file=" + made.Serving["core"].KeyFile,
		"--service-cluster-ip-range=10.0.0.0/24",
	}
	tests := map[string]struct {
		args []string
		want []string // flags, each in an error of its own
	}{
		"no etcd":                      {nil, []string{"--etcd-servers"}},
		"port out of range":            {[]string{"--secure-port=70000"}, []string{"--secure-port"}},
		"insecure port for all":        {[]string{"--insecure-loopback-port=8080"}, []string{"--insecure-loopback-port=8080 needs a loopback address as --bind-address, not 0.0.0.0"}},
		"insecure port of a network":   {[]string{"--insecure-loopback-port=8080", "--bind-address=192.0.2.1"}, []string{"--insecure-loopback-port=8080 needs a loopback address as --bind-address, not 192.0.2.1"}},
		"insecure port out of range":   {[]string{"--insecure-loopback-port=70000", "--bind-address=127.0.0.1"}, []string{"--insecure-loopback-port=70000"}},
		"insecure port and secure one": {[]string{"--insecure-loopback-port=6443", "--bind-address=127.0.0.1"}, []string{"--insecure-loopback-port=6443 is also --secure-port"}},
		"HTTP/2 server":                {[]string{"--http2-server=nginx"}, []string{"--http2-server=nginx must be go or triune"}},
		"negative limit":               {[]string{"--max-requests-inflight=-1"}, []string{"--max-requests-inflight"}},
		"next tier without TLS":        {[]string{"--next-url=http://next", "--next-ca-file=ca", "--proxy-client-cert-file=c", "--proxy-client-key-file=k"}, []string{"--next-url: http://next"}},
		"next tier without host":       {[]string{"--next-url=https://", "--next-ca-file=ca", "--proxy-client-cert-file=c", "--proxy-client-key-file=k"}, []string{"--next-url: https://"}},
		"next tier without trust": {[]string{"--next-url=https://next"},
			[]string{"--proxy-client-cert-file", "--next-ca-file"}},
		"issuer without TLS": {[]string{"--authentication-config=" + unsafe}, []string{"--authentication-config=" + unsafe}},
		"no authorizers":     {[]string{"--authorization-config=" + lawless}, []string{"--authorization-config=" + lawless}},
		"several at once": {[]string{"--next-url=ftp://next", "--secure-port=-1"},
			[]string{"--next-url: ftp://next", "--etcd-servers", "--secure-port"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			options := parsed(t, slices.Concat(complete, test.args)...)
			completed, err := options.Complete(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			errs := completed.Validate()
			if len(errs) < len(test.want) {
				t.Errorf("%d errors: %v", len(errs), errs)
			}
			for _, want := range test.want {
				var found int
				for _, err := range errs {
					if strings.Contains(err.Error(), want) {
						found++
					}
				}
				if found == 0 {
					t.Errorf("no error about %s in %v", want, errs)
				}
			}
		})
	}
}

// TestCompleteNamesTheFlag checks the errors of unreadable files, before the server runs.
func TestCompleteNamesTheFlag(t *testing.T) {
	for _, args := range [][]string{
		{"--service-account-signing-key-file=testdata/none"},
		{"--service-cluster-ip-range=10.0.0.0/24,nonsense"},
	} {
		options := parsed(t, append(args, "--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://issuer.example.com", "--cert-dir="+t.TempDir())...)
		completed, err := options.Complete(t.Context())
		errs := []error{err}
		if err == nil {
			errs = completed.Validate()
		}
		flag, _, _ := strings.Cut(args[0], "=")
		if !slices.ContainsFunc(errs, func(err error) bool { return err != nil && strings.Contains(err.Error(), strings.TrimLeft(flag, "-")) }) {
			t.Errorf("%s: %v", args[0], errs)
		}
	}
}
