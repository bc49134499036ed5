package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report describes an installation.
type Report struct {
	Server string `json:"server"`
	// Processes begin with the one that has answered the caller, followed by those behind it.
	// Other replicas of the first tier are not known to it.
	Processes []Process `json:"processes"`
}

// Process describes a server process.
type Process struct {
	// Tier is aggregator, core or extensions, or triune for all of them in one process.
	Tier string `json:"tier"`
	// Address is the one by which the tier in front reaches the process; empty for the first.
	Address string `json:"address,omitempty"`
	// Condition is ready, unready or down, as the tier in front reports it.
	Condition string `json:"condition,omitempty"`
	// Error says why the other fields are empty.
	Error string `json:"error,omitempty"`

	Release string    `json:"release,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// ResidentBytes is its memory, InFlight its requests without watches, and Watches the
	// watches that it serves.
	ResidentBytes int64 `json:"residentBytes,omitempty"`
	InFlight      int64 `json:"inFlight"`
	Watches       int64 `json:"watches"`
	// Relays reports whether the process publishes the event log.
	Relays bool `json:"relays"`
	// Feeds are the event logs that it reads, one for each of its tiers.
	Feeds []Feed `json:"feeds,omitempty"`
	// Resources are its caches, the largest first.
	Resources []Resource `json:"resources,omitempty"`
	// Limits are the limits that have been hit since it started.
	Limits []Limit `json:"limits,omitempty"`
}

// Feed is a reader of the event log.
type Feed struct {
	Tier string `json:"tier"`
	// Source is nats, or etcd while the process watches it itself.
	Source   string `json:"source"`
	Revision int64  `json:"revision"`
	// LagRevisions and LagSeconds say how far it is behind, and for how long.
	LagRevisions int64   `json:"lagRevisions"`
	LagSeconds   float64 `json:"lagSeconds"`
}

// Resource is the cache of a resource.
type Resource struct {
	Name    string `json:"name"`
	Objects int64  `json:"objects"`
	// StoredBytes is the memory of the objects, LogBytes that of recent changes.
	StoredBytes int64 `json:"storedBytes"`
	LogBytes    int64 `json:"logBytes"`
	Watches     int64 `json:"watches"`
}

// Limit is a limit that requests have hit.
type Limit struct {
	Name  string `json:"name"`
	Times int64  `json:"times"`
}

// resourcesInText bounds the resources of a process in text.
const resourcesInText = 10

// WriteText writes the report as tables.
func (r *Report) WriteText(w io.Writer, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "server\t%s\n\n", r.Server)
	fmt.Fprintf(out, "TIER\tADDRESS\tCONDITION\tRELEASE\tUP\tMEMORY\tIN FLIGHT\tWATCHES\tEVENTS FROM\tLAG\n")
	for _, p := range r.Processes {
		if p.Error != "" {
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", p.Tier, orDash(p.Address), orDash(p.Condition), p.Error)
			continue
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", p.Tier, orDash(p.Address), orDash(p.Condition), p.Release,
			now.Sub(p.Started).Round(time.Second), size(p.ResidentBytes), p.InFlight, p.Watches, p.sources(), p.lag())
	}
	if relays := r.relays(); relays != "" {
		fmt.Fprintf(out, "\nThe event log is published by %s.\n", relays)
	}
	for _, p := range r.Processes {
		p.writeResources(out)
	}
	for _, p := range r.Processes {
		if len(p.Limits) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s: LIMITS HIT SINCE ITS START\tTIMES\n", p.name())
		for _, l := range p.Limits {
			fmt.Fprintf(out, "%s\t%d\n", l.Name, l.Times)
		}
	}
	return out.Flush()
}

func (p *Process) writeResources(out io.Writer) {
	if len(p.Resources) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s: RESOURCE\tOBJECTS\tSTORED\tRECENT CHANGES\tWATCHES\n", p.name())
	for i, resource := range p.Resources {
		if i == resourcesInText {
			fmt.Fprintf(out, "… and %d smaller ones\n", len(p.Resources)-i)
			break
		}
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%d\n", resource.Name, resource.Objects, size(resource.StoredBytes), size(resource.LogBytes), resource.Watches)
	}
}

// name returns the tier and, if there may be several replicas, the address.
func (p *Process) name() string { return strings.TrimSpace(p.Tier + " " + p.Address) }

func (r *Report) relays() string {
	var names []string
	for _, p := range r.Processes {
		if p.Relays {
			names = append(names, p.name())
		}
	}
	return strings.Join(names, ", ")
}

func (p *Process) sources() string {
	var all []string
	for _, f := range p.Feeds {
		if len(all) == 0 || all[len(all)-1] != f.Source {
			all = append(all, f.Source)
		}
	}
	return orDash(strings.Join(all, ","))
}

// lag returns the longest lag of a feed.
func (p *Process) lag() string {
	var revisions int64
	var seconds float64
	for _, f := range p.Feeds {
		revisions, seconds = max(revisions, f.LagRevisions), max(seconds, f.LagSeconds)
	}
	if revisions == 0 {
		return "none"
	}
	return fmt.Sprintf("%d revisions, %.1f s", revisions, seconds)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// size formats bytes.
func size(bytes int64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	default:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
}
