package node

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/cli"
)

// certificateValidity is the validity of certificates of kubelet, which asks for the next one
// after seven to nine tenths of it.
const certificateValidity = 4 * time.Minute

// clientCertificate returns the certificate that kubelet uses.
func (n *Node) clientCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(n.file("pki", "kubelet-client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	t.Fatal("kubelet has no client certificate")
	return nil
}

// checkRotation waits until kubelet has another certificate, which it has asked for as the
// node that it is, and checks that it works with it.
func checkRotation(t *testing.T, k cli.Command, n *Node, first *x509.Certificate) {
	deadline := first.NotAfter
	next := n.clientCertificate(t)
	for ; next.SerialNumber.Cmp(first.SerialNumber) == 0; next = n.clientCertificate(t) {
		if time.Now().After(deadline) {
			t.Fatalf("the certificate has expired, and kubelet has no other: %s", k.Run("get", "csr"))
		}
		time.Sleep(time.Second)
	}
	if want := "system:node:" + n.Name; next.Subject.CommonName != want || !next.NotAfter.After(first.NotAfter) {
		t.Errorf("the certificate is that of %s until %v, want %s after %v", next.Subject.CommonName, next.NotAfter, want, first.NotAfter)
	}
	if users := k.Run("get", "csr", "-o", "jsonpath={.items[*].spec.username}"); !strings.Contains(users, "system:node:"+n.Name) {
		t.Errorf("certificates were requested by %s", users)
	}
	time.Sleep(time.Until(first.NotAfter) + time.Second)
	k.Run("run", "renewed", "--image="+ToolsImage, "--image-pull-policy=Never", "--", "sleep", "600")
	k.Run("wait", "--for=condition=Ready", "pod/renewed", "--timeout=120s")
}
