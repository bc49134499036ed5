// Package command is the command line that the four programs have in common:
// cobra, kube-apiserver's flag sections, logging, feature gates, signals, and how
// a program ends.
//
// A main function is one line:
//
//	func main() { os.Exit(command.Main(aggregator.Command())) }
//
// The exit status is 0 after --help, --version and an orderly shutdown, and 1
// after an error, which is told in exactly one line on stderr: "error: " and what
// is wrong, with the flag and its value.
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

	// What every server of Kubernetes links for its effect: JSON logs, and the
	// metrics of client-go, of its work queues and of the build.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"

	"triune.dev/shared/process/garbage"
	"triune.dev/shared/process/release"
)

// Program is a server with its flags. Its methods are called once each, in the
// order in which they stand here.
type Program interface {
	// AddFlags adds the flags, those of Spec.Logs among them.
	AddFlags(*cliflag.NamedFlagSets)
	// Complete fills in what follows from the flags.
	Complete(ctx context.Context) error
	// Validate returns all problems there are, each naming its flag.
	Validate() []error
	// Run serves until ctx ends, which is no error.
	Run(ctx context.Context) error
}

// Spec describes a program.
type Spec struct {
	// Use is the name of the program, Long what it does.
	Use, Long string
	Program   Program
	// Logs is the logging configuration that the program's flags fill.
	Logs *logs.Options
}

// addLoggingGates makes the feature gates of logging known to --feature-gates.
// Gates can be added only until the first flag set has them.
var addLoggingGates = sync.OnceValue(func() error {
	return logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate)
})

// alsoDoes ends the help of every program.
const alsoDoes = `The subcommands healthcheck, pki, pki-secrets, etcd-roles, forward and reload do
small jobs around a server; each has a --help of its own.`

// New returns the command of spec. It takes no arguments but the names of the
// subcommands, and leaves it to the caller to tell the user about an error.
func New(spec Spec) *cobra.Command {
	gatesErr := addLoggingGates()
	globals := utilcompatibility.DefaultComponentGlobalsRegistry
	cmd := &cobra.Command{
		Use:           spec.Use,
		Long:          spec.Long + "\n\n" + alsoDoes,
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
			// Servers call each other and themselves; what they are warned of is for
			// the users whose requests they carry out.
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			cliflag.PrintFlags(cmd.Flags())
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return blamed(run(cmd.Context(), spec, globals, gates), cmd.Flags())
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

func run(ctx context.Context, spec Spec, globals basecompatibility.ComponentGlobalsRegistry, gates featuregate.FeatureGate) error {
	if err := spec.Program.Complete(ctx); err != nil {
		return err
	}
	if problems := spec.Program.Validate(); len(problems) > 0 {
		return utilerrors.NewAggregate(problems)
	}
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	globals.AddMetrics()
	klog.InfoS("starting", "program", spec.Use, "version", version.Get().GitVersion, "commit", release.Commit)
	return spec.Program.Run(ctx)
}

// printVersion does what --version asks for, in kube-apiserver's words.
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
	// With nil cobra would take those of the process.
	cmd.SetArgs(append([]string{}, args...))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd.ExecuteContext(ctx)
}

// Main runs the program of spec as this process and returns its exit status.
// The first SIGTERM or SIGINT ends the program in order; the second ends it at
// once.
func Main(spec Spec) int {
	logs.InitLogs()
	defer logs.FlushLogs()
	grpclog.SetLoggerV2(grpcLogger{})
	ignoreCancellation()
	if err := Run(signalled(), spec, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		logs.FlushLogs()
		fmt.Fprintf(os.Stderr, "error: %s\n", Message(err))
		return 1
	}
	return 0
}

// signalled returns a context that ends with the first signal to stop. With the
// second the process ends, whatever it is still waiting for. Both are read from
// one channel, so that none is lost however fast they come.
func signalled() context.Context {
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

// handlerDepth is the number of frames between who reports an error and the
// handler that logs it.
const handlerDepth = 3

// ignoreCancellation keeps out of the log what informers report when they are
// stopped in the middle of a request: a screenful at every shutdown, and none of
// it an error. The first handler is the one that logs.
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

// Message puts an error into one line. Problems that have been found together
// are separated by semicolons.
func Message(err error) string {
	var problems []string
	for _, problem := range parts(err) {
		problems = append(problems, strings.Join(strings.Fields(problem.Error()), " "))
	}
	return strings.Join(problems, "; ")
}

// parts takes apart what has been put together without further words.
func parts(err error) []error {
	var together []error
	switch err := err.(type) { //nolint:errorlint // what is wrapped inside has words around it that must not be lost
	case utilerrors.Aggregate:
		together = err.Errors()
	case interface{ Unwrap() []error }:
		// fmt.Errorf has words of its own around the errors it wraps.
		if together = err.Unwrap(); errors.Join(together...).Error() != err.(error).Error() {
			together = nil
		}
	}
	if len(together) == 0 {
		return []error{err}
	}
	var all []error
	for _, one := range together {
		all = append(all, parts(one)...)
	}
	return all
}
