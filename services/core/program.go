package core

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics/legacyregistry"

	"triune.dev/shared/program/command"
	"triune.dev/shared/server/apiserver"
	"triune.dev/shared/server/filters"
	"triune.dev/shared/transport/nexttier"
)

// Command returns the program core.
func Command() command.Spec {
	program := &program{options: NewOptions()}
	return command.Spec{
		Use: "core",
		Long: `The core tier of Triune serves every built-in resource of Kubernetes. Requests that it
does not own go to the next tier, at --next-url.`,
		Program: program,
		Logs:    program.options.Logs,
		WithoutEffect: map[string]string{
			"aggregator-reject-forwarding-redirect": "the aggregator proxies to extension API servers",
		},
	}
}

type program struct {
	options   *Options
	completed CompletedOptions
}

func (p *program) AddFlags(sections *cliflag.NamedFlagSets) { p.options.AddFlags(sections) }

func (p *program) Complete(ctx context.Context) (err error) {
	p.completed, err = p.options.Complete(ctx)
	return err
}

func (p *program) Validate() []error { return p.completed.Validate() }

func (p *program) Run(ctx context.Context) error {
	var config *Config
	next, err := p.completed.nextTier(func(w http.ResponseWriter, req *http.Request, refused *apierrors.StatusError) {
		filters.AnswerNotForwarded(config.Generic)(w, req, refused)
	})
	if err != nil {
		return err
	}
	config, err = p.completed.Config(ctx, Environment{Next: next})
	if err != nil {
		return err
	}
	server, err := New(config)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// nextTier returns the proxy to the next tier, nil without --next-url. refuse answers
// requests that cannot be forwarded.
func (o CompletedOptions) nextTier(refuse func(http.ResponseWriter, *http.Request, *apierrors.StatusError)) (*apiserver.Next, error) {
	if len(o.next.urls) == 0 {
		return nil, nil
	}
	const tier = "extensions"
	headers := o.Authentication.RequestHeader
	limits := o.GenericServerRunOptions
	proxy, err := nexttier.New(nexttier.Config{
		Tier:        tier,
		Targets:     o.next.urls,
		CAFile:      o.next.caFile,
		CertFile:    o.ProxyClientCertFile,
		KeyFile:     o.ProxyClientKeyFile,
		MaxInFlight: limits.MaxRequestsInFlight + limits.MaxMutatingRequestsInFlight,
		Registerer:  legacyregistry.Registerer(),
		OnError:     refuse,
		Headers: nexttier.Headers{
			User:        headers.UsernameHeaders,
			UID:         headers.UIDHeaders,
			Group:       headers.GroupHeaders,
			ExtraPrefix: headers.ExtraHeaderPrefixes,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--next-url=%v: %w", o.next.urls, err)
	}
	return &apiserver.Next{Tier: tier, Handler: proxy, Run: proxy.Run, Replicas: proxy.Replicas, Check: proxy.Check}, nil
}
