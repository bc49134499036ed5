package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// rendered has the objects of the chart that the tests check, by name.
type rendered struct {
	deployments map[string]*appsv1.Deployment
	sets        map[string]*appsv1.StatefulSet
	jobs        map[string]*batchv1.Job
	services    map[string]*corev1.Service
	budgets     map[string]*policyv1.PodDisruptionBudget
	scalers     map[string]*autoscalingv2.HorizontalPodAutoscaler
	policies    map[string]*networkingv1.NetworkPolicy
	cronJobs    map[string]*batchv1.CronJob
	roles       map[string]*rbacv1.Role
	secrets     map[string]*corev1.Secret
	maps        map[string]*corev1.ConfigMap
}

// render returns the output of helm template, for a release t with one of the value sets of
// ci/ and additional values.
func render(t *testing.T, values string, set ...string) rendered {
	t.Helper()
	r := rendered{
		map[string]*appsv1.Deployment{}, map[string]*appsv1.StatefulSet{}, map[string]*batchv1.Job{}, map[string]*corev1.Service{},
		map[string]*policyv1.PodDisruptionBudget{}, map[string]*autoscalingv2.HorizontalPodAutoscaler{}, map[string]*networkingv1.NetworkPolicy{},
		map[string]*batchv1.CronJob{}, map[string]*rbacv1.Role{}, map[string]*corev1.Secret{}, map[string]*corev1.ConfigMap{},
	}
	args := []string{"template", "t", chart(t), "--values", values}
	for _, value := range set {
		args = append(args, "--set", value)
	}
	out := helm(t).must(t, args...)
	for document := range strings.SplitSeq(out, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "Deployment":
			decode(t, document, object.Name, r.deployments)
		case "StatefulSet":
			decode(t, document, object.Name, r.sets)
		case "Job":
			decode(t, document, object.Name, r.jobs)
		case "Service":
			decode(t, document, object.Name, r.services)
		case "PodDisruptionBudget":
			decode(t, document, object.Name, r.budgets)
		case "HorizontalPodAutoscaler":
			decode(t, document, object.Name, r.scalers)
		case "NetworkPolicy":
			decode(t, document, object.Name, r.policies)
		case "CronJob":
			decode(t, document, object.Name, r.cronJobs)
		case "Role":
			decode(t, document, object.Name, r.roles)
		case "Secret":
			decode(t, document, object.Name, r.secrets)
		case "ConfigMap":
			decode(t, document, object.Name, r.maps)
		}
	}
	return r
}

func decode[T any](t *testing.T, document, name string, into map[string]*T) {
	t.Helper()
	into[name] = new(T)
	if err := yaml.UnmarshalStrict([]byte(document), into[name]); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// templates returns the pod templates of all workloads.
func (r rendered) templates() map[string]corev1.PodTemplateSpec {
	all := map[string]corev1.PodTemplateSpec{}
	for name, o := range r.deployments {
		all[name] = o.Spec.Template
	}
	for name, o := range r.sets {
		all[name] = o.Spec.Template
	}
	for name, o := range r.jobs {
		all[name] = o.Spec.Template
	}
	for name, o := range r.cronJobs {
		all[name] = o.Spec.JobTemplate.Spec.Template
	}
	return all
}

// TestChartPodsAreConfined checks that every pod, with every value set, meets the Pod
// Security Standard "restricted" and has the resources that a quota requires.
func TestChartPodsAreConfined(t *testing.T) {
	for _, values := range valueSets(t) {
		t.Run(filepath.Base(values), func(t *testing.T) {
			for name, template := range render(t, values).templates() {
				spec := template.Spec
				pod := spec.SecurityContext
				if pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || pod.SeccompProfile == nil || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%s: security of the pod is %+v", name, pod)
				}
				// The job of certificates needs a token to write Secrets.
				if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken != (template.Labels["app.kubernetes.io/component"] == "pki") {
					t.Errorf("%s: a token of the cluster is mounted", name)
				}
				for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
					s := c.SecurityContext
					if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
						s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
						t.Errorf("%s/%s: security of the container is %+v", name, c.Name, s)
					}
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("%s/%s: resources are %+v", name, c.Name, c.Resources)
					}
					// A sidecar has no probes.
					if spec.RestartPolicy != corev1.RestartPolicyNever && c.RestartPolicy == nil && (c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil) {
						t.Errorf("%s/%s: a probe is missing", name, c.Name)
					}
				}
			}
		})
	}
}

// TestChartTiers checks that each tier has a headless Service, which the tier in front uses
// for balancing, a disruption budget and, on request, an autoscaler, all for the pods of
// its Deployment, and that a rollout keeps all replicas.
func TestChartTiers(t *testing.T) {
	r := render(t, filepath.Join(chart(t), "ci", "full-values.yaml"))
	for _, tier := range tierServices {
		name := "t-triune-" + tier
		d, service, budget, scaler, policy := r.deployments[name], r.services[name], r.budgets[name], r.scalers[name], r.policies[name]
		if d == nil || service == nil || budget == nil || scaler == nil || policy == nil {
			t.Fatalf("%s: Deployment %v, Service %v, PodDisruptionBudget %v, HorizontalPodAutoscaler %v, NetworkPolicy %v",
				name, d != nil, service != nil, budget != nil, scaler != nil, policy != nil)
		}
		pods := d.Spec.Selector.MatchLabels
		for what, selects := range map[string]map[string]string{"Service": service.Spec.Selector, "budget": budget.Spec.Selector.MatchLabels, "policy": policy.Spec.PodSelector.MatchLabels} {
			if diff := cmp.Diff(pods, selects); diff != "" || pods["app.kubernetes.io/component"] != tier {
				t.Errorf("%s: pods of the %s (-Deployment +%s):\n%s", name, what, what, diff)
			}
		}
		for key, value := range pods {
			if d.Spec.Template.Labels[key] != value {
				t.Errorf("%s: pods have %s=%q, want %q", name, key, d.Spec.Template.Labels[key], value)
			}
		}
		if service.Spec.ClusterIP != corev1.ClusterIPNone {
			t.Errorf("%s: the Service has the address %q", name, service.Spec.ClusterIP)
		}
		if rolling := d.Spec.Strategy.RollingUpdate; rolling == nil || rolling.MaxUnavailable.IntValue() != 0 || rolling.MaxSurge.IntValue() != 1 {
			t.Errorf("%s: rolls by %+v", name, rolling)
		}
		if d.Spec.Replicas != nil || scaler.Spec.ScaleTargetRef.Name != name {
			t.Errorf("%s: %v replicas beside a scaler of %s", name, d.Spec.Replicas, scaler.Spec.ScaleTargetRef.Name)
		}
	}
	if image := r.deployments["t-triune-core"].Spec.Template.Spec.Containers[0].Image; !strings.HasPrefix(image, "registry.example:5000/triune/core@sha256:") {
		t.Errorf("the image of core is %s", image)
	}
	if service := r.services["t-triune"]; service == nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.Spec.Selector["app.kubernetes.io/component"] != "aggregator" {
		t.Errorf("the Service of clients is %+v", service)
	}
}

// TestChartPolicies checks that a tier accepts connections only from its clients, and that
// etcd and NATS connect only to their own members; egress of tiers is limited on request.
func TestChartPolicies(t *testing.T) {
	open := render(t, filepath.Join(chart(t), "ci", "default-values.yaml"))
	limited := render(t, filepath.Join(chart(t), "ci", "full-values.yaml"))
	for component, test := range map[string]struct {
		from, to []string // components; empty for everybody
		always   bool     // limited by default
	}{
		"aggregator": {nil, []string{"core", "etcd", "nats"}, false},
		"core":       {[]string{"aggregator", "extensions"}, []string{"extensions", "etcd", "nats"}, false},
		"extensions": {[]string{"core"}, []string{"core", "etcd", "nats"}, false},
		"etcd":       {[]string{"aggregator", "core", "extensions", "etcd-roles", "etcd"}, []string{"etcd"}, true},
		"nats":       {[]string{"aggregator", "core", "extensions", "nats"}, []string{"nats"}, true},
	} {
		for what, r := range map[string]rendered{"by default": open, "limited": limited} {
			// Nothing connects to the job that holds the keys of authorities.
			if pki := r.policies["t-triune-pki"]; pki == nil || len(pki.Spec.Ingress) > 0 || !slices.Equal(pki.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
				t.Errorf("%s: the policy of the job of certificates is %+v", what, pki)
			}
			policy := r.policies["t-triune-"+component]
			if policy == nil {
				t.Fatalf("%s has no NetworkPolicy", component)
			}
			var from, to []string
			for _, rule := range policy.Spec.Ingress {
				from = append(from, components(rule.From)...)
			}
			for _, rule := range policy.Spec.Egress {
				to = append(to, components(rule.To)...)
				if len(rule.To) == 0 && !slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntValue() == 53 }) {
					t.Errorf("%s: %s may connect to everybody: %+v", what, component, rule)
				}
			}
			if diff := cmp.Diff(test.from, from); diff != "" {
				t.Errorf("%s: who connects to %s (-want +got):\n%s", what, component, diff)
			}
			if !test.always && what == "by default" {
				if slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
					t.Errorf("%s is limited unasked", component)
				}
				continue
			}
			if diff := cmp.Diff(test.to, to); diff != "" || !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
				t.Errorf("%s: whom %s connects to, by %v (-want +got):\n%s", what, component, policy.Spec.PolicyTypes, diff)
			}
		}
	}
}

// components returns the names of the chart's components among peers.
func components(peers []networkingv1.NetworkPolicyPeer) (names []string) {
	for _, peer := range peers {
		if peer.PodSelector != nil {
			names = append(names, peer.PodSelector.MatchLabels["app.kubernetes.io/component"])
		}
	}
	return names
}

// TestChartImages checks that registry and tag of Triune's images are set once, as in
// README.md, that each image may have its own, and that other images keep theirs.
func TestChartImages(t *testing.T) {
	image := func(name string, set ...string) string {
		t.Helper()
		return render(t, filepath.Join(chart(t), "ci", "default-values.yaml"), set...).templates()["t-triune-"+name].Spec.Containers[0].Image
	}
	const everywhere = "global.imageRegistry=registry.example.com,global.imageTag=v1"
	for got, want := range map[string]string{
		image("core"):             "triune/core:dev",
		image("core", everywhere): "registry.example.com/triune/core:v1",
		image("test", everywhere): "registry.example.com/triune/aggregator:v1",
		image("extensions", everywhere, "extensions.image.tag=v2"): "registry.example.com/triune/extensions:v2",
		image("nats", everywhere):                                  "docker.io/library/nats:2.15.2",
	} {
		if got != want {
			t.Errorf("the image is %s, want %s", got, want)
		}
	}
}

// TestChartStores checks that etcd and NATS are either the chart's own, with three members,
// volumes and disruption budgets, or those in the values, with their credentials.
func TestChartStores(t *testing.T) {
	own := render(t, filepath.Join(chart(t), "ci", "default-values.yaml"))
	for _, name := range []string{"t-triune-etcd", "t-triune-nats"} {
		set, service, budget := own.sets[name], own.services[name], own.budgets[name]
		if set == nil || service == nil || budget == nil {
			t.Fatalf("%s: StatefulSet %v, Service %v, PodDisruptionBudget %v", name, set != nil, service != nil, budget != nil)
		}
		if *set.Spec.Replicas != 3 || len(set.Spec.VolumeClaimTemplates) != 1 || set.Spec.ServiceName != name || service.Spec.ClusterIP != corev1.ClusterIPNone {
			t.Errorf("%s: %d replicas, %d volumes each, Service %s with address %q", name, *set.Spec.Replicas, len(set.Spec.VolumeClaimTemplates), set.Spec.ServiceName, service.Spec.ClusterIP)
		}
	}
	if retention := own.sets["t-triune-etcd"].Spec.PersistentVolumeClaimRetentionPolicy; retention.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Errorf("etcd's volumes: %+v", retention)
	}
	// Each tier is a user of etcd, and only the job that creates the users is root.
	for name, secret := range map[string]string{
		"t-triune-aggregator": "t-triune-etcd-aggregator", "t-triune-core": "t-triune-etcd-core", "t-triune-extensions": "t-triune-etcd-extensions",
		"t-triune-etcd-roles": "t-triune-etcd-root", "t-triune-etcd": "t-triune-etcd-server",
	} {
		var mounted []string
		for _, volume := range own.templates()[name].Spec.Volumes {
			if volume.Secret != nil && strings.Contains(volume.Secret.SecretName, "-etcd-") {
				mounted = append(mounted, volume.Secret.SecretName)
			}
		}
		if diff := cmp.Diff([]string{secret}, mounted); diff != "" {
			t.Errorf("Secrets of etcd that %s mounts (-want +got):\n%s", name, diff)
		}
	}
	others := render(t, filepath.Join(chart(t), "ci", "external-values.yaml"))
	if len(others.sets) > 0 || others.jobs["t-triune-etcd-roles"] != nil {
		t.Errorf("%d StatefulSets and %d jobs beside an etcd and a NATS of others", len(others.sets), len(others.jobs))
	}
	for tier, secret := range map[string]string{"aggregator": "nats-a", "core": "nats-c", "extensions": "nats-e"} {
		spec := others.deployments["t-triune-"+tier].Spec.Template.Spec
		for _, flag := range []string{"--etcd-servers=https://etcd.example.com:2379", "--nats-url=tls://nats.example.com:4222"} {
			if !slices.Contains(spec.Containers[0].Args, flag) {
				t.Errorf("%s has no %s: %v", tier, flag, spec.Containers[0].Args)
			}
		}
		mounted := map[string]string{}
		for _, volume := range spec.Volumes {
			if volume.Secret != nil {
				mounted[volume.Name] = volume.Secret.SecretName
			}
		}
		if mounted["etcd"] != "etcd-client" || mounted["nats"] != secret || mounted["serving"] != "corp-"+tier {
			t.Errorf("%s mounts %v", tier, mounted)
		}
	}
}

// TestChartValuesAreDocumented checks that every value has a comment in the form of
// helm-docs, or the value of the same name in the first block: core's are described at
// aggregator, those of NATS at etcd.
func TestChartValuesAreDocumented(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart(t), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var documented, path []string
	values, comment := 0, ""
	key := regexp.MustCompile(`^( *)(\w+):(.*)$`)
	for line := range strings.Lines(string(data)) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "#") {
			comment += text
			continue
		}
		if m := key.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			path = append(path[:len(m[1])/2], m[2])
			name := strings.Join(path, ".")
			if strings.HasPrefix(comment, "# --") {
				documented = append(documented, name)
			}
			if m[3] != "" { // not a block
				values++
				rest := strings.Join(path[1:], ".")
				if !slices.ContainsFunc(documented, func(other string) bool {
					for _, same := range []string{name, "aggregator." + rest, "etcd." + rest} {
						// One comment may describe a block, or each of its values may have
						// its own.
						if other == same || strings.HasPrefix(same, other+".") || strings.HasPrefix(other, same+".") {
							return true
						}
					}
					return false
				}) {
					t.Errorf("%s is not documented", name)
				}
			}
		}
		comment = ""
	}
	if values < 100 {
		t.Errorf("only %d values were read", values)
	}
}
