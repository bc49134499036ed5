package handover

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/shared/process/pki"
)

func certificates(t testing.TB) []*x509.Certificate {
	t.Helper()
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var chain []*x509.Certificate
	for _, pair := range []pki.Pair{made.Admin, made.ClusterCA} {
		certificate, err := pair.Load()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(certificate.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, leaf)
	}
	return chain
}

func TestCredentialRoundTrip(t *testing.T) {
	chain := certificates(t)
	asserted := http.Header{"X-Remote-User": {"Ünï & co="}, "X-Remote-Group": {"a", "b,c"}}
	for name, test := range map[string]struct {
		chain    []*x509.Certificate
		header   http.Header
		asserted http.Header
	}{
		"nothing":               {nil, http.Header{}, nil},
		"a certificate":         {chain[:1], http.Header{}, nil},
		"two":                   {chain, http.Header{}, nil},
		"a token":               {nil, http.Header{"Authorization": {"Bearer x"}}, nil},
		"a token of a browser":  {nil, http.Header{"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.eA, v5"}}, nil},
		"what a proxy asserts":  {chain, http.Header{"Authorization": {"Bearer x"}}, asserted},
		"what a client asserts": {nil, http.Header{}, asserted},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "/api", nil)
			req.Header, req.TLS = test.header, &tls.ConnectionState{PeerCertificates: test.chain}
			credential := FromRequest(req, test.asserted)
			sent := http.Header{}
			credential.SetHeaders(sent)
			size := 0
			for _, values := range sent {
				for _, value := range values {
					size += len(value)
				}
			}
			if credential.Size() < size {
				t.Errorf("size %d, and %d bytes are added", credential.Size(), size)
			}
			value, got, ok, err := Extract(sent)
			if err != nil || !ok {
				t.Fatalf("taken: %v, %v", ok, err)
			}
			if diff := cmp.Diff(test.header, sent); diff != "" {
				t.Errorf("headers that stay (-want +got)\n%s", diff)
			}
			want := test.asserted
			if test.chain == nil {
				want = nil // only a client with a certificate can assert users
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("asserted (-want +got)\n%s", diff)
			}
			parsed, err := ParseCertificates(value)
			if err != nil || !slices.EqualFunc(parsed, test.chain, (*x509.Certificate).Equal) {
				t.Errorf("%d certificates, %v", len(parsed), err)
			}
		})
	}
	if _, _, ok, err := Extract(http.Header{}); ok || err != nil {
		t.Errorf("of nothing: %v, %v", ok, err)
	}
}

// FuzzExtract extracts arbitrary headers, which the holder of the aggregator's key may send: they are
// refused, or setting them again gives the same result.
func FuzzExtract(f *testing.F) {
	f.Add("", "", "")
	f.Add("bm9uZQ==", "X-Remote-User=admin", "X-Remote-Group=system%3Amasters")
	f.Add(",", "%zz", ";")
	f.Fuzz(func(t *testing.T, certificates, asserted, more string) {
		header := http.Header{CertificatesHeader: {certificates}, assertedHeader: {asserted}}
		if more != "" {
			header[assertedHeader] = append(header[assertedHeader], more)
		}
		value, names, ok, err := Extract(header)
		if !ok || len(header) != 0 {
			t.Fatalf("taken: %v, left: %v", ok, header)
		}
		if err != nil {
			return
		}
		chain, err := ParseCertificates(value)
		if err != nil {
			return
		}
		again := http.Header{}
		(&Credential{Certificates: chain, Asserted: names}).SetHeaders(again)
		value, once, _, err := Extract(again)
		if err != nil || len(once) != len(names) {
			t.Fatalf("%q is read as %q, %v", names, once, err)
		}
		if second, err := ParseCertificates(value); err != nil || len(second) != len(chain) {
			t.Fatalf("%d certificates are read as %d, %v", len(chain), len(second), err)
		}
	})
}
