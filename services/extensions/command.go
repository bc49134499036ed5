package extensions

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	cliflag "k8s.io/component-base/cli/flag"

	"triune.dev/services/extensions/internal/admission"
	"triune.dev/services/extensions/internal/scheme"
	"triune.dev/shared/program/command"
	"triune.dev/shared/program/options"
	"triune.dev/shared/storage"
)

// peerDelay is the default of --crd-establish-delay. A connected informer delivers a CRD
// within milliseconds; the rest is a margin for busy replicas.
const peerDelay = 500 * time.Millisecond

// Command returns the program extensions.
func Command() command.Spec {
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(apiextensionsv1.SchemeGroupVersion)
	p := &program{
		options: options.New(options.Tier{
			Name:         Tier,
			Scheme:       scheme.Scheme,
			Codecs:       scheme.Codecs,
			Resources:    resources,
			Admission:    admission.NewOptions,
			Initializers: admission.Initializers,
		}),
		peerDelay: peerDelay,
	}
	return command.Spec{
		Use: Tier,
		Long: `The last of Triune's chain of API servers. It serves CustomResourceDefinitions and
the objects they define, and answers 404 to requests that no tier owns. RBAC rules,
namespaces, admission webhooks and policies, and quotas are read from core, at
--core-url.`,
		Program: p,
		Logs:    p.options.Logs,
	}
}

type program struct {
	options   *options.Options
	peerDelay time.Duration
}

// AddFlags adds the flags of package options and --crd-establish-delay.
func (p *program) AddFlags(sections *cliflag.NamedFlagSets) {
	p.options.AddFlags(sections)
	fs := sections.FlagSet("misc")
	fs.DurationVar(&p.peerDelay, "crd-establish-delay", p.peerDelay,
		"How long to wait before a new CustomResourceDefinition is declared established, so that all replicas of this tier serve it by then. Use 0 for a single replica.")
}

func (p *program) Complete(ctx context.Context) error { return p.options.Complete(ctx) }

func (p *program) Validate() []error {
	problems := p.options.Validate()
	if p.peerDelay < 0 {
		problems = append(problems, fmt.Errorf("--crd-establish-delay=%s must not be negative", p.peerDelay))
	}
	return problems
}

// Run serves until ctx ends.
func (p *program) Run(ctx context.Context) error {
	parts, err := p.options.Config(ctx)
	if err != nil {
		return err
	}
	log, err := p.options.EventLog.Open(Tier, p.options.Registerer)
	if err != nil {
		return err
	}
	store, err := storage.Open(ctx, storage.Config{Generic: parts.Generic, Etcd: p.options.Etcd, EventLog: log})
	if err != nil {
		return err
	}
	server, err := p.build(parts, store)
	if err != nil {
		store.Close()
		return fmt.Errorf("build the server: %w", err)
	}
	return store.Around(ctx, server.Run)
}

func (p *program) build(parts *options.Config, store *storage.Storage) (*Server, error) {
	server, err := New(Config{
		Generic:         parts.Generic,
		Informers:       parts.Informers,
		Storage:         store.RESTOptions(),
		ServiceResolver: parts.Services,
		WebhookAuth:     parts.WebhookAuth,
		PeerDelay:       p.peerDelay,
		HTTP2Server:     parts.HTTP2Server,
		Hooks:           store.Hooks(),
	})
	if err != nil {
		return nil, err
	}
	return server, parts.Attach(server.server)
}
