package deploy

import (
	"context"
	"crypto/tls"
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

	"triune.dev/tests/cluster"
	"triune.dev/tests/deploy/engine"
)

// TestChartRuns runs the containers of the chart as kubelets would: with the rendered
// programs, flags, files and permissions, under the names of their Services, and with the
// Secrets of the chart's own job. Everything becomes ready, helm test's Job succeeds, and
// Prometheus' certificate gives access to the metrics of every tier, which gets its events
// from NATS. Then all leaf certificates are renewed under load, and all authorities are
// replaced.
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
	set := []string{"api.service.port=6443"} // nothing translates ports here
	for _, tier := range tierServices {
		set = append(set, tier+".image.repository=triune-test/"+tier)
	}
	for i, store := range []string{"etcd", "nats"} {
		_, image, _ := strings.Cut(standIns[i], "=")
		repository, tag, _ := strings.Cut(image, ":")
		set = append(set, fmt.Sprintf("%[1]s.image.registry=,%[1]s.image.repository=%[2]s,%[1]s.image.tag=%[3]s", store, repository, tag))
	}
	values := filepath.Join(chart(t), "ci", "small-values.yaml")
	r := render(t, values, set...)
	if len(r.templates()) != 10 || len(r.jobs) != 4 {
		t.Fatalf("%d workloads, %d of them jobs, want three tiers, etcd, NATS, the job of etcd's users, helm test's, and three for certificates", len(r.templates()), len(r.jobs))
	}
	h := hostOf(t, cluster.Run(t, cluster.Config{Topology: cluster.Triune}), values, set...)
	job := r.jobs["t-triune-pki-hook"].Spec.Template.Spec
	if _, err := h.pkiSecrets(ctx, job, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	r.secrets = h.secrets(t)
	k := &kubelet{r: r, network: "triune-test-chart-" + strconv.Itoa(os.Getpid()), dir: t.TempDir(), mounted: map[string]corev1.Volume{}}
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
		for _, dir := range k.written {
			owner := fmt.Sprintf("--owner=%d:%d", os.Getuid(), os.Getgid())
			if _, err := engine.Docker(ctx, "run", "--rm", "--user=0:0", "--network=none", "--tmpfs=/pki", "--volume="+dir+":/given", "triune-test/aggregator:dev", "pki", "--dir=/pki", owner, "--give=/given"); err != nil {
				t.Error(err)
			}
		}
		if _, err := engine.Docker(ctx, "network", "rm", k.network); err != nil {
			t.Error(err)
		}
	})

	addresses := map[string]string{}
	for name, template := range r.templates() {
		if r.jobs[name] != nil || r.cronJobs[name] != nil {
			continue
		}
		for _, c := range template.Spec.Containers {
			addresses[name] = k.start(t, name, template, c, "--detach", "--restart=on-failure")
		}
		for _, c := range template.Spec.InitContainers {
			if c.RestartPolicy == nil || !*template.Spec.ShareProcessNamespace {
				t.Fatalf("%s/%s is no sidecar that sees the processes of the others", name, c.Name)
			}
			pod := "container:" + k.ids[len(k.ids)-1]
			id, err := k.run(t, name, template, c, "--detach", "--restart=on-failure", "--network="+pod, "--pid="+pod)
			if err != nil {
				t.Fatal(err)
			}
			k.ids = append(k.ids, strings.TrimSpace(id))
		}
	}
	for name, template := range r.templates() {
		for _, c := range template.Spec.Containers {
			if c.ReadinessProbe != nil {
				eventually(t, 2*time.Minute, func() error { return probe(c, addresses[name]) })
			}
		}
	}
	for name, job := range r.jobs {
		if job.Labels["app.kubernetes.io/component"] != "pki" {
			k.runJob(t, name)
		}
	}
	for _, tier := range tierServices {
		name := "t-triune-" + tier
		// As configured in the ServiceMonitor.
		client := clientWith(t, r.secrets["t-triune-monitoring"], name+".default.svc.cluster.local")
		client.Transport.(*http.Transport).DisableKeepAlives = true
		want := fmt.Sprintf("triune_eventlog_from_stream{tier=%q} 1\n", tier)
		eventually(t, time.Minute, func() error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addresses[name]+":6443/metrics", nil)
			if err != nil {
				return err
			}
			metrics, err := fetch(client, request)
			if err == nil && !strings.Contains(metrics, want) {
				err = fmt.Errorf("%s has no %q", name, want)
			}
			return err
		})
	}

	before := maps.Clone(r.secrets)
	h.apply(t, values, append(set, "tls.selfSigned.lifetime=2000h", "tls.adminLifetime=40h")...)
	if _, err := h.pkiSecrets(ctx, job, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	maps.Copy(k.r.secrets, h.secrets(t))
	k.surviveRenewal(t, before, addresses)
	k.surviveRotation(t, h, values, set)
}

// kubelet runs pods with Docker.
type kubelet struct {
	r            rendered
	network, dir string
	ids          []string
	// mounted has the volumes of Secrets with files, by directory.
	mounted map[string]corev1.Volume
	// written are the directories that containers write, as different users.
	written []string
}

// start starts a container and returns its address.
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

// runJob runs the containers of a Job until they succeed.
func (k *kubelet) runJob(t *testing.T, name string) {
	t.Helper()
	template := k.r.jobs[name].Spec.Template
	for _, c := range template.Spec.Containers {
		eventually(t, 2*time.Minute, func() error {
			_, err := k.run(t, name, template, c, "--rm")
			return err
		})
	}
}

func (k *kubelet) run(t *testing.T, name string, template corev1.PodTemplateSpec, c corev1.Container, flags ...string) (string, error) {
	t.Helper()
	user := template.Spec.SecurityContext
	args := slices.Concat([]string{"run", fmt.Sprintf("--user=%d:%d", *user.RunAsUser, *user.RunAsGroup)}, flags)
	sidecar := replaced(flags, "--network")
	if !sidecar {
		args = append(args, "--network="+k.network)
	}
	if s := c.SecurityContext; *s.ReadOnlyRootFilesystem && !*s.AllowPrivilegeEscalation {
		args = append(args, "--read-only", "--security-opt=no-new-privileges:true")
	}
	for _, capability := range c.SecurityContext.Capabilities.Drop {
		args = append(args, "--cap-drop="+string(capability))
	}
	for service, o := range k.r.services {
		if sidecar || !selects(o.Spec.Selector, template.Labels) {
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
		// A tmpfs is not shared, and does not survive a restart.
		if volume.EmptyDir != nil && k.r.sets[name] != nil {
			args = append(args, "--volume="+k.scratch(t, name, volume)+":"+mount.MountPath)
			continue
		}
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

// scratch returns a directory that the containers of a pod share and keep.
func (k *kubelet) scratch(t *testing.T, pod string, volume corev1.Volume) string {
	t.Helper()
	dir := filepath.Join(k.dir, pod, volume.Name)
	k.written = append(k.written, dir)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// files returns a directory with the content of a Secret or ConfigMap for a volume. Like
// kubelets it uses a link, so that all files change at once and the old ones disappear.
func (k *kubelet) files(t *testing.T, pod string, volume corev1.Volume) string {
	t.Helper()
	dir := filepath.Join(k.dir, pod, volume.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k.write(t, dir, volume)
	if volume.Secret != nil {
		k.mounted[dir] = volume
	}
	return dir
}

func (k *kubelet) write(t *testing.T, dir string, volume corev1.Volume) {
	t.Helper()
	data, items := map[string][]byte{}, []corev1.KeyToPath(nil)
	switch {
	case volume.Secret != nil && k.r.secrets[volume.Secret.SecretName] != nil:
		data, items = k.r.secrets[volume.Secret.SecretName].Data, volume.Secret.Items
	case volume.ConfigMap != nil && k.r.maps[volume.ConfigMap.Name] != nil:
		for key, value := range k.r.maps[volume.ConfigMap.Name].Data {
			data[key] = []byte(value)
		}
		items = volume.ConfigMap.Items
	default:
		t.Fatalf("%s: nothing is there for the volume %+v", dir, volume)
	}
	if items == nil {
		for key := range data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	version, err := os.MkdirTemp(dir, "..version-") //nolint:usetesting // beside the link to it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(version, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			t.Fatalf("%s has no %s", dir, item.Key)
		}
		if err := os.WriteFile(filepath.Join(version, item.Path), value, 0o644); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, item.Path)
		if err := os.Symlink(filepath.Join("..data", item.Path), link); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "..data")
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(filepath.Base(version), link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
		t.Fatal(err)
	}
	// Programs that watch a file see it disappear.
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			t.Fatal(err)
		}
	}
}

// probe executes the readiness probe of a container.
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
	// A kubelet does not verify certificates, either.
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
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		err = errors.Join(err, fmt.Errorf("%s: %s: %.500s", request.URL, resp.Status, body))
	}
	return string(body), errors.Join(err, resp.Body.Close())
}
