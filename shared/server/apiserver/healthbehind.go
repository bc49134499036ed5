package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/healthz"

	"triune.dev/shared/transport/documents"
)

// maxVerboseHealth bounds the part of another tier's list of checks that is read, in bytes. A
// list of kube-apiserver's checks has 2 KiB.
const maxVerboseHealth = 64 << 10

// withChecksBehind adds the checks of the tiers behind this one to the list that a verbose
// request for an endpoint ("/readyz") is answered with, so that a client finds all checks of
// kube-apiserver in one list. They do not change the status: taking this tier out of rotation
// would also make unreachable what works without the others.
func (s *Server) withChecksBehind(endpoint string, checks []healthz.HealthChecker, own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		query := req.URL.Query()
		if !query.Has("verbose") {
			own.ServeHTTP(w, req)
			return
		}
		answer := bufferedAnswer{header: w.Header(), code: http.StatusOK}
		own.ServeHTTP(&answer, req)
		list := parseHealth(answer.body.Bytes())
		list.addBehind(s.config.Next.Tier, s.healthBehind(req, endpoint))
		list.setUnmatched(query["exclude"], checks)
		w.WriteHeader(answer.code)
		fmt.Fprint(w, list.String()) // the client may have gone
	})
}

// healthBehind returns the list of checks of the tiers behind this one.
func (s *Server) healthBehind(req *http.Request, endpoint string) healthList {
	next := s.config.Next
	unreachable := healthList{checks: []checkLine{{name: "next-" + next.Tier, failed: true, line: "[-]next-" + next.Tier + " failed: reason withheld"}}}
	ctx, cancel := context.WithTimeout(req.Context(), discoveryTimeout)
	defer cancel()
	resp, err := documents.Handler(next.Handler).Get(ctx, documents.Aggregator, endpoint+"?"+req.URL.RawQuery, nil)
	if err != nil {
		return unreachable
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxVerboseHealth))
	if err != nil {
		return unreachable
	}
	list := parseHealth(body)
	if len(list.checks) == 0 {
		return unreachable // the answer of a proxy, such as a 503
	}
	return list
}

// healthList is the body of a verbose answer of package healthz: a line for each check, a
// warning about excluded names that no check has, and a line with the result.
type healthList struct {
	checks []checkLine
	rest   []string // the lines after the checks, without the warning
}

type checkLine struct {
	name   string
	failed bool
	line   string
}

const unmatchedWarning = "warn: some health checks cannot be excluded: no matches for "

func parseHealth(body []byte) healthList {
	var list healthList
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSuffix(line, "\n")
		mark, check := line[:min(3, len(line))], line[min(3, len(line)):]
		name, _, _ := strings.Cut(check, " ")
		switch {
		case mark == "[+]" || mark == "[-]":
			list.checks = append(list.checks, checkLine{name: name, failed: mark == "[-]", line: line})
		case !strings.HasPrefix(line, unmatchedWarning):
			list.rest = append(list.rest, line)
		}
	}
	return list
}

func (l *healthList) has(name string) bool {
	return slices.ContainsFunc(l.checks, func(c checkLine) bool { return c.name == name })
}

// addBehind adds the checks of the tier behind. A check of a name that this tier has, too, is
// added only if it fails, as "tier/name".
func (l *healthList) addBehind(tier string, behind healthList) {
	for _, check := range behind.checks {
		switch {
		case !l.has(check.name):
			l.checks = append(l.checks, check)
		case check.failed:
			l.checks = append(l.checks, checkLine{line: "[-]" + tier + "/" + strings.TrimPrefix(check.line, "[-]")})
		}
	}
}

// setUnmatched adds the warning of package healthz about excluded names, for those that match
// neither a listed check nor the group of one of this tier's checks.
func (l *healthList) setUnmatched(excluded []string, own []healthz.HealthChecker) {
	unmatched := slices.DeleteFunc(slices.Clone(excluded), func(name string) bool {
		return l.has(name) || slices.ContainsFunc(own, func(check healthz.HealthChecker) bool {
			grouped, ok := check.(healthz.GroupedHealthChecker)
			return ok && grouped.GroupName() == name
		})
	})
	if len(unmatched) == 0 {
		return
	}
	slices.Sort(unmatched)
	for i, name := range unmatched {
		unmatched[i] = fmt.Sprintf("%q", name)
	}
	l.rest = slices.Insert(l.rest, 0, unmatchedWarning+strings.Join(slices.Compact(unmatched), ","))
}

func (l *healthList) String() string {
	var b strings.Builder
	for _, check := range l.checks {
		b.WriteString(check.line + "\n")
	}
	for _, line := range l.rest {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// bufferedAnswer is a ResponseWriter that keeps the body.
type bufferedAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *bufferedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *bufferedAnswer) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *bufferedAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
