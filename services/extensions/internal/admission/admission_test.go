package admission

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"

	triuneadmission "triune.dev/shared/server/admission"
)

// The default plugins run in kube-apiserver's order.
func TestDefaultPlugins(t *testing.T) {
	options := NewOptions()
	want := []string{
		"NamespaceLifecycle",
		"MutatingAdmissionPolicy",
		"MutatingAdmissionWebhook",
		"ValidatingAdmissionPolicy",
		"ValidatingAdmissionWebhook",
		"ResourceQuota",
	}
	if diff := cmp.Diff(want, triuneadmission.Enabled(options)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	options.EnablePlugins = []string{"OwnerReferencesPermissionEnforcement"}
	if enabled := triuneadmission.Enabled(options); !slices.Contains(enabled, "OwnerReferencesPermissionEnforcement") {
		t.Errorf("enabled by flag: %v", enabled)
	}
	for _, name := range options.RecommendedPluginOrder {
		if !slices.Contains(options.Plugins.Registered(), name) {
			t.Errorf("%s is not registered", name)
		}
	}
}

// quotaPlugin is a plugin that wants a quota configuration.
type quotaPlugin struct {
	admission.Interface
	configuration quota.Configuration
}

func (p *quotaPlugin) SetQuotaConfiguration(c quota.Configuration) { p.configuration = c }
func (p *quotaPlugin) ValidateInitialization() error               { return nil }

// The plugin makes the evaluators of custom resources itself, so it must get a configuration
// without any.
func TestQuotaCountsObjects(t *testing.T) {
	initializers, err := Initializers(nil)
	if err != nil {
		t.Fatal(err)
	}
	plugin := &quotaPlugin{}
	for _, i := range initializers {
		i.Initialize(plugin)
	}
	if plugin.configuration == nil || len(plugin.configuration.Evaluators()) != 0 {
		t.Errorf("configuration %v", plugin.configuration)
	}
}
