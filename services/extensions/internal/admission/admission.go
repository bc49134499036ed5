// Package admission configures the admission plugins of the extensions tier.
//
// Most of kube-apiserver's plugins handle one built-in kind. This tier runs those that
// handle every object: namespace lifecycle, owner references, policies, webhooks and quota,
// in kube-apiserver's order. [NewOptions] and [Initializers] are fields of options.Tier.
package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"

	"triune.dev/shared/program/options"
)

// order is the order in which the plugins run.
var order = []string{
	lifecycle.PluginName,
	gc.PluginName,
	mutatingpolicy.PluginName,
	mutatingwebhook.PluginName,
	validatingpolicy.PluginName,
	validatingwebhook.PluginName,
	resourcequota.PluginName,
}

// NewOptions returns the flags of admission with the plugins of this tier. The same plugins
// are on by default as in kube-apiserver.
func NewOptions() *genericoptions.AdmissionOptions {
	o := genericoptions.NewAdmissionOptions()
	gc.Register(o.Plugins)
	resourcequota.Register(o.Plugins)
	o.RecommendedPluginOrder = slices.Clone(order)
	o.DefaultOffPlugins = sets.New(gc.PluginName)
	return o
}

// Initializers returns the initializers of plugins that only this tier has.
func Initializers(*options.Config) ([]admission.PluginInitializer, error) {
	return []admission.PluginInitializer{objectCounts{}}, nil
}

// objectCounts configures quota without evaluators. The plugin then makes evaluators that
// count objects (count/widgets.example.com), the only quota of custom resources.
type objectCounts struct{}

func (objectCounts) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration([]quota.Evaluator{}, nil))
	}
}
