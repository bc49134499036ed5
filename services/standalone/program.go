package standalone

import (
	"context"
	"path/filepath"

	cliflag "k8s.io/component-base/cli/flag"

	"triune.dev/shared/program/command"
)

// Command returns the program triune. Tools that start API servers look for a binary called
// kube-apiserver; under that name triune has kube-apiserver's defaults.
func Command(name string) command.Spec {
	program := &program{options: NewOptions()}
	program.options.AsKubeAPIServer = filepath.Base(name) == "kube-apiserver"
	return command.Spec{
		Use: "triune",
		Long: `Triune is the Kubernetes API server. This program runs its three tiers in one process,
with an etcd and a NATS unless --etcd-servers and --nats-url name others. Keys,
certificates and a kubeconfig are made in --data-dir if no flags name them. The program
takes kube-apiserver's flags.`,
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
	server, err := New(ctx, p.completed)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
