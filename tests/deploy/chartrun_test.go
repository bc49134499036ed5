package deploy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"triune.dev/tests/deploy/engine"
)

// TestChartRuns does what kubelets would: it runs the containers of the chart, with the
// programs, flags, files and rights that are rendered, reachable under the names of
// their Services. Everything becomes ready, helm test's Job succeeds, and the token for
// Prometheus opens the metrics of every tier, which reads its events from NATS.
func TestChartRuns(t *testing.T) {
	full(t)
	needEngine(t)
	ctx := t.Context()
	if _, err := engine.Images(ctx, tierServices...); err != nil {
		t.Fatal(err)
	}
	standIns, err := engine.StandIns(ctx, "etcd", "nats-server")
	if err != nil {
		t.Fatal(err)
	}
	set := []string{"api.service.port=6443"} // there is nothing that translates ports
	for _, tier := range tierServices {
		set = append(set, tier+".image.repository=triune-test/"+tier)
	}
	for i, store := range []string{"etcd", "nats"} {
		_, image, _ := strings.Cut(standIns[i], "=")
		repository, tag, _ := strings.Cut(image, ":")
		set = append(set, fmt.Sprintf("%[1]s.image.registry=,%[1]s.image.repository=%[2]s,%[1]s.image.tag=%[3]s", store, repository, tag))
	}
	r := render(t, filepath.Join(chart(t), "ci", "small-values.yaml"), set...)
	if len(r.templates()) != 7 || len(r.jobs) != 2 {
		t.Fatalf("%d workloads, %d of them jobs, want three tiers, etcd, NATS, the job of etcd's users and helm test's", len(r.templates()), len(r.jobs))
	}
	k := &kubelet{r: r, network: "triune-test-chart-" + strconv.Itoa(os.Getpid()), dir: t.TempDir()}
	if _, err := engine.Docker(ctx, "network", "create", k.network); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for _, id := range k.ids {
			if logs, err := engine.Logs(ctx, id); t.Failed() && err == nil {
				t.Log(logs[max(0, len(logs)-4<<10):])
			}
			_, _ = engine.Docker(ctx, "rm", "--force", "--volumes", id)
		}
		if _, err := engine.Docker(ctx, "network", "rm", k.network); err != nil {
			t.Error(err)
		}
	})

	addresses := map[string]string{}
	for name, template := range r.templates() {
		if r.jobs[name] != nil {
			continue
		}
		for _, c := range template.Spec.Containers {
			addresses[name] = k.start(t, name, template, c, "--detach", "--restart=on-failure")
		}
	}
	for name, template := range r.templates() {
		for _, c := range template.Spec.Containers {
			if c.ReadinessProbe != nil {
				eventually(t, 2*time.Minute, func() error { return probe(c, addresses[name]) })
			}
		}
	}
	for _, job := range r.jobs {
		for _, c := range job.Spec.Template.Spec.Containers {
			eventually(t, 2*time.Minute, func() error {
				_, err := k.run(t, job.Name, job.Spec.Template, c, "--rm")
				return err
			})
		}
	}
	for _, tier := range tierServices {
		name := "t-triune-" + tier
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(r.secrets[name].Data["ca.crt"])
		// As the ServiceMonitor says.
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name + ".default.svc.cluster.local"}}}
		want := fmt.Sprintf("triune_eventlog_from_stream{tier=%q} 1\n", tier)
		eventually(t, time.Minute, func() error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addresses[name]+":6443/metrics", nil)
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+r.secrets["t-triune-tokens"].StringData["monitoring"])
			metrics, err := fetch(client, request)
			if err == nil && !strings.Contains(metrics, want) {
				err = fmt.Errorf("%s has no %q", name, want)
			}
			return err
		})
	}
}

// kubelet runs pods with Docker.
type kubelet struct {
	r            rendered
	network, dir string
	ids          []string
}

// start runs a container and returns its address.
func (k *kubelet) start(t *testing.T, name string, template corev1.PodTemplateSpec, c corev1.Container, flags ...string) string {
	t.Helper()
	id, err := k.run(t, name, template, c, flags...)
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(id)
	k.ids = append(k.ids, id)
	address, err := engine.Docker(t.Context(), "inspect", fmt.Sprintf("--format={{(index .NetworkSettings.Networks %q).IPAddress}}", k.network), id)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

func (k *kubelet) run(t *testing.T, name string, template corev1.PodTemplateSpec, c corev1.Container, flags ...string) (string, error) {
	t.Helper()
	user := template.Spec.SecurityContext
	args := slices.Concat([]string{"run", "--network=" + k.network, fmt.Sprintf("--user=%d:%d", *user.RunAsUser, *user.RunAsGroup)}, flags)
	if s := c.SecurityContext; *s.ReadOnlyRootFilesystem && !*s.AllowPrivilegeEscalation {
		args = append(args, "--read-only", "--security-opt=no-new-privileges:true")
	}
	for _, capability := range c.SecurityContext.Capabilities.Drop {
		args = append(args, "--cap-drop="+string(capability))
	}
	for service, o := range k.r.services {
		if !selects(o.Spec.Selector, template.Labels) {
			continue
		}
		host := service + ".default.svc.cluster.local"
		args = append(args, "--network-alias="+service, "--network-alias="+host)
		if k.r.sets[name] != nil {
			args = append(args, "--network-alias="+name+"-0."+host)
		}
	}
	expand := []string{}
	for _, variable := range c.Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef.FieldPath == "metadata.name" {
			value = name + "-0"
		}
		args = append(args, "--env="+variable.Name+"="+value)
		expand = append(expand, "$("+variable.Name+")", value)
	}
	for _, mount := range c.VolumeMounts {
		at := slices.IndexFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if at < 0 {
			t.Fatalf("%s has no volume %s", name, mount.Name)
		}
		volume := template.Spec.Volumes[at]
		if volume.EmptyDir != nil {
			args = append(args, "--tmpfs="+mount.MountPath+":mode=1777")
			continue
		}
		args = append(args, "--volume="+k.files(t, name, volume)+":"+mount.MountPath+":ro")
	}
	command := c.Args
	if len(c.Command) > 0 {
		args = append(args, "--entrypoint="+c.Command[0])
		command = slices.Concat(c.Command[1:], c.Args)
	}
	args = append(args, c.Image)
	for _, argument := range command {
		args = append(args, strings.NewReplacer(expand...).Replace(argument))
	}
	return engine.Docker(t.Context(), args...)
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// files is a directory with what a Secret or a ConfigMap has for a volume.
func (k *kubelet) files(t *testing.T, pod string, volume corev1.Volume) string {
	t.Helper()
	dir := filepath.Join(k.dir, pod, volume.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data, items := map[string][]byte{}, []corev1.KeyToPath(nil)
	switch {
	case volume.Secret != nil && k.r.secrets[volume.Secret.SecretName] != nil:
		secret := k.r.secrets[volume.Secret.SecretName]
		maps.Copy(data, secret.Data)
		for key, value := range secret.StringData {
			data[key] = []byte(value)
		}
		items = volume.Secret.Items
	case volume.ConfigMap != nil && k.r.maps[volume.ConfigMap.Name] != nil:
		for key, value := range k.r.maps[volume.ConfigMap.Name].Data {
			data[key] = []byte(value)
		}
		items = volume.ConfigMap.Items
	default:
		t.Fatalf("%s: nothing is rendered for the volume %+v", pod, volume)
	}
	if items == nil {
		for key := range data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			t.Fatalf("%s: %s has no %s", pod, volume.Name, item.Key)
		}
		if err := os.WriteFile(filepath.Join(dir, item.Path), value, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// probe asks what the readiness probe of a container asks.
func probe(c corev1.Container, address string) error {
	get := c.ReadinessProbe.HTTPGet
	port := get.Port.IntValue()
	for _, p := range c.Ports {
		if p.Name == get.Port.StrVal {
			port = int(p.ContainerPort)
		}
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s://%s:%d%s", scheme, address, port, get.Path), nil)
	if err != nil {
		return err
	}
	// A kubelet verifies nothing, either.
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	_, err = fetch(client, request)
	return err
}

func fetch(client *http.Client, request *http.Request) (string, error) {
	resp, err := client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s: %.500s", request.URL, resp.Status, body))
	}
	return string(body), errors.Join(err, resp.Body.Close())
}
