package operator

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"triune.dev/shared/testing/polltest"
	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
	"triune.dev/tests/hooks"
)

var target, replicas = cluster.SuiteFlags(cluster.ToCompare, 2)

//go:embed lamps.yaml
var manifests string

const (
	namespace = "default"
	// patience bounds each wait. Leader election alone takes up to 15 s.
	patience = time.Minute
	// crowd is the number of lamps that are made at once.
	crowd = 200
)

// TestOperator runs the operator with both servers at once, and compares what a user of lamps
// sees.
func TestOperator(t *testing.T) {
	if testing.Short() {
		t.Skip("two control planes for one test (-short)")
	}
	ctrl.SetLogger(logr.Discard())
	var seen [2][]string
	t.Run("on", func(t *testing.T) {
		for i, topology := range []cluster.Topology{cluster.KubeAPIServer, cluster.Topology(*target)} {
			t.Run(fmt.Sprint(i, " ", topology), func(t *testing.T) {
				t.Parallel()
				seen[i] = newScene(t, topology).play()
			})
		}
	})
	t.Log(strings.Join(seen[1], "\n"))
	if diff := gocmp.Diff(seen[0], seen[1]); diff != "" {
		t.Errorf("(-kube-apiserver +%s):\n%s", *target, diff)
	}
}

// scene is a server with two operators, of which one leads.
type scene struct {
	t       *testing.T
	cluster *cluster.Cluster
	kubectl cli.Command
	client  client.Client // without a cache
	// leader answers no webhooks, so that it can be stopped.
	leader, follower *running

	mu       sync.Mutex
	warnings []string // that the client has got since the last note; guarded by mu
	noted    []string // guarded by mu
}

func newScene(t *testing.T, topology cluster.Topology) *scene {
	s := &scene{t: t, cluster: cluster.Run(t, cluster.Config{Topology: topology, Replicas: *replicas})}
	if _, err := s.cluster.StartControllerManager(t.Context()); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	addLamps(scheme)
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	certificate, err := hooks.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl = cli.Kubectl(t, s.cluster.Kubeconfig, namespace)
	s.kubectl.Stdin(strings.NewReplacer("URL", fmt.Sprint("https://127.0.0.1:", port),
		"CA", base64.StdEncoding.EncodeToString(certificate.CA)).Replace(manifests)).Run("apply", "-f", "-")
	s.kubectl.Run("wait", "--for=condition=Established", "crd/lamps.operator.example.com")
	s.client = s.newClient(scheme)
	s.leader = s.start(scheme, certificate, 0)
	s.until("the first operator leads", func() bool { return isClosed(s.leader.manager.Elected()) })
	s.follower = s.start(scheme, certificate, port)
	s.until("the webhooks are served", func() bool {
		return s.follower.manager.GetWebhookServer().StartedChecker()(nil) == nil
	})
	return s
}

func (s *scene) newClient(scheme *runtime.Scheme) client.Client {
	config, err := s.cluster.REST()
	if err != nil {
		s.t.Fatal(err)
	}
	config.WarningHandlerWithContext = s
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (s *scene) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// running is an operator that runs.
type running struct {
	operator *Operator
	manager  manager.Manager
	stop     context.CancelFunc
	ended    chan error
}

// start starts an operator, which takes part in the election of a leader.
func (s *scene) start(scheme *runtime.Scheme, certificate *hooks.Certificate, port int) *running {
	config, err := s.cluster.REST()
	if err != nil {
		s.t.Fatal(err)
	}
	if port == 0 {
		if port, err = cluster.FreePort(); err != nil {
			s.t.Fatal(err)
		}
	}
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "lamps.operator.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		WebhookServer:                 webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, TLSOpts: certificate.Options()}),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	r := &running{operator: &Operator{}, manager: m, ended: make(chan error, 1)}
	if err := r.operator.Add(m); err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	r.stop = stop
	go func() { r.ended <- m.Start(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-r.ended; err != nil {
			s.t.Errorf("an operator: %v", err)
		}
	})
	return r
}

// play does what people do with lamps, and returns what they see.
func (s *scene) play() []string {
	s.convert()
	s.refuse()
	s.own()
	s.crowd()
	s.restart()
	s.failOver()
	s.end()
	return s.noted
}

// note records what was seen, with the warnings before it.
func (s *scene) note(what string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var status apierrors.APIStatus
	if err, ok := value.(error); ok && errors.As(err, &status) {
		value = fmt.Sprint(status.Status().Code, " ", status.Status().Reason, ": ", err)
	}
	s.noted = append(s.noted, fmt.Sprintf("%s: %v %q", what, value, s.warnings))
	s.warnings = nil
}

func (s *scene) until(what string, attempt func() bool) {
	s.t.Helper()
	polltest.Until(s.t, patience, what, attempt)
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// get reads an object, whose name and type are those of into.
func (s *scene) get(into client.Object) error {
	return s.client.Get(s.t.Context(), client.ObjectKeyFromObject(into), into)
}

// awaitLit waits until a lamp is lit, and returns it.
func (s *scene) awaitLit(name string) *Lamp {
	s.t.Helper()
	lamp := newLamp(name, 0, "")
	s.until(name+" is lit", func() bool {
		s.must(s.get(lamp))
		return lamp.lit()
	})
	return lamp
}

func newLamp(name string, percent int, color string) *Lamp {
	return &Lamp{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: LampSpec{Percent: percent, Color: color}}
}

func newOldLamp(name string, brightness int) *OldLamp {
	return &OldLamp{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: OldLampSpec{Brightness: brightness}}
}

// convert writes in one version and reads in the other.
func (s *scene) convert() {
	ctx := s.t.Context()
	old := newOldLamp("old", 40)
	s.must(s.client.Create(ctx, old))
	s.note("created as v1", fmt.Sprint(old.Spec, old.Annotations))
	lamp := s.awaitLit("old")
	s.note("read as v2", fmt.Sprint(lamp.Spec, lamp.Annotations, lamp.Finalizers, lamp.Generation))
	s.must(s.get(old))
	s.note("its status in v1", fmt.Sprint(old.Status.ObservedGeneration, old.Status.Conditions[0].Reason))

	s.must(s.client.Create(ctx, newLamp("new", 70, "red")))
	s.awaitLit("new")
	old = newOldLamp("new", 0)
	s.must(s.get(old))
	s.note("a v2 read as v1", fmt.Sprint(old.Spec, old.Annotations))
	old.Spec.Brightness = 20
	s.must(s.client.Update(ctx, old))
	lamp = s.awaitLit("new")
	s.note("updated as v1, read as v2", fmt.Sprint(lamp.Spec, lamp.Annotations, lamp.Generation))
	s.must(s.client.Patch(ctx, old, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"brightness":25}}`))))
	s.note("patched as v1", fmt.Sprint(old.Spec, old.Annotations))

	var list OldLampList
	s.must(s.client.List(ctx, &list, client.InNamespace(namespace)))
	for i := range list.Items {
		s.note("in a list of v1", fmt.Sprint(list.Items[i].APIVersion, list.Items[i].Name, list.Items[i].Spec))
	}
	s.note("a table of v1", s.kubectl.Run("get", "lamps.v1.operator.example.com"))
	s.note("a table of v2", s.kubectl.Run("get", "lamps.v2.operator.example.com"))

	var lamps LampList
	s.until("the index of the cache knows the lamps", func() bool {
		s.must(s.leader.manager.GetClient().List(ctx, &lamps, client.MatchingFields{colorIndex: "red"}))
		return len(lamps.Items) > 0
	})
	s.note("red ones", fmt.Sprint(len(lamps.Items), lamps.Items[0].Name))
	var notes []string
	s.until("the events are written", func() bool {
		var written eventsv1.EventList
		s.must(s.client.List(ctx, &written, client.InNamespace(namespace)))
		for i := range written.Items {
			if event := &written.Items[i]; event.Regarding.Name == "new" {
				notes = append(notes, event.Reason+": "+event.Note)
			}
		}
		return len(notes) > 0
	})
	s.note("events", notes)
}

// refuse writes what the schema, the webhooks or the conversion do not let pass.
func (s *scene) refuse() {
	ctx := s.t.Context()
	s.note("against the schema", s.client.Create(ctx, newLamp("bad", 101, "")))
	s.note("against the schema of v1", s.client.Create(ctx, newOldLamp("bad", 101)))
	s.note("against the webhook", s.client.Create(ctx, newLamp("bad", 95, "black")))
	s.note("a dry run with a warning", s.client.Create(ctx, newOldLamp("bright", 95), client.DryRunAll))
	old := newOldLamp("old", 0)
	s.must(s.get(old))
	old.Annotations = map[string]string{colorAnnotation: "black"}
	s.note("against the webhook, by v1", s.client.Update(ctx, old))
	lamp := newLamp("old", 0, "")
	s.must(s.get(lamp))
	lamp.ResourceVersion = "1"
	s.note("a stale update", s.client.Update(ctx, lamp))
	s.must(s.get(lamp))
	lamp.Status.Conditions = append(lamp.Status.Conditions, lamp.Status.Conditions[0])
	s.note("a condition twice", s.client.Status().Update(ctx, lamp))
	s.note("kept", func() error {
		s.must(s.client.Patch(ctx, lamp, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"keep":"yes"}}}`))))
		return s.client.Delete(ctx, lamp)
	}())
	s.must(s.client.Patch(ctx, lamp, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`))))
}

// own spoils and deletes what the operator owns.
func (s *scene) own() {
	ctx := s.t.Context()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lamp-new"}}
	s.until("the ConfigMap follows", func() bool { return s.get(config) == nil && config.Data["percent"] == "25" })
	owner := metav1.GetControllerOf(config)
	s.note("owned", fmt.Sprint(owner.APIVersion, owner.Kind, owner.Name, *owner.BlockOwnerDeletion, config.Data))
	id := config.UID
	config.Data["percent"] = "99"
	s.must(s.client.Update(ctx, config))
	s.until("it is mended", func() bool { return s.get(config) == nil && config.Data["percent"] == "25" })
	s.note("the same one", config.UID == id)
	s.must(s.client.Delete(ctx, config))
	s.until("it is made again", func() bool { return s.get(config) == nil && config.UID != id })
}

// crowd makes many lamps at once, in both versions.
func (s *scene) crowd() {
	ctx := s.t.Context()
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := w; i < crowd; i += 8 {
				var lamp client.Object = newLamp(fmt.Sprintf("crowd-%03d", i), i%91, "blue")
				if i%2 == 1 {
					lamp = newOldLamp(lamp.GetName(), i%91)
				}
				if err := s.client.Create(ctx, lamp); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	s.note("crowd", s.awaitAllLit())
	s.note("a page of them", func() string {
		var page OldLampList
		s.must(s.client.List(ctx, &page, client.InNamespace(namespace), client.Limit(50)))
		return fmt.Sprint(len(page.Items), page.Items[0].Name, *page.RemainingItemCount)
	}())
}

// awaitAllLit waits until all lamps are lit and have a ConfigMap, and returns their number.
func (s *scene) awaitAllLit() int {
	s.t.Helper()
	ctx := s.t.Context()
	var lamps LampList
	s.until("all lamps are lit", func() bool {
		if err := s.client.List(ctx, &lamps, client.InNamespace(namespace)); err != nil {
			return false // the server may be restarting
		}
		return !slices.ContainsFunc(lamps.Items, func(l Lamp) bool { return !l.lit() })
	})
	var configs corev1.ConfigMapList
	s.must(s.client.List(ctx, &configs, client.InNamespace(namespace)))
	of := map[string]string{}
	for i := range configs.Items {
		of[configs.Items[i].Name] = configs.Items[i].Data["percent"]
	}
	for i := range lamps.Items {
		if lamp := &lamps.Items[i]; of["lamp-"+lamp.Name] != fmt.Sprint(lamp.Spec.Percent) {
			s.t.Errorf("%s has %d percent, its ConfigMap %q", lamp.Name, lamp.Spec.Percent, of["lamp-"+lamp.Name])
		}
	}
	return len(lamps.Items)
}

// restart restarts every server, one by one, while lamps change.
func (s *scene) restart() {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			lamp := newLamp(fmt.Sprintf("crowd-%03d", i%crowd), 0, "")
			change := fmt.Appendf(nil, `{"spec":{"percent":%d}}`, i%89)
			_ = s.client.Patch(ctx, lamp, client.RawPatch("application/merge-patch+json", change)) // the server may be restarting
			time.Sleep(10 * time.Millisecond)
		}
	})
	for _, tier := range s.cluster.ServingTiers() {
		for i := range s.cluster.Replicas(tier) {
			s.must(s.cluster.Restart(ctx, tier, i))
		}
	}
	cancel()
	changes.Wait()
	s.note("after restarts", s.awaitAllLit())
}

// failOver stops the leader and waits for the other operator.
func (s *scene) failOver() {
	s.leader.stop()
	s.until("the other operator leads", func() bool { return isClosed(s.follower.manager.Elected()) })
	lamp := newLamp("new", 0, "")
	s.must(s.get(lamp))
	lamp.Spec.Percent = 55
	s.must(s.client.Update(s.t.Context(), lamp))
	s.note("after a change of the leader", s.awaitLit("new").Spec)
}

// end deletes a lamp, all lamps, a namespace with one, and the CRD.
func (s *scene) end() {
	ctx := s.t.Context()
	s.must(s.client.Delete(ctx, newOldLamp("new", 0)))
	s.until("the lamp and what it owned are gone", func() bool {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lamp-new"}}
		return apierrors.IsNotFound(s.get(newLamp("new", 0, ""))) && apierrors.IsNotFound(s.get(config))
	})
	s.must(s.client.DeleteAllOf(ctx, &Lamp{}, client.InNamespace(namespace)))
	s.until("all are gone", func() bool {
		var lamps LampList
		var configs corev1.ConfigMapList
		s.must(errors.Join(s.client.List(ctx, &lamps, client.InNamespace(namespace)), s.client.List(ctx, &configs, client.InNamespace(namespace))))
		return len(lamps.Items) == 0 && !slices.ContainsFunc(configs.Items, func(c corev1.ConfigMap) bool { return strings.HasPrefix(c.Name, "lamp-") })
	})

	s.kubectl.Run("create", "namespace", "house")
	lamp := newLamp("inside", 10, "")
	lamp.Namespace = "house"
	s.must(s.client.Create(ctx, lamp))
	s.until("the controller has seen it", func() bool { return s.get(lamp) == nil && lamp.lit() })
	s.kubectl.Run("delete", "namespace", "house", "--timeout=60s")

	s.kubectl.Run("delete", "crd", "lamps.operator.example.com", "--timeout=60s")
	// The text has details only if the server answers with plain text, as kube-apiserver does.
	s.note("without its CRD", apierrors.ReasonForError(s.client.Create(ctx, newLamp("late", 1, ""))))
	s.follower.operator.mu.Lock()
	defer s.follower.operator.mu.Unlock()
	released := s.follower.operator.released
	slices.Sort(released)
	s.note("released", slices.Compact(released))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
