package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"triune.dev/shared/server/apiserver"
)

const (
	// maxDepth bounds the tiers behind the first one, and maxDocument a document in bytes: the
	// metrics of a server with 1,000 CRDs have 20 MB.
	maxDepth    = 3
	maxDocument = 256 << 20
)

// Collect asks the server of a configuration and those behind it. An error of the first one
// is returned; a process behind it that does not answer has the error in the report.
func Collect(ctx context.Context, config *rest.Config) (*Report, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	c := collector{client: client, base: strings.TrimSuffix(base.String(), "/")}
	r := &Report{Server: c.base}
	edge, err := c.process(ctx, "")
	if err != nil {
		return nil, err
	}
	behind, err := c.behind(ctx, "")
	switch {
	case errors.Is(err, errNotFound):
		edge.Tier = "triune"
		r.Processes = []Process{edge}
	case err != nil:
		return nil, err
	default:
		edge.Tier = "aggregator"
		r.Processes = append([]Process{edge}, c.below(ctx, "", behind, maxDepth)...)
	}
	return r, nil
}

// errNotFound is returned for a path that a server does not have, such as BehindPrefix where
// nothing is behind it.
var errNotFound = errors.New("not found")

type collector struct {
	client *http.Client
	base   string
}

// below returns the processes of the next tier of the process at a path, and of the tiers
// behind that one. Those are asked of the first replica that answers.
func (c collector) below(ctx context.Context, path string, behind apiserver.Behind, depth int) []Process {
	var all, further []Process
	for _, replica := range behind.Replicas {
		at := path + apiserver.BehindPrefix + replica.Address
		p, err := c.process(ctx, at)
		if err != nil {
			p = Process{Error: err.Error()}
		}
		p.Tier, p.Address, p.Condition = behind.Tier, replica.Address, replica.Condition
		all = append(all, p)
		if err != nil || depth == 0 || len(further) > 0 {
			continue
		}
		switch next, err := c.behind(ctx, at); {
		case err == nil:
			further = c.below(ctx, at, next, depth-1)
		case !errors.Is(err, errNotFound):
			all = append(all, Process{Tier: "behind " + behind.Tier, Error: err.Error()})
		}
	}
	return append(all, further...)
}

// behind returns what is behind the process at a path, or errNotFound.
func (c collector) behind(ctx context.Context, path string) (b apiserver.Behind, err error) {
	body, err := c.get(ctx, path+apiserver.BehindPrefix)
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(body, &b)
}

// process returns the description of the process at a path.
func (c collector) process(ctx context.Context, path string) (Process, error) {
	body, err := c.get(ctx, path+"/metrics")
	if err != nil {
		return Process{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		return Process{}, fmt.Errorf("%s/metrics: %w", path, err)
	}
	return describe(families), nil
}

// get returns the body of a response. The error is that of the API if it sent one.
func (c collector) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w", path, errNotFound)
	}
	var status apierrors.StatusError
	if json.Unmarshal(body, &status.ErrStatus) == nil && status.ErrStatus.Message != "" {
		return nil, &status
	}
	return nil, fmt.Errorf("%s: %s", path, resp.Status)
}

// families are the metrics of a process, by name.
type families map[string]*dto.MetricFamily

// sum returns the sum of the values that match, and reports whether there are any.
func (f families) sum(name string, match func(labels map[string]string) bool) (total float64, ok bool) {
	for _, m := range f[name].GetMetric() {
		if match == nil || match(labelsOf(m)) {
			total += valueOf(m)
			ok = true
		}
	}
	return total, ok
}

// by returns the sums of a metric by the value of a label.
func (f families) by(name, label string) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f[name].GetMetric() {
		all[labelsOf(m)[label]] += valueOf(m)
	}
	return all
}

func labelsOf(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

func valueOf(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
}

func describe(f families) Process {
	var p Process
	for _, m := range f["kubernetes_build_info"].GetMetric() {
		p.Release = labelsOf(m)["git_version"]
	}
	if seconds, ok := f.sum("process_start_time_seconds", nil); ok {
		p.Started = time.Unix(int64(seconds), 0).UTC()
	}
	resident, _ := f.sum("process_resident_memory_bytes", nil)
	p.ResidentBytes = int64(resident)
	inFlight, _ := f.sum("apiserver_current_inflight_requests", nil)
	p.InFlight = int64(inFlight)
	watches := f.watches()
	for _, n := range watches {
		p.Watches += n
	}
	relays, _ := f.sum("triune_eventlog_relay_elected", nil)
	p.Relays = relays == 1
	p.Feeds = f.feeds()
	p.Resources = f.resources(watches)
	p.Limits = f.limits()
	return p
}

// watches returns the numbers of watches by group and resource: "/pods", "example.com/widgets".
func (f families) watches() map[string]int64 {
	all := map[string]int64{}
	for _, m := range f["apiserver_longrunning_requests"].GetMetric() {
		labels := labelsOf(m)
		if labels["verb"] != "WATCH" {
			continue
		}
		all[labels["group"]+"/"+labels["resource"]] += int64(valueOf(m))
	}
	return all
}

func (f families) feeds() []Feed {
	var all []Feed
	for tier, stream := range f.by("triune_eventlog_from_stream", "tier") {
		of := func(labels map[string]string) bool { return labels["tier"] == tier }
		value := func(name string) float64 {
			v, _ := f.sum("triune_eventlog_"+name, of)
			return v
		}
		feed := Feed{Tier: tier, Source: "etcd", Revision: int64(value("revision")), LagRevisions: int64(value("lag_revisions")), LagSeconds: value("lag_seconds")}
		if stream == 1 {
			feed.Source = "nats"
		}
		all = append(all, feed)
	}
	slices.SortFunc(all, func(a, b Feed) int { return cmp.Compare(a.Tier, b.Tier) })
	return all
}

func (f families) resources(watches map[string]int64) []Resource {
	stored, changes := f.by("triune_bytecache_stored_bytes", "resource"), f.by("triune_bytecache_log_bytes", "resource")
	cached := f.by("triune_bytecache_objects", "resource")
	// The keys of most built-in resources have no group, and one key serves several groups.
	byName := map[string]int64{}
	for of, n := range watches {
		if _, ok := cached[of]; !ok {
			_, of, _ = strings.Cut(of, "/")
		}
		byName[of] += n
	}
	var all []Resource
	for name, objects := range cached {
		all = append(all, Resource{
			Name: name, Objects: int64(objects), StoredBytes: int64(stored[name]), LogBytes: int64(changes[name]), Watches: byName[name],
		})
	}
	slices.SortFunc(all, func(a, b Resource) int {
		return cmp.Or(cmp.Compare(b.StoredBytes+b.LogBytes, a.StoredBytes+a.LogBytes), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// limits returns the limits that requests have hit.
func (f families) limits() []Limit {
	var all []Limit
	add := func(name string, times float64) {
		if times > 0 {
			all = append(all, Limit{name, int64(times)})
		}
	}
	for level, times := range f.by("apiserver_flowcontrol_rejected_requests_total", "priority_level") {
		add("requests refused by priority level "+level, times)
	}
	refused, _ := f.sum("triune_next_tier_requests_total", func(labels map[string]string) bool { return labels["outcome"] == "refused" })
	add("requests beyond a user's share of the hop", refused)
	for result, times := range f.by("apiserver_request_terminations_total", "code") {
		if result == "429" {
			add("requests refused because too many were in flight", times)
		}
	}
	failures, _ := f.sum("triune_next_tier_replica_failures_total", nil)
	add("times that a replica behind it went down", failures)
	gaps, _ := f.sum("triune_eventlog_gaps_total", nil)
	add("gaps found in the event log", gaps)
	stalls, _ := f.sum("triune_eventlog_stalls_total", nil)
	add("stalls of the event log", stalls)
	slices.SortFunc(all, func(a, b Limit) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
