package identity

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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const tokenID, tokenSecret = "joiner", "0123456789abcdef"

// TestJoin lets a node join as kubeadm does: with only a bootstrap token it reads the
// cluster's identity, verifies it by the signature with that token, requests a certificate
// that kube-controller-manager approves and signs, and then authenticates with it.
func TestJoin(t *testing.T) {
	full(t)
	s, ctx := site.tested, t.Context()
	manager, err := s.cluster.StartControllerManager(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		manager.Kill()
		if t.Failed() {
			t.Log(manager.Log(8 << 10))
		}
	})
	const info = "apiVersion: v1\nkind: Config\nclusters: [{name: here, cluster: {server: https://192.0.2.1:6443}}]\n"
	prepareJoin(t, s.admin, info)

	anybody := rest.AnonymousClientConfig(restConfig(t, s))
	stranger := kubernetes.NewForConfigOrDie(anybody)
	eventually(t, func(ctx context.Context) error {
		m, err := stranger.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, "cluster-info", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return signedBy(m.Data["jws-kubeconfig-"+tokenID], info)
	})

	for _, wrong := range []string{tokenID + ".0123456789abcdee", "joiner", "joiner.", ".0123456789abcdef", "nobody.0123456789abcdef", "unused.0123456789abcdef", "ended1.0123456789abcdef"} {
		if a, err := s.identify(ctx, credential{token: wrong}); err != nil || a.Code != 401 {
			t.Errorf("%s: %+v, %v, want 401", wrong, a, err)
		}
	}
	u := s.expect(t, tokenID+"."+tokenSecret, "system:bootstrap:"+tokenID)
	if want := []string{"system:bootstrappers", "system:bootstrappers:here", "system:authenticated"}; !slices.Equal(u.Groups, want) {
		t.Errorf("groups %q, want %q", u.Groups, want)
	}

	anybody.BearerToken = tokenID + "." + tokenSecret
	certificate := signedRequest(t, kubernetes.NewForConfigOrDie(anybody), pkix.Name{CommonName: "system:node:joined", Organization: []string{"system:nodes"}})
	a, err := s.identify(ctx, credential{certificate: certificate})
	if err != nil || a.User.Username != "system:node:joined" || !slices.Contains(a.User.Groups, "system:nodes") {
		t.Errorf("the node: %+v, %v", a, err)
	}

	if err := s.admin.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, "bootstrap-token-"+tokenID, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.expect(t, tokenID+"."+tokenSecret, "")
}

// prepareJoin creates what kubeadm creates in a new cluster.
func prepareJoin(t *testing.T, admin *kubernetes.Clientset, info string) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	bind := func(role, group string) error {
		_, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "join-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: group}},
		}, create)
		return err
	}
	token := func(id, use, expires string) error {
		_, err := admin.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
			StringData: map[string]string{
				"token-id": id, "token-secret": tokenSecret, "expiration": expires, "auth-extra-groups": "system:bootstrappers:here",
				"usage-bootstrap-signing": "true", "usage-bootstrap-authentication": use,
			},
		}, create)
		return err
	}
	hour := func(n time.Duration) string { return time.Now().Add(n * time.Hour).UTC().Format(time.RFC3339) }
	_, configMap := admin.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": info},
	}, create)
	_, role := admin.RbacV1().Roles(metav1.NamespacePublic).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"cluster-info"}, Verbs: []string{"get"}}},
	}, create)
	_, binding := admin.RbacV1().RoleBindings(metav1.NamespacePublic).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "cluster-info"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:anonymous"}},
	}, create)
	err := errors.Join(configMap, role, binding,
		token(tokenID, "true", hour(1)), token("unused", "false", hour(1)), token("ended1", "true", hour(-1)),
		bind("system:node-bootstrapper", "system:bootstrappers:here"),
		bind("system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers:here"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // other tests expect it to be forbidden
		if err := admin.RbacV1().RoleBindings(metav1.NamespacePublic).Delete(context.WithoutCancel(ctx), "cluster-info", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// signedBy returns an error unless signature, a JSON Web Signature without its content (RFC
// 7515, appendix F), was made with the bootstrap token.
func signedBy(signature, content string) error {
	head, tail, ok := strings.Cut(signature, "..")
	if !ok {
		return fmt.Errorf("no signature: %q", signature)
	}
	parsed, err := jose.ParseSigned(head + "." + encoded([]byte(content)) + "." + tail)
	if err != nil {
		return err
	}
	_, err = parsed.Verify([]byte(tokenSecret))
	return err
}

// signedRequest requests a client certificate, and waits until it is approved and signed.
func signedRequest(t *testing.T, client kubernetes.Interface, subject pkix.Name) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	var made *certificatesv1.CertificateSigningRequest
	eventually(t, func(ctx context.Context) error { // the permissions are new
		made, err = requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "join-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
		return err
	})
	var signed []byte
	eventually(t, func(ctx context.Context) error {
		request, err := requests.Get(ctx, made.Name, metav1.GetOptions{})
		if err == nil && len(request.Status.Certificate) == 0 {
			err = fmt.Errorf("not signed: %+v", request.Status)
		}
		if err == nil {
			signed = request.Status.Certificate
		}
		return err
	})
	block, _ := pem.Decode(signed)
	if block == nil {
		t.Fatalf("no certificate: %s", signed)
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

func restConfig(t *testing.T, s *server) *rest.Config {
	t.Helper()
	config, err := s.cluster.REST()
	if err != nil {
		t.Fatal(err)
	}
	return config
}
