package standalone

import (
	"context"

	cliflag "k8s.io/component-base/cli/flag"

	"triune.dev/shared/program/command"
)

// Command is the program triune.
func Command() command.Spec {
	program := &program{options: NewOptions()}
	return command.Spec{
		Use: "triune",
		Long: `Triune is the Kubernetes API server. This program is the whole of it: the three
tiers in one process, and an etcd and a NATS inside unless --etcd-servers and
--nats-url name others. What a first start needs and no flag gives is made below
--data-dir. It takes kube-apiserver's flags.`,
		Program: program,
		Logs:    program.options.Core.Logs,
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
	server, err := p.completed.New(ctx)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
