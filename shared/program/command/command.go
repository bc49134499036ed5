package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	// Imported for their effect, as by every server of Kubernetes: JSON logs, and the
	// metrics of client-go, of its work queues and of the build.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"

	"triune.dev/shared/process/garbage"
	"triune.dev/shared/process/release"
)

// Program is a server with its flags. Each method is called once, in the order of
// the interface.
type Program interface {
	// AddFlags adds the flags, including those of Spec.Logs.
	AddFlags(*cliflag.NamedFlagSets)
	// Complete derives settings that were not given from the flags and the machine.
	Complete(ctx context.Context) error
	// Validate returns all problems, each naming its flag.
	Validate() []error
	// Run serves until ctx ends; then it returns nil.
	Run(ctx context.Context) error
}

// Spec describes a program.
type Spec struct {
	// Use is the name of the program, Long its help text.
	Use, Long string
	Program   Program
	// Logs is the logging configuration that the program's flags fill.
	Logs *logs.Options
	// WithoutEffect are flags that change nothing in this program, besides
	// FlagsWithoutEffect, each with the reason.
	WithoutEffect map[string]string
}

// addLoggingGates adds the feature gates of logging to --feature-gates. That must
// happen before the first flag set is made of the gates.
var addLoggingGates = sync.OnceValue(func() error {
	return logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate)
})

// subcommandsHelp ends the help of every program.
const subcommandsHelp = `The subcommands healthcheck, pki, pki-secrets, etcd-roles, forward and reload do
small jobs around a server; each has a --help of its own.`

// New returns the command of spec, with its subcommands. The command takes no
// arguments and does not print errors; the caller does.
func New(spec Spec) *cobra.Command {
	gatesErr := addLoggingGates()
	globals := utilcompatibility.DefaultComponentGlobalsRegistry
	cmd := &cobra.Command{
		Use:           spec.Use,
		Long:          spec.Long + "\n\n" + subcommandsHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printVersion(cmd.OutOrStdout(), cmd.Flags()) {
				return nil
			}
			garbage.Tune()
			if gatesErr != nil {
				return gatesErr
			}
			if err := globals.Set(); err != nil {
				return fmt.Errorf("--feature-gates, --emulated-version: %w", err)
			}
			gates := globals.FeatureGateFor(basecompatibility.DefaultKubeComponent)
			if err := logsapi.ValidateAndApply(spec.Logs, gates); err != nil {
				return fmt.Errorf("logging flags, --logging-format=%s: %w", spec.Logs.Format, err)
			}
			// Servers call each other and themselves. Warnings in the responses are meant
			// for the users of those requests, not for the log.
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			cliflag.PrintFlags(cmd.Flags())
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return nameFlags(run(cmd.Context(), spec, globals, gates, cmd.Flags()), cmd.Flags())
		},
	}
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	cmd.CompletionOptions.DisableDefaultCmd = true

	var sections cliflag.NamedFlagSets
	spec.Program.AddFlags(&sections)
	verflag.AddFlags(sections.FlagSet("global"))
	globalflag.AddGlobalFlags(sections.FlagSet("global"), spec.Use, logs.SkipLoggingConfigurationFlags())
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
	cmd.AddCommand(subcommands()...)
	return cmd
}

func run(ctx context.Context, spec Spec, globals basecompatibility.ComponentGlobalsRegistry, gates featuregate.FeatureGate, flags *pflag.FlagSet) error {
	if err := spec.Program.Complete(ctx); err != nil {
		return err
	}
	if problems := spec.Program.Validate(); len(problems) > 0 {
		return utilerrors.NewAggregate(problems)
	}
	globals.AddMetrics()
	klog.InfoS("starting", "program", spec.Use, "version", version.Get().GitVersion, "commit", release.Commit)
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
		logWithoutEffect(flags, spec.WithoutEffect, mutable)
	}
	return spec.Program.Run(ctx)
}

// printVersion prints the version as kube-apiserver does and reports whether
// --version asked for it.
func printVersion(out io.Writer, flags *pflag.FlagSet) bool {
	switch flags.Lookup("version").Value.String() {
	case "true":
		fmt.Fprintf(out, "Kubernetes %s\n", version.Get())
		return true
	case "raw":
		fmt.Fprintf(out, "%#v\n", version.Get())
		return true
	}
	return false
}

// Run runs the program of spec with the given arguments until it ends.
func Run(ctx context.Context, spec Spec, args []string, stdout, stderr io.Writer) error {
	cmd := New(spec)
	// Given nil, cobra takes the arguments of the process.
	cmd.SetArgs(append([]string{}, args...))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd.ExecuteContext(ctx)
}

// Main runs the program of spec as this process and returns its exit status.
// The first SIGTERM or SIGINT starts an orderly shutdown; the second exits at once.
func Main(spec Spec) int {
	logs.InitLogs()
	defer logs.FlushLogs()
	grpclog.SetLoggerV2(grpcLogger{})
	ignoreCancellation()
	if err := Run(signalContext(), spec, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		logs.FlushLogs()
		fmt.Fprintf(os.Stderr, "error: %s\n", Message(err))
		return 1
	}
	return 0
}

// signalContext returns a context that is cancelled by the first signal to stop. The
// second signal exits the process. One channel takes both, so that none is lost.
func signalContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(1)
	}()
	return ctx
}

// handlerDepth is the number of stack frames between the caller that reports an error
// and the handler that logs it.
const handlerDepth = 3

// ignoreCancellation stops the logging of context.Canceled, which every informer reports
// when it is stopped in the middle of a request. The first of the error handlers is the
// one that logs.
func ignoreCancellation() {
	utilruntime.ErrorHandlers[0] = func(ctx context.Context, err error, message string, keysAndValues ...any) {
		if errors.Is(err, context.Canceled) {
			return
		}
		if message == "" {
			message = "unhandled error"
		}
		klog.FromContext(ctx).WithCallDepth(handlerDepth).Error(err, message, keysAndValues...)
	}
}

// Message returns the text of err in one line. The parts of a joined error are
// separated by semicolons.
func Message(err error) string {
	var problems []string
	for _, problem := range flatten(err) {
		problems = append(problems, strings.Join(strings.Fields(problem.Error()), " "))
	}
	return strings.Join(problems, "; ")
}

// flatten returns the errors that aggregates and errors.Join have joined in err. It does
// not unwrap errors that add a text of their own.
func flatten(err error) []error {
	var joined []error
	switch err := err.(type) { //nolint:errorlint // unwrapping would lose the text of the wrapper
	case utilerrors.Aggregate:
		joined = err.Errors()
	case interface{ Unwrap() []error }:
		// Errors of fmt.Errorf with several %w have a text of their own.
		if joined = err.Unwrap(); errors.Join(joined...).Error() != err.(error).Error() {
			joined = nil
		}
	}
	if len(joined) == 0 {
		return []error{err}
	}
	var all []error
	for _, one := range joined {
		all = append(all, flatten(one)...)
	}
	return all
}
