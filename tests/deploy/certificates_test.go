package deploy

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// checkCertificates checks that the chart's serving certificates are signed by the CA
// beside them, are valid for the names of their servers, and for 90 days, including those
// that an earlier version had issued for ten years.
func checkCertificates(t *testing.T, kubectl program, namespace string) {
	t.Helper()
	var secrets corev1.SecretList
	if err := json.Unmarshal([]byte(kubectl.must(t, "get", "secrets", "-l", "app.kubernetes.io/component=pki", "-o", "json")), &secrets); err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{
		"-aggregator":  {"cp-triune-aggregator", "cp-triune." + namespace + ".svc", "kubernetes.default.svc", "localhost", "10.96.0.1", "127.0.0.1"},
		"-core":        {"cp-triune-core", "cp-triune-core." + namespace + ".svc", "localhost"},
		"-extensions":  {"cp-triune-extensions", "cp-triune-extensions." + namespace + ".svc", "localhost"},
		"-etcd-server": {"cp-triune-etcd." + namespace + ".svc.cluster.local", "cp-triune-etcd-0.cp-triune-etcd." + namespace + ".svc.cluster.local", "localhost"},
		"-nats-server": {"cp-triune-nats." + namespace + ".svc.cluster.local", "cp-triune-nats-0.cp-triune-nats." + namespace + ".svc.cluster.local", "localhost"},
	}
	const day = 24 * time.Hour
	for _, secret := range secrets.Items {
		if secret.Data["tls.crt"] == nil {
			continue // signing keys
		}
		block, _ := pem.Decode(secret.Data["tls.crt"])
		if block == nil {
			t.Errorf("%s: no certificate", secret.Name)
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Errorf("%s: %v", secret.Name, err)
			continue
		}
		least, most := 60*day, 90*day
		switch {
		case certificate.IsCA:
			least, most = 365*day, 3650*day
		case strings.HasSuffix(secret.Name, "-admin"):
			least, most = day, 2*day
		}
		if left := time.Until(certificate.NotAfter); left < least || left > most {
			t.Errorf("%s holds for %v, want %v to %v", secret.Name, left, least, most)
		}
		if certificate.IsCA {
			continue
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(secret.Data["ca.crt"]) {
			t.Errorf("%s: no authority beside the certificate", secret.Name)
			continue
		}
		if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%s: %v", secret.Name, err)
		}
		for suffix, wanted := range names {
			if secret.Name != "cp-triune"+suffix {
				continue
			}
			for _, name := range wanted {
				if err := certificate.VerifyHostname(name); err != nil {
					t.Errorf("%s: %v", secret.Name, err)
				}
			}
			delete(names, suffix)
		}
	}
	for suffix := range names {
		t.Errorf("no secret has the certificate of %s", suffix)
	}
}
