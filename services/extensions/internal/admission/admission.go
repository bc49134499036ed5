// Package admission names the admission plugins that mean something for custom
// resources and their definitions, and gives them what they need.
//
// Most of kube-apiserver's plugins look at one built-in kind. What remains is what
// looks at every object: the lifecycle of its namespace, policies and webhooks,
// quota, and who may make whom its owner. They run in kube-apiserver's order.
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

// order is that in which the plugins run.
var order = []string{
	lifecycle.PluginName,
	gc.PluginName,
	mutatingpolicy.PluginName,
	mutatingwebhook.PluginName,
	validatingpolicy.PluginName,
	validatingwebhook.PluginName,
	resourcequota.PluginName,
}

// NewOptions returns the flags of admission with the plugins of this tier. Those
// are on by default that kube-apiserver has on by default.
func NewOptions() *genericoptions.AdmissionOptions {
	o := genericoptions.NewAdmissionOptions()
	gc.Register(o.Plugins)
	resourcequota.Register(o.Plugins)
	o.RecommendedPluginOrder = slices.Clone(order)
	o.DefaultOffPlugins = sets.New(gc.PluginName)
	return o
}

// Initializers returns what gives the plugins that every tier does not have what
// they need.
func Initializers(*options.Config) ([]admission.PluginInitializer, error) {
	return []admission.PluginInitializer{objectCounts{}}, nil
}

// objectCounts configures quota to count objects and nothing else: the plugin
// makes the evaluator of a resource it has none for (count/widgets.example.com)
// by itself, and custom resources have no other quota.
type objectCounts struct{}

func (objectCounts) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration([]quota.Evaluator{}, nil))
	}
}
