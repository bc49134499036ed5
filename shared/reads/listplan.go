package reads

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"triune.dev/shared/etcdstore"
)

// plan is what a LIST asks for.
type plan struct {
	// prefix of the keys in the collection; with single, the key of the object.
	prefix string
	single bool
	// tokenPrefix is what the keys in continue tokens are relative to.
	tokenPrefix string

	// exact is the revision to list at, 0 for a recent one; atLeast is the revision
	// that a recent one must have reached, and newest asks for etcd's.
	exact, atLeast int64
	newest         bool
	// start is the key to begin with, empty for the first.
	start string
	// limit is the number of objects after which to stop, 0 for none.
	limit int64

	label labels.Selector
	field fields.Selector
	// byKey: the key of an object says all that field asks for.
	byKey bool
	// indexed is as from etcdstore.IndexOf; nil also where the index is not asked.
	indexed *fields.Requirement
	// options are what continue tokens are made with.
	options storage.ListOptions
}

// selects tells whether not all objects of the collection are wanted.
func (p *plan) selects() bool { return !p.options.Predicate.Empty() }

// planList understands a request as upstream's ListResource, registry.Store.List and
// etcdstore do together. ok is false where the fallback is to answer.
func (h *Handlers) planList(req *http.Request) (p plan, ok bool) {
	info, ok := requestInfo(req)
	if !ok {
		return p, false
	}
	p.label, p.field = labels.Everything(), fields.Everything()
	options, ok := h.listOptions(req, info.Name)
	if !ok {
		return p, false
	}
	if options.LabelSelector != nil {
		p.label = options.LabelSelector
	}
	if options.FieldSelector != nil {
		p.field = options.FieldSelector
	}
	p.byKey = !slices.ContainsFunc(p.field.Requirements(), func(r fields.Requirement) bool { return !metadataField(r.Field) })
	p.options = storage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		Recursive:            true,
		Predicate:            storage.SelectionPredicate{Label: p.label, Field: p.field, Limit: options.Limit, Continue: options.Continue},
	}
	if !h.place(&p, info.Namespace) {
		return p, false
	}
	exact, start, err := storage.ValidateListOptions(p.prefix, h.versioner, p.options)
	if err != nil {
		return p, false
	}
	version, err := h.versioner.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return p, false
	}
	p.exact, p.start, p.limit = exact, start, options.Limit
	if exact == 0 {
		p.atLeast = int64(version)
		p.newest = options.ResourceVersion == "" || start != ""
	}
	if options.ResourceVersion == "0" && !h.config.Uncached {
		p.limit = 0 // kube-apiserver's watch cache answers whole
	}
	if p.limit > 0 && exact == 0 && start == "" && !h.config.Uncached {
		p.indexed = etcdstore.IndexOf(storage.SelectionPredicate{Field: p.field, IndexFields: h.config.IndexFields})
	}
	return p, true
}

// place decides which keys are listed: a selector may name one namespace or object.
func (h *Handlers) place(p *plan, namespace string) bool {
	if namespace == "" {
		if selected, ok := p.options.Predicate.MatchesSingleNamespace(); ok && len(validation.ValidateNamespaceName(selected, false)) == 0 {
			namespace = selected
		}
	}
	if name, ok := p.options.Predicate.MatchesSingle(); ok {
		if key, ok := h.key(namespace, name); ok {
			p.options.Recursive = false
			p.prefix, p.single = key, true
			return true
		}
	}
	root, ok := h.root(namespace)
	if !ok {
		return false
	}
	p.prefix = collection(root)
	p.tokenPrefix = p.prefix
	if !h.config.Uncached {
		p.tokenPrefix = root
	}
	return true
}

// listOptions reads the parameters of a LIST.
func (h *Handlers) listOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	options, ok = h.decodeOptions(req, name)
	return options, ok && !options.Watch && options.Limit >= 0
}

// decodeOptions reads the parameters of a LIST or WATCH as upstream's ListResource does.
// ok is false where the fallback knows the error, or what to do.
func (h *Handlers) decodeOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	scope := h.config.Scope
	if req.URL.RawQuery != "" {
		if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), scope.MetaGroupVersion, &options); err != nil {
			return options, false
		}
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	metainternalversion.SetListOptionsDefaults(&options, watchList)
	if options.ShardSelector != "" || len(metainternalversionvalidation.ValidateListOptions(&options, watchList)) != 0 {
		return options, false
	}
	if options.FieldSelector != nil {
		var err error
		options.FieldSelector, err = options.FieldSelector.Transform(func(label, value string) (string, string, error) {
			return scope.Convertor.ConvertFieldLabel(scope.Kind, label, value)
		})
		if err != nil {
			return options, false
		}
	}
	if name == "" {
		return options, true
	}
	// The request info has the name that a field selector asks for, too.
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name)
		return options, true
	}
	selected, found := options.FieldSelector.RequiresExactMatch("metadata.name")
	return options, found && selected == name
}

// below tells whether a key is in the collection.
func (p *plan) below(key string) bool { return strings.HasPrefix(key, p.prefix) }
