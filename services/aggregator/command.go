package aggregator

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	cliflag "k8s.io/component-base/cli/flag"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"triune.dev/services/aggregator/internal/remote"
	"triune.dev/services/aggregator/internal/scheme"
	"triune.dev/shared/program/command"
	"triune.dev/shared/program/options"
	"triune.dev/shared/storage"
)

// Command returns the program aggregator.
func Command() command.Spec {
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(apiregistrationv1.SchemeGroupVersion)
	p := &program{
		options: options.New(options.Tier{
			Name:      Tier,
			Next:      "core",
			Scheme:    scheme.Scheme,
			Codecs:    scheme.Codecs,
			Resources: resources,
			Admission: genericoptions.NewAdmissionOptions,
		}),
		rejectRedirects: true,
	}
	p.options.Tier.Initializers = p.initializers
	return command.Spec{
		Use: Tier,
		Long: `The head of Triune's chain of API servers, and the one that clients talk to. It
serves APIServices, proxies the group-versions of remote ones to their extension
API servers, merges discovery and OpenAPI over all servers, and passes everything
else on to core, which --next-url names.`,
		Program: p,
		Logs:    p.options.Logs,
	}
}

type program struct {
	options         *options.Options
	rejectRedirects bool
	advertisePort   int
}

// AddFlags adds the flags. Those of this tier alone have kube-apiserver's names and section.
func (p *program) AddFlags(sections *cliflag.NamedFlagSets) {
	p.options.AddFlags(sections)
	fs := sections.FlagSet("misc")
	fs.BoolVar(&p.rejectRedirects, "aggregator-reject-forwarding-redirect", p.rejectRedirects,
		"Refuse redirects that extension API servers answer, instead of passing them on to clients.")
	fs.IntVar(&p.advertisePort, "advertise-port", p.advertisePort,
		"Port at which Pods reach this server, at --advertise-address: both are in the endpoints of the Service default/kubernetes. 0 stands for --secure-port.")
}

func (p *program) Complete(ctx context.Context) error { return p.options.Complete(ctx) }

func (p *program) Validate() []error { return p.options.Validate() }

// Run serves until ctx ends.
func (p *program) Run(ctx context.Context) error {
	config, err := p.options.Config(ctx)
	if err != nil {
		return err
	}
	log, err := p.options.EventLog.Open(Tier, p.options.Registerer)
	if err != nil {
		return err
	}
	store, err := storage.Open(ctx, storage.Config{Generic: config.Generic, Etcd: p.options.Etcd, EventLog: log})
	if err != nil {
		return err
	}
	server, err := New(Config{
		Generic:   config.Generic,
		Informers: config.Informers,
		Storage:   store.RESTOptions(),
		Next:      config.Next,
		Proxy: Proxy{
			CertFile:         p.options.ProxyClientCertFile(),
			KeyFile:          p.options.ProxyClientKeyFile(),
			EndpointRouting:  p.options.EndpointRouting,
			ForwardRedirects: !p.rejectRedirects,
		},
		HTTP2Server: config.HTTP2Server,
		Hooks:       store.Hooks(),
	})
	if err == nil {
		err = config.Attach(server.Server())
	}
	if err == nil {
		err = server.advertise(config, p.advertisePort)
	}
	if err != nil {
		store.Close()
		return fmt.Errorf("build the server: %w", err)
	}
	return store.Around(ctx, server.Run)
}

// initializers make admission webhooks use the same resolver as APIServices.
func (p *program) initializers(config *options.Config) ([]admission.PluginInitializer, error) {
	services, err := newResolver(config.Informers, p.options.EndpointRouting, config.Generic.ExternalAddress)
	if err != nil {
		return nil, err
	}
	return []admission.PluginInitializer{
		webhookinitializer.NewPluginInitializer(config.WebhookAuth, remote.FirstURL{Resolver: services}),
	}, nil
}
