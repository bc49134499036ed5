package core

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"

	"triune.dev/shared/process/pki"
)

// FuzzAuthorizationConfiguration checks that core accepts an AuthorizationConfiguration if and
// only if kube-apiserver does, and that its errors name the flag and the file.
func FuzzAuthorizationConfiguration(f *testing.F) {
	const (
		head    = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
		webhook = "authorizers:\n- {type: Node, name: node}\n- type: Webhook\n  name: w\n  webhook:\n    timeout: 3s\n    authorizedTTL: 30s\n    unauthorizedTTL: 30s\n" +
			"    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: NoOpinion\n    connectionInfo: {type: InClusterConfig}\n"
	)
	for _, text := range []string{
		head + "authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]\n", head + "authorizers: []\n",
		head + webhook, head + webhook + "    matchConditions: [{expression: \"request.resourceAttributes.namespace == 'a'\"}]\n",
		head + webhook + "    matchConditions: [{expression: \"request.user ==\"}]\n",
		head + "authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]\n", head + "authorizers: [{type: Loud, name: a}]\n",
		head + "authorizers: [{type: RBAC, name: a, unknown: 1}]\n", "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: a}]\n",
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[{"type":"AlwaysAllow","name":"a"}]}`,
		head + "kind: Other\n", "&a [*a]", "\x00", "",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "authorization.yaml")
	made, err := pki.Ensure(f.TempDir(), pki.Options{})
	if err != nil {
		f.Fatal(err)
	}
	completed, err := parsed(f,
		"--authorization-config="+file, "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://issuer.example.com",
		"--service-account-key-file="+made.ServiceAccountPublicKey, "--service-account-signing-key-file="+made.ServiceAccountKey,
		"--tls-cert-file="+made.Serving["core"].CertFile, "--tls-private-key-file="+made.Serving["core"].KeyFile,
	).Complete(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	compiler := cel.NewDefaultCompiler()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, refused := authorizer.LoadAndValidateData(data, compiler, nil)
		errs := completed.Validate()
		for _, err := range errs {
			if !strings.HasPrefix(err.Error(), "--authorization-config="+file+": ") {
				t.Errorf("%q: the error does not name both flag and file: %v", data, err)
			}
		}
		if (len(errs) > 0) != (refused != nil) {
			t.Errorf("%q: errors %v, kube-apiserver says %v", data, errs, refused)
		}
	})
}
