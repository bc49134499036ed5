package admission

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// marker is a plugin that labels the objects it admits and refuses those it was told to.
type marker struct {
	*admission.Handler
	name    string
	config  string // from the configuration file
	refuses bool
	drained <-chan struct{}
}

func (m *marker) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := a.GetObject().(*corev1.Pod)
	pod.Labels = map[string]string{"order": pod.Labels["order"] + m.name + m.config}
	return nil
}

func (m *marker) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	if m.refuses {
		return errors.New(m.name + " refuses")
	}
	return nil
}

// SetDrainedNotification makes marker a plugin with background work.
func (m *marker) SetDrainedNotification(drained <-chan struct{}) { m.drained = drained }
func (m *marker) ValidateInitialization() error                  { return nil }

// options returns options with plugins A, B (disabled by default) and C, in this order.
func options(made map[string]*marker) *genericoptions.AdmissionOptions {
	o := genericoptions.NewAdmissionOptions()
	o.Plugins = admission.NewPlugins()
	for _, name := range []string{"A", "B", "C"} {
		o.Plugins.Register(name, func(config io.Reader) (admission.Interface, error) {
			m := &marker{Handler: admission.NewHandler(admission.Create, admission.Update), name: name}
			if config != nil {
				text, err := io.ReadAll(config)
				if err != nil {
					return nil, err
				}
				m.config = string(text)
			}
			made[name] = m
			return m, nil
		})
	}
	o.RecommendedPluginOrder = []string{"A", "B", "C"}
	o.DefaultOffPlugins.Delete(o.DefaultOffPlugins.UnsortedList()...)
	o.DefaultOffPlugins.Insert("B")
	return o
}

func dependencies() Dependencies {
	g := &genericapiserver.Config{FeatureGate: utilfeature.DefaultFeatureGate, EffectiveVersion: compatibility.DefaultBuildEffectiveVersion()}
	g.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	client := fake.NewClientset()
	return Dependencies{Generic: g, Client: client, Dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme), Informers: informers.NewSharedInformerFactory(client, 0)}
}

// create runs the chain on a pod and returns the plugins in the order in which they saw it.
func create(t *testing.T, chain admission.Interface) (order string, err error) {
	t.Helper()
	pod := &corev1.Pod{}
	a := admission.NewAttributesRecord(pod, nil, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "x", "p",
		schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", admission.Create, nil, false, nil)
	// Handlers call each interface if the chain implements it.
	mutating, ok := chain.(admission.MutationInterface)
	if !ok {
		t.Fatal("handlers would not call what mutates")
	}
	if err := mutating.Admit(t.Context(), a, nil); err != nil {
		return "", err
	}
	validating, ok := chain.(admission.ValidationInterface)
	if !ok {
		t.Fatal("handlers would not call what validates")
	}
	return pod.Labels["order"], validating.Validate(t.Context(), a, nil)
}

func TestChainIsWhatTheFlagsSay(t *testing.T) {
	tests := map[string]struct {
		enable, disable, only []string
		want                  string
	}{
		"default":              {want: "AC"},
		"enabled":              {enable: []string{"B"}, want: "ABC"},
		"disabled":             {disable: []string{"A"}, want: "C"},
		"enabled and disabled": {enable: []string{"A"}, disable: []string{"A", "C"}, want: "A"},
		"of this tier":         {enable: []string{"B"}, only: []string{"C", "B"}, want: "BC"},
		"none of this tier":    {only: []string{}, want: ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o, deps := options(map[string]*marker{}), dependencies()
			o.EnablePlugins, o.DisablePlugins, deps.Only = test.enable, test.disable, test.only
			chain, err := New(o, deps)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := create(t, chain); got != test.want || err != nil {
				t.Errorf("ran %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestChainRefuses(t *testing.T) {
	made := map[string]*marker{}
	chain, err := New(options(made), dependencies())
	if err != nil {
		t.Fatal(err)
	}
	made["C"].refuses = true
	if _, err := create(t, chain); err == nil || !strings.Contains(err.Error(), "C refuses") {
		t.Errorf("got %v", err)
	}
	if chain.Handles(admission.Connect) || !chain.Handles(admission.Create) {
		t.Error("it does not handle what its plugins handle")
	}
}

func TestChainWithoutPlugins(t *testing.T) {
	chain := &Chain{Interface: admission.NewHandler(admission.Create)}
	if _, err := create(t, chain); err != nil {
		t.Error(err)
	}
}

func TestConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("c.yaml", "!")
	o := options(map[string]*marker{})
	o.ConfigFile = write("admission.yaml", "kind: AdmissionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nplugins:\n- {name: C, path: c.yaml}\n")
	chain, err := New(o, dependencies())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := create(t, chain); got != "AC!" || err != nil {
		t.Errorf("ran %q, %v", got, err)
	}
	for name, text := range map[string]string{"not YAML": "{", "unknown kind": "kind: Gizmo\napiVersion: apiserver.config.k8s.io/v1\n"} {
		o.ConfigFile = write("bad.yaml", text)
		if _, err := New(o, dependencies()); err == nil || !strings.Contains(err.Error(), "--admission-control-config-file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewNeedsClients(t *testing.T) {
	for name, spoil := range map[string]func(*Dependencies){
		"informers": func(d *Dependencies) { d.Informers = nil },
		"client":    func(d *Dependencies) { d.Client = nil },
		"dynamic":   func(d *Dependencies) { d.Dynamic = nil },
	} {
		deps := dependencies()
		spoil(&deps)
		if _, err := New(options(map[string]*marker{}), deps); err == nil {
			t.Errorf("no error without %s", name)
		}
	}
}

// TestPluginsEndWithTheHook: their background work would otherwise outlive the server.
func TestPluginsEndWithTheHook(t *testing.T) {
	made := map[string]*marker{}
	chain, err := New(options(made), dependencies())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := chain.Hook(genericapiserver.PostStartHookContext{Context: ctx}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-made["A"].drained:
		t.Error("ended while the server runs")
	default:
	}
	cancel()
	for _, m := range made {
		select {
		case <-m.drained:
		case <-time.After(30 * time.Second):
			t.Errorf("%s has not been told", m.name)
		}
	}
}

func TestEnabledKeepsTheOrder(t *testing.T) {
	o := options(map[string]*marker{})
	o.EnablePlugins = []string{"C", "B", "A"}
	if diff := cmp.Diff([]string{"A", "B", "C"}, Enabled(o)); diff != "" {
		t.Error(diff)
	}
	o.EnablePlugins = nil
	if got := Enabled(o); slices.Contains(got, "B") {
		t.Errorf("enabled %v", got)
	}
}
