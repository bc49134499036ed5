package verify

import (
	"fmt"
	"slices"
)

// ban forbids imports and gives a reason. Patterns are those of matches.
type ban struct {
	// from has the packages to which the ban applies, except those in but.
	from, but []string
	// to has the forbidden packages, except those in allowed.
	to, allowed []string
	// linked extends the ban to everything that is linked with the package. Tests are
	// exempt: they link what they test against.
	linked bool
	// tests extends the ban to what tests import.
	tests bool
	// reason completes the sentence "… must not import … because".
	reason string
}

const (
	aggregator = prefix + "services/aggregator/..."
	core       = prefix + "services/core/..."
	extensions = prefix + "services/extensions/..."
	standalone = prefix + "services/standalone/..."
	allShared  = prefix + "shared/..."
	allTests   = prefix + "tests/..."
)

// storageLayers are the packages below HTTP: storage, cache and fan-out.
var storageLayers = []string{
	prefix + "shared/storage/kv/...", prefix + "shared/storage/etcdstore/...", prefix + "shared/storage/bytecache/...",
	prefix + "shared/storage/keywatch/...", prefix + "shared/storage/eventlog/...", prefix + "shared/storage/readindex/...", prefix + "shared/storage/render/...",
}

// The groups of package shared, from the top down.
const (
	program   = prefix + "shared/program/..."
	server    = prefix + "shared/server/..."
	transport = prefix + "shared/transport/..."
	storage   = prefix + "shared/storage/..."
	process   = prefix + "shared/process/..."

	downwards = "the groups of shared are the architecture, and imports run down it: program, server, transport or storage, process"
)

var bans = []ban{
	{
		from: []string{aggregator}, to: []string{core, extensions, standalone, allTests}, tests: true,
		reason: "services reach each other over the network; each is built, scaled and upgraded alone",
	}, {
		from: []string{core}, to: []string{aggregator, extensions, standalone, allTests}, tests: true,
		reason: "services reach each other over the network; each is built, scaled and upgraded alone",
	}, {
		from: []string{extensions}, to: []string{aggregator, core, standalone, allTests}, tests: true,
		reason: "services reach each other over the network; each is built, scaled and upgraded alone",
	}, {
		from: []string{allShared}, to: []string{aggregator, core, extensions, standalone, allTests}, tests: true,
		reason: "dependencies run one way: cmd, service, shared, libraries",
	}, {
		from: []string{process}, to: []string{program, server, transport, storage},
		reason: downwards,
	}, {
		from: []string{transport}, to: []string{program, server, storage},
		reason: downwards,
	}, {
		from: []string{storage}, to: []string{program, server, transport},
		reason: downwards,
	}, {
		from: []string{server}, to: []string{program},
		reason: downwards,
	}, {
		from: []string{standalone}, to: []string{allTests}, tests: true,
		reason: "dependencies run one way: cmd, service, shared, libraries",
	}, {
		from:    []string{allTests},
		to:      []string{aggregator, core, extensions, standalone},
		allowed: nil, tests: true,
		reason: "the suites test programs from outside, the way users meet them; tests of a service stand in its own module",
	}, {
		from: storageLayers,
		to:   []string{"net/http/...", "github.com/labstack/echo/...", "k8s.io/apiserver/pkg/endpoints/..."},
		// Context keys: the namespace of a key, the latency that a request reports.
		allowed: []string{"k8s.io/apiserver/pkg/endpoints/request"},
		reason:  "storage, cache and fan-out know keys, bytes and revisions, and nothing of HTTP",
	}, {
		from: []string{prefix + "shared/storage/kv/...", prefix + "shared/storage/bytecache/...", prefix + "shared/storage/readindex/..."}, to: []string{"k8s.io/api/...", "k8s.io/apimachinery/...", "k8s.io/apiserver/...", "k8s.io/client-go/..."},
		reason: "the layers of keys, bytes and revisions are tested, and reasoned about, without objects and codecs",
	}, {
		from: []string{prefix + "..."}, to: []string{"k8s.io/apiserver/pkg/storage/etcd3/...", "k8s.io/apiserver/pkg/storage/cacher/..."},
		allowed: []string{"k8s.io/apiserver/pkg/storage/etcd3/metrics"}, tests: true,
		reason: "storage and cache are Triune's own; two stores over one etcd would each compact, cache and count (the metrics' names are kube-apiserver's on purpose)",
	}, {
		from: []string{aggregator, extensions}, linked: true,
		to: []string{"k8s.io/kubernetes/pkg/registry/*/rest/...", "k8s.io/kubernetes/pkg/controlplane/..."},
		// The bootstrap policy names this controller's config map.
		allowed: []string{"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"},
		reason:  "the resource registry is most of a kube-apiserver: tens of megabytes that only core needs",
	}, {
		from: []string{aggregator, core, extensions}, linked: true,
		to:     []string{"go.etcd.io/etcd/server/...", "github.com/nats-io/nats-server/..."},
		reason: "only the one-process program embeds the servers it depends on",
	}, {
		from: []string{prefix + "..."}, but: []string{prefix + "shared/storage/etcdembed"},
		to: []string{"go.etcd.io/etcd/server/v3/etcdserver/..."}, tests: true,
		reason: "a call to an etcd in the process that has been closed is a nil pointer in its database; shared/storage/etcdembed returns an error instead",
	}, {
		from: []string{prefix + "..."}, but: kubernetesImporters, to: []string{"k8s.io/kubernetes/..."}, tests: true,
		reason: "k8s.io/kubernetes promises no stable API and is slow to link; who needs it is listed in ARCHITECTURE.md and in kubernetesImporters",
	}, {
		from: []string{prefix + "..."}, but: []string{prefix + "shared/server/apiserver"},
		to: []string{"github.com/labstack/echo/..."}, tests: true,
		reason: "one package owns the routes; everybody else is an http.Handler",
	}, {
		from: []string{prefix + "..."},
		to:   []string{"github.com/stretchr/testify/...", "github.com/onsi/ginkgo/...", "github.com/onsi/gomega/..."}, tests: true,
		reason: "tests are plain testing with tables and go-cmp",
	}, {
		// etcd's packages take a zap logger and no other.
		from: []string{prefix + "..."}, but: []string{prefix + "shared/storage/kv/...", prefix + "shared/storage/etcdstore/...", prefix + "shared/storage/etcdembed", prefix + "shared/testing/etcdtest", prefix + "shared/storage", prefix + "services/standalone/internal/etcd"},
		to:     []string{"log", "github.com/golang/glog", "go.uber.org/zap/...", "github.com/sirupsen/logrus/..."},
		reason: "logs are structured and go through klog, where --logging-format and -v apply",
	}, {
		from: []string{prefix + "..."}, to: []string{"io/ioutil", "github.com/pkg/errors", "golang.org/x/exp/..."}, tests: true,
		reason: "the standard library has it",
	},
}

// kubernetesImporters may import k8s.io/kubernetes; ARCHITECTURE.md gives the reasons.
var kubernetesImporters = []string{
	prefix + "services/core/...",
	prefix + "services/extensions/internal/admission",
	prefix + "services/standalone/internal/controllers",
	prefix + "shared/server/authz",
}

// broken returns the imports of p that b forbids, each in one line.
func (b ban) broken(p pkg) []string {
	if !matchesAny(b.from, p.ImportPath) || matchesAny(b.but, p.ImportPath) {
		return nil
	}
	imports := slices.Clone(p.Imports)
	verb := "imports"
	if b.linked {
		imports, verb = p.Deps, "links"
	}
	if b.tests {
		imports = append(append(imports, p.TestImports...), p.XTestImports...)
	}
	slices.Sort(imports)
	var lines []string
	for _, i := range slices.Compact(imports) {
		if matchesAny(b.to, i) && !matchesAny(b.allowed, i) && !own(p.ImportPath, i) {
			lines = append(lines, fmt.Sprintf("%s %s %s: %s", p.ImportPath, verb, i, b.reason))
		}
	}
	return lines
}

// own reports whether a package imports one of its own service.
func own(from, to string) bool {
	for _, tree := range []string{aggregator, core, extensions, standalone, allTests} {
		if matches(tree, from) && matches(tree, to) {
			return true
		}
	}
	return false
}
