// Command bench compares triune, the three tiers, kube-apiserver and a bare HTTPS server,
// and writes the results as JSON, as a page of tables and as charts. See
// docs/performance.md for how to read them.
//
// Reproduce with: make bench, make bench-quick
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"triune.dev/tests/bench"
	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/bench/floor"
	"triune.dev/tests/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	if len(args) > 0 && args[0] == "floor" {
		return floor.Run(ctx, args[1:])
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := bench.Options{Floor: []string{self, "floor"}, Log: log}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	match := flags.String("workload", "", "regular expression of the workloads to run; empty runs all")
	flags.BoolVar(&o.Quick, "quick", false, "run for minutes, not hours, and leave out slow workloads")
	flags.IntVar(&o.Rounds, "rounds", bench.DefaultRounds, "how often every server runs every workload")
	flags.Float64Var(&o.Scale, "scale", 1, "multiplies the sizes of the large workloads")
	servers := flags.String("servers", strings.Join(bench.Subjects(), ","), "what to measure")
	against := flags.String("against", "", "other builds of triune to compare with, as name=program, separated by commas; the table of them is printed")
	flags.StringVar(&o.Profiles, "profiles", "", "directory for profiles of our processes; empty takes none")
	out := flags.String("out", filepath.Join(".run", "bench"), "directory for the results")
	name := flags.String("name", "result", "what the names of their files begin with")
	merge := flags.Bool("merge", false, "keep the rows of the result that is there and that this run does not measure")
	profilesPage := flags.String("profiles-page", "", "page whose tables of profiles are rewritten; needs -profiles")
	scaling := flags.String("scaling", "", "page about scaling, rewritten with the figures of the result")
	security := flags.String("security", "", "page about security, whose table of attacks is rewritten with the figures of the result")
	render := flags.Bool("render", false, "measure nothing: write pages and charts of the JSON that is there")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Match, err = regexp.Compile(*match); err != nil {
		return fmt.Errorf("-workload: %w", err)
	}
	o.Subjects = strings.Split(*servers, ",")
	if o.Builds, err = builds(*against); err != nil {
		return err
	}
	files := bench.Files{Dir: *out, Name: *name}
	if *render {
		result, err := files.Read()
		if err != nil {
			return err
		}
		return write(files, result, *scaling, *security)
	}
	var earlier *report.Result
	if *merge {
		if earlier, err = files.Read(); err != nil {
			return err
		}
		if here := accounting.ThisMachine(); here.CPU != earlier.Machine.CPU || here.Cores != earlier.Machine.Cores {
			return fmt.Errorf("-merge: %s is of another machine (%d × %s) than this one (%d × %s)",
				files.Page(), earlier.Machine.Cores, earlier.Machine.CPU, here.Cores, here.CPU)
		}
	}
	command := bench.Command(o)
	if *merge {
		everything := o
		everything.Match = regexp.MustCompile("")
		command = bench.Command(everything) // all parts together
	}
	o.Save = func(result *report.Result) error {
		whole, err := result.With(earlier)
		if err != nil {
			return err
		}
		whole.Command = command
		bench.Order(whole)
		return files.Write(whole)
	}
	if _, err := bench.Run(ctx, o); err != nil {
		return err
	}
	result, err := files.Read()
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "wrote %s\n", files.Page())
	if err := write(files, result, *scaling, *security); err != nil {
		return err
	}
	if len(o.Builds) > 0 {
		if err := result.Comparison(os.Stdout, report.Ours); err != nil {
			return err
		}
	}
	if *profilesPage != "" && o.Profiles != "" {
		if err := bench.WriteProfiles(ctx, *profilesPage, o.Profiles); err != nil {
			return err
		}
	}
	return failures(result)
}

// builds parses -against.
func builds(list string) ([]bench.Build, error) {
	var all []bench.Build
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		name, path, ok := strings.Cut(item, "=")
		if _, err := os.Stat(path); !ok || err != nil {
			return nil, fmt.Errorf("-against: %q is not name=program, with the path of a program", item)
		}
		all = append(all, bench.Build{Name: name, Path: path})
	}
	return all, nil
}

// write writes all pages of a result.
func write(files bench.Files, result *report.Result, scaling, security string) error {
	if err := files.Write(result); err != nil {
		return err
	}
	if scaling != "" {
		if err := bench.WriteScaling(scaling, result); err != nil {
			return err
		}
	}
	if security != "" {
		return bench.WriteAttacks(security, result)
	}
	return nil
}

// failures returns an error with the failures of a run, after everything is written.
func failures(result *report.Result) error {
	lines := result.Errors()
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%d figures are missing:\n%s", len(lines), strings.Join(lines, "\n"))
}
