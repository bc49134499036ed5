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

	"triune.dev/shared/storage/etcdstore"
)

// plan is a parsed LIST request.
type plan struct {
	// prefix is the prefix of the keys in the collection or, if single is set, the key of
	// the object.
	prefix string
	single bool
	// tokenPrefix is the prefix to which the keys in continue tokens are relative.
	tokenPrefix string

	// exact is the requested revision, 0 for a recent one. atLeast is the minimum of a
	// recent revision; newest requires the revision of etcd.
	exact, atLeast int64
	newest         bool
	// start is the first key, empty for the beginning of the collection.
	start string
	// limit is the maximum number of objects, 0 for no limit.
	limit int64

	label labels.Selector
	field fields.Selector
	// byKey says that the key of an object determines whether it matches field.
	byKey bool
	// indexed is the result of etcdstore.IndexOf; nil if the index is not used.
	indexed *fields.Requirement
	// options are the options for continue tokens.
	options storage.ListOptions
}

// selects reports whether the request selects only some objects of the collection.
func (p *plan) selects() bool { return !p.options.Predicate.Empty() }

// setSelectors sets the selectors of a LIST or WATCH with these options.
func (p *plan) setSelectors(options *metainternalversion.ListOptions) {
	p.label, p.field = labels.Everything(), fields.Everything()
	if options.LabelSelector != nil {
		p.label = options.LabelSelector
	}
	if options.FieldSelector != nil {
		p.field = options.FieldSelector
	}
	p.byKey = !slices.ContainsFunc(p.field.Requirements(), func(r fields.Requirement) bool { return !metadataField(r.Field) })
}

// planList parses a request as upstream's ListResource, registry.Store.List and etcdstore
// together do. ok is false if the fallback must answer.
func (h *Handlers) planList(req *http.Request) (p plan, ok bool) {
	info, ok := requestInfo(req)
	if !ok {
		return p, false
	}
	options, ok := h.listOptions(req, info.Name)
	if !ok {
		return p, false
	}
	p.setSelectors(&options)
	p.options = storage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		Recursive:            true,
		Predicate:            storage.SelectionPredicate{Label: p.label, Field: p.field, Limit: options.Limit, Continue: options.Continue},
	}
	if !h.setPrefix(&p, info.Namespace) {
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
		p.limit = 0 // kube-apiserver's watch cache ignores the limit
	}
	if p.limit > 0 && exact == 0 && start == "" && !h.config.Uncached {
		p.indexed = etcdstore.IndexOf(storage.SelectionPredicate{Field: p.field, IndexFields: h.config.IndexFields})
	}
	return p, true
}

// setPrefix sets the keys to list: a selector may name one namespace or object.
func (h *Handlers) setPrefix(p *plan, namespace string) bool {
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

// listOptions returns the parameters of a LIST.
func (h *Handlers) listOptions(req *http.Request, name string) (options metainternalversion.ListOptions, ok bool) {
	options, ok = h.decodeOptions(req, name)
	return options, ok && !options.Watch && options.Limit >= 0
}

// decodeOptions returns the parameters of a LIST or WATCH as upstream's ListResource
// decodes them. ok is false if the fallback must answer.
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
	// The name in the request info may also come from a field selector.
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name)
		return options, true
	}
	selected, found := options.FieldSelector.RequiresExactMatch("metadata.name")
	return options, found && selected == name
}

// below reports whether a key is in the collection.
func (p *plan) below(key string) bool { return strings.HasPrefix(key, p.prefix) }
