package distrust

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestEchoOnlyForDistrustedProxies(t *testing.T) {
	someone := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	for name, test := range map[string]struct {
		tls       *tls.ConnectionState
		challenge []string
		believed  bool
		want      bool
	}{
		"a proxy that is not believed":     {tls: someone, challenge: []string{"secret"}, want: true},
		"another challenge":                {tls: someone, challenge: []string{"guessed"}},
		"two challenges":                   {tls: someone, challenge: []string{"secret", "secret"}},
		"a proxy of before":                {tls: someone},
		"a believed proxy, a refused user": {tls: someone, challenge: []string{"secret"}, believed: true},
		"no certificate":                   {tls: &tls.ConnectionState{}, challenge: []string{"secret"}},
		"no TLS":                           {challenge: []string{"secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
			req := httptest.NewRequest(http.MethodPost, "/api", nil)
			req.TLS = test.tls
			if test.challenge != nil {
				req.Header[ChallengeHeader] = test.challenge
			}
			answer := httptest.NewRecorder()
			if test.believed {
				RemoveChallenge(req.Header)
			}
			WithEcho(refuse).ServeHTTP(answer, req)
			if got := Echoed(answer.Header(), "secret"); got != test.want || answer.Code != http.StatusUnauthorized {
				t.Errorf("code %d, marked: %v", answer.Code, got)
			}
		})
	}
}
