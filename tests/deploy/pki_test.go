package deploy

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	keeper "triune.dev/shared/process/pki/secrets"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// host is a namespace of the cluster in which the chart is installed.
type host struct {
	c         *cluster.Cluster
	client    *kubernetes.Clientset
	namespace string
}

// hostOf applies the templates of the job of certificates, as release t: everything that
// the hook needs, except for its Job, which cannot be applied twice.
func hostOf(t *testing.T, c *cluster.Cluster, values string, set ...string) host {
	t.Helper()
	h := host{c, clientOf(t, c), "default"}
	h.apply(t, values, set...)
	return h
}

func (h host) apply(t *testing.T, values string, set ...string) {
	t.Helper()
	args := []string{"template", "t", chart(t), "--namespace=" + h.namespace, "--values", values, "--show-only=templates/pki.yaml"}
	for _, value := range set {
		args = append(args, "--set", value)
	}
	documents := slices.DeleteFunc(strings.Split(helm(t).must(t, args...), "\n---\n"), func(d string) bool { return strings.Contains(d, "\nkind: Job\n") })
	kubectl := program{name: "kubectl", args: []string{"--kubeconfig", h.c.Kubeconfig}, stdin: strings.Join(documents, "\n---\n")}
	kubectl.must(t, "apply", "--server-side", "--force-conflicts", "--filename=-")
}

// kubeconfig writes a kubeconfig with a token of a ServiceAccount, as in a pod.
func (h host) kubeconfig(ctx context.Context, account, dir string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))}}
	token, err := h.client.CoreV1().ServiceAccounts(h.namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: h.c.URL, CertificateAuthority: h.c.PKI.ClusterCA.CertFile}
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c", Namespace: h.namespace}
	config.CurrentContext = "c"
	file := filepath.Join(dir, "kubeconfig")
	return file, clientcmd.WriteToFile(*config, file)
}

// pkiSecrets runs a container of the job of certificates with our program, under its
// ServiceAccount and with its list. It returns the output even with an error.
func (h host) pkiSecrets(ctx context.Context, pod corev1.PodSpec, dir string) (string, error) {
	kubeconfig, err := h.kubeconfig(ctx, pod.ServiceAccountName, dir)
	if err != nil {
		return "", err
	}
	container, volume := pod.Containers[0], pod.Volumes[0]
	if i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil }); i >= 0 {
		volume = pod.Volumes[i]
	}
	list, err := h.client.CoreV1().ConfigMaps(h.namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for name, text := range list.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	binary, err := tools.Binary("triune")
	if err != nil {
		return "", err
	}
	at := container.VolumeMounts[slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume.Name })].MountPath
	args := []string{}
	for _, argument := range container.Args {
		args = append(args, strings.ReplaceAll(argument, at, dir))
	}
	out, err := exec.CommandContext(ctx, binary, append(args, "--kubeconfig="+kubeconfig)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// secrets returns the release's Secrets with certificates and keys, by name.
func (h host) secrets(t *testing.T) map[string]*corev1.Secret {
	t.Helper()
	list, err := h.client.CoreV1().Secrets(h.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=pki"})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*corev1.Secret{}
	for i, s := range list.Items {
		all[s.Name] = &list.Items[i]
	}
	return all
}

// list returns the list of certificates that the chart passes to its job.
func (r rendered) list(t *testing.T) *keeper.List {
	t.Helper()
	file := filepath.Join(t.TempDir(), "certificates.yaml")
	if err := os.WriteFile(file, []byte(r.maps["t-triune-pki"].Data["certificates.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := keeper.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestChartKeysStayApart checks that no pod mounts the key of an authority, that each pod
// mounts exactly its own keys, that no token is in a Secret, and that the job of
// certificates can read and write only the Secrets that it makes.
func TestChartKeysStayApart(t *testing.T) {
	for _, values := range valueSets(t) {
		t.Run(filepath.Base(values), func(t *testing.T) {
			r := render(t, values)
			for name, template := range r.templates() {
				for _, volume := range template.Spec.Volumes {
					if volume.Secret != nil && (strings.HasSuffix(volume.Secret.SecretName, "-ca") || strings.Contains(volume.Secret.SecretName, "token")) {
						t.Errorf("%s mounts %s", name, volume.Secret.SecretName)
					}
				}
				for _, c := range template.Spec.Containers {
					if strings.Contains(strings.Join(c.Args, " "), "token-auth-file") {
						t.Errorf("%s is told a file of tokens", name)
					}
				}
				if account := template.Spec.ServiceAccountName; strings.Contains(account, "-pki") != (template.Labels["app.kubernetes.io/component"] == "pki") {
					t.Errorf("%s is %s", name, account)
				}
			}
			for name, secret := range r.secrets {
				for key := range secret.Data {
					if key != corev1.TLSPrivateKeyKey {
						t.Errorf("the Secret %s has %s, which is rendered", name, key)
					}
				}
				if len(secret.StringData) > 0 {
					t.Errorf("the Secret %s has %d values in plain text", name, len(secret.StringData))
				}
			}
			if r.maps["t-triune-pki"] == nil {
				if len(r.roles) > 0 || len(r.cronJobs) > 0 {
					t.Errorf("%d Roles, %d CronJobs without a list of certificates", len(r.roles), len(r.cronJobs))
				}
				return
			}
			if len(r.secrets) > 0 {
				t.Errorf("%d Secrets are rendered", len(r.secrets))
			}
			list := r.list(t)
			made := map[string]string{} // the user of each Secret
			for _, c := range list.Certificates {
				made[list.Prefix+"-"+c.Name] = c.CommonName
			}
			for _, key := range list.Keys {
				made[list.Prefix+"-"+key] = key
			}
			mounted := map[string][]string{}
			for name, template := range r.templates() {
				for _, volume := range template.Spec.Volumes {
					if volume.Secret != nil {
						mounted[volume.Secret.SecretName] = append(mounted[volume.Secret.SecretName], strings.TrimPrefix(name, "t-triune-"))
						if made[volume.Secret.SecretName] == "" {
							t.Errorf("%s waits for %s, which nobody makes", name, volume.Secret.SecretName)
						}
					}
				}
			}
			for name, users := range mounted {
				if len(users) != 1 {
					t.Errorf("%s is mounted by %v", name, users)
				}
			}
			for _, authority := range list.Authorities {
				made[list.Prefix+"-"+authority.Name] = authority.CommonName
			}
			names := slices.Sorted(maps.Keys(made))
			for _, role := range []string{"t-triune-pki", "t-triune-pki-hook"} {
				if r.roles[role] == nil || len(r.roles[role].Rules) != 2 {
					t.Fatalf("the Role %s is %+v", role, r.roles[role])
				}
				rules := r.roles[role].Rules
				if diff := cmp.Diff(names, slices.Sorted(slices.Values(rules[0].ResourceNames))); diff != "" {
					t.Errorf("%s and the Secrets of the list:\n%s", role, diff)
				}
				// Deletion is only allowed while the release is uninstalled.
				want := []string{"get", "update"}
				if _, ok := r.jobs["t-triune-pki-delete"]; ok && role == "t-triune-pki-hook" {
					want = append(want, "delete")
				}
				if !slices.Equal(rules[0].Verbs, want) || !slices.Equal(rules[1].Verbs, []string{"create"}) || !slices.Equal(rules[1].Resources, []string{"secrets"}) {
					t.Errorf("%s may %v, and %v %v", role, rules[0].Verbs, rules[1].Verbs, rules[1].Resources)
				}
			}
			// After a failed run there must be time for another one before the certificate
			// expires.
			if admin := list.Certificates[slices.IndexFunc(list.Certificates, func(c keeper.Certificate) bool { return c.Name == "admin" })]; admin.Lifetime.Duration != 48*time.Hour || r.cronJobs["t-triune-pki"].Spec.Schedule != "17 */6 * * *" {
				t.Errorf("the administrator's certificate lives %v, and is looked at %s", admin.Lifetime.Duration, r.cronJobs["t-triune-pki"].Spec.Schedule)
			}
		})
	}
}

// TestPKISecrets runs the job of the chart against real servers, under its own
// ServiceAccount: it creates everything once, renews at two thirds, replaces authorities,
// reports broken Secrets, and has no other permissions.
func TestPKISecrets(t *testing.T) {
	full(t)
	values := filepath.Join(chart(t), "ci", "default-values.yaml")
	for _, topology := range []cluster.Topology{cluster.Triune, cluster.KubeAPIServer} {
		t.Run(string(topology), func(t *testing.T) {
			ctx := t.Context()
			h := hostOf(t, cluster.Run(t, cluster.Config{Topology: topology}), values)
			r := render(t, values)
			job := r.jobs["t-triune-pki-hook"].Spec.Template.Spec
			run := func() (string, error) { return h.pkiSecrets(ctx, job, t.TempDir()) }

			out, err := run()
			if err != nil {
				t.Fatal(err)
			}
			list := r.list(t)
			first := h.secrets(t)
			if want := len(list.Authorities) + len(list.Certificates) + len(list.Keys); len(first) != want || strings.Count(out, "it did not exist") != want {
				t.Fatalf("%d Secrets, want %d:\n%s", len(first), want, out)
			}
			if out, err := run(); out != "" || err != nil || !same(first, h.secrets(t)) {
				t.Errorf("a second run has changed something: %s, %v", out, err)
			}

			// From here on with an injected clock, but with the permissions of the CronJob.
			kubeconfig, err := h.kubeconfig(ctx, r.cronJobs["t-triune-pki"].Spec.JobTemplate.Spec.Template.Spec.ServiceAccountName, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			config.QPS = -1
			account, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			renewed := func(after time.Duration) []string {
				t.Helper()
				var names []string
				k := &keeper.Keeper{
					Client: account.CoreV1().Secrets(h.namespace), List: list,
					Now:     func() time.Time { return time.Now().Add(after) },
					Changed: func(name, _ string) { names = append(names, strings.TrimPrefix(name, list.Prefix+"-")) },
				}
				if err := k.Ensure(ctx); err != nil {
					t.Fatal(err)
				}
				return names
			}
			if diff := cmp.Diff([]string{"admin"}, renewed(33*time.Hour)); diff != "" {
				t.Errorf("renewed after 33 hours:\n%s", diff)
			}
			if names := renewed(60 * 24 * time.Hour); len(names) != len(list.Certificates) {
				t.Errorf("renewed after 60 days: %v", names)
			}
			now := h.secrets(t)
			for name, secret := range now {
				kept := strings.HasSuffix(name, "-ca") || name == "t-triune-service-account"
				if bytes.Equal(secret.Data[corev1.TLSPrivateKeyKey], first[name].Data[corev1.TLSPrivateKeyKey]) != kept {
					t.Errorf("the key of %s has been kept: %v", name, !kept)
				}
			}

			h.apply(t, values, "tls.selfSigned.rotation=trust")
			for _, step := range []string{"trust", "issue", ""} {
				job := render(t, values, "tls.selfSigned.rotation="+step).jobs["t-triune-pki-hook"].Spec.Template.Spec
				if _, err := h.pkiSecrets(ctx, job, t.TempDir()); err != nil {
					t.Errorf("rotation %q: %v", step, err)
				}
			}
			for _, authority := range list.Authorities {
				name := list.Prefix + "-" + authority.Name
				if s := h.secrets(t)[name]; bytes.Equal(s.Data["tls.key"], now[name].Data["tls.key"]) || len(s.Data) != 2 {
					t.Errorf("%s has not been replaced: %d values", name, len(s.Data))
				}
			}

			// The Secret has the key of another certificate.
			broken := h.secrets(t)["t-triune-core"]
			broken.Data["tls.key"] = first["t-triune-aggregator"].Data["tls.key"]
			if broken, err = h.client.CoreV1().Secrets(h.namespace).Update(ctx, broken, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			out, err = run()
			if err == nil || !strings.Contains(out, "error: Secret t-triune-core: tls.key does not belong to tls.crt") {
				t.Errorf("a broken Secret: %v, %s", err, out)
			}
			if s := h.secrets(t)["t-triune-core"]; s.ResourceVersion != broken.ResourceVersion {
				t.Error("a broken Secret was overwritten")
			}

			// It cannot read or list the Secrets of others.
			if _, err := h.client.CoreV1().Secrets(h.namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, get := account.CoreV1().Secrets(h.namespace).Get(ctx, "theirs", metav1.GetOptions{})
			_, all := account.CoreV1().Secrets(h.namespace).List(ctx, metav1.ListOptions{})
			remove := account.CoreV1().Secrets(h.namespace).Delete(ctx, "t-triune-core", metav1.DeleteOptions{})
			for what, err := range map[string]error{"get": get, "list": all, "delete": remove} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("%s by the CronJob: %v", what, err)
				}
			}

			// With whenDeleted=Delete no Secret remains.
			h.apply(t, values, "tls.selfSigned.whenDeleted=Delete")
			remover := render(t, values, "tls.selfSigned.whenDeleted=Delete").jobs["t-triune-pki-delete"].Spec.Template.Spec
			if out, err := h.pkiSecrets(ctx, remover, t.TempDir()); err != nil || len(h.secrets(t)) > 0 {
				t.Errorf("%d Secrets are left: %v\n%s", len(h.secrets(t)), err, out)
			}
		})
	}
}

func same(a, b map[string]*corev1.Secret) bool {
	return maps.EqualFunc(a, b, func(a, b *corev1.Secret) bool { return a.ResourceVersion == b.ResourceVersion })
}

// serial returns the serial number of a certificate in PEM.
func serial(data []byte) (string, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return "", errors.New("no certificate")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	return certificate.SerialNumber.String(), nil
}
