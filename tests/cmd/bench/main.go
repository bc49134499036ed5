// Command bench starts triune and kube-apiserver in turn, each on fresh data, and
// prints how long each takes until its readyz is green and what it holds in memory
// when idle. Memory of etcd and NATS is counted with whoever needs them: triune has
// both inside.
//
// Reproduce with: make bench
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"triune.dev/tests/cluster"
)

// idle is how long a server is left alone before its memory is read.
const idle = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// subject is a server to be measured with the processes it is made of.
type subject struct {
	topology cluster.Topology
	tiers    []cluster.Tier
}

var subjects = []subject{
	{cluster.Triune, []cluster.Tier{cluster.Tier(cluster.Triune)}},
	{cluster.KubeAPIServer, []cluster.Tier{cluster.Tier(cluster.KubeAPIServer), cluster.Etcd}},
}

// sample is one start.
type sample struct {
	ready     time.Duration // from the start of the process to a green readyz
	rss, anon int64         // bytes, of all its processes
	cpu       time.Duration // of all its processes, until it was ready and idle
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	runs := flags.Int("n", 5, "starts of each server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	samples := map[cluster.Topology][]sample{}
	for range *runs {
		for _, s := range subjects {
			measured, err := s.measure(ctx)
			if err != nil {
				return err
			}
			samples[s.topology] = append(samples[s.topology], measured)
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "median (min–max) of %d starts\tready\tCPU\tresident\tof it anonymous\t\n", *runs)
	for _, s := range subjects {
		of := samples[s.topology]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t\n", s.topology,
			spread(of, func(s sample) float64 { return s.ready.Seconds() }, "%.2f s"),
			spread(of, func(s sample) float64 { return s.cpu.Seconds() }, "%.2f s"),
			spread(of, func(s sample) float64 { return float64(s.rss) / 1e6 }, "%.0f MB"),
			spread(of, func(s sample) float64 { return float64(s.anon) / 1e6 }, "%.0f MB"))
	}
	return table.Flush()
}

func (s subject) measure(ctx context.Context) (sample, error) {
	c, err := cluster.Start(ctx, cluster.Config{Topology: s.topology})
	if err != nil {
		return sample{}, err
	}
	ready := time.Now()
	defer os.RemoveAll(c.Dir)
	measured, err := s.read(ctx, c, ready)
	return measured, errors.Join(err, c.Close())
}

func (s subject) read(ctx context.Context, c *cluster.Cluster, ready time.Time) (sample, error) {
	var total sample
	server, err := readProcess(c.Process(s.tiers[0], 0).PID())
	if err != nil {
		return total, err
	}
	total.ready = ready.Sub(server.started)
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return total, ctx.Err()
	}
	for _, tier := range s.tiers {
		p, err := readProcess(c.Process(tier, 0).PID())
		if err != nil {
			return total, err
		}
		total.rss += p.rss
		total.anon += p.anon
		total.cpu += p.cpu
	}
	return total, nil
}

// spread is the median of a figure with its extremes.
func spread(samples []sample, figure func(sample) float64, format string) string {
	values := make([]float64, 0, len(samples))
	for _, s := range samples {
		values = append(values, figure(s))
	}
	slices.Sort(values)
	return fmt.Sprintf(format+" ("+format+"–"+format+")", values[len(values)/2], values[0], values[len(values)-1])
}
