package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
)

// auditLog returns the path of the audit log of a tier's replicas.
func (p *production) auditLog(tier cluster.Tier) string {
	return p.file("audit-" + string(tier) + ".log")
}

// checkAudit sends requests to each tier, and expects one event of each request in the log of
// one tier and in the webhook.
func checkAudit(t *testing.T, c *cluster.Cluster, p *production) {
	config := restConfig(t, c)
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func(context.Context) error { // kube-apiserver answers 429 at first
		_, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().RequestURI("/apis/production.triune.dev/v1/wheels").DoRaw(t.Context())
		return err
	})
	requests := map[string]string{
		"core":              "/api/v1/namespaces/default/configmaps",
		"custom resources":  "/apis/production.triune.dev/v1/namespaces/default/wheels",
		"definitions":       "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"apiservices":       "/apis/apiregistration.k8s.io/v1/apiservices",
		"discovery":         "/apis",
		"group":             "/apis/production.triune.dev",
		"index":             "/",
		"openapi v2":        "/openapi/v2",
		"openapi of core":   "/openapi/v3/apis/apps/v1",
		"openapi of a CRD":  "/openapi/v3/apis/production.triune.dev/v1",
		"nothing":           "/apis/nothing.triune.dev/v1/things",
		"nothing elsewhere": "/nothing",
	}
	for name, path := range requests {
		id := "audit-" + strings.ReplaceAll(name, " ", "-")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Audit-ID", id)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resp.Body.Close()
		want := http.StatusOK
		if strings.HasPrefix(name, "nothing") {
			want = http.StatusNotFound
		}
		if resp.StatusCode != want || resp.Header.Get("Audit-ID") != id {
			t.Errorf("%s: status %d, want %d; Audit-ID %q", name, resp.StatusCode, want, resp.Header.Get("Audit-ID"))
		}
	}
	for name, path := range requests {
		id := "audit-" + strings.ReplaceAll(name, " ", "-")
		eventually(t, patience, func(context.Context) error {
			logged := map[string]int{}
			for _, tier := range c.ServingTiers() {
				logged[string(tier)] = loggedEvents(t, p.auditLog(tier), id, path)
			}
			total := 0
			for _, n := range logged {
				total += n
			}
			if told := p.webhook.count(id); total != 1 || told != 1 {
				return fmt.Errorf("%s: %v in the logs, %d at the webhook, want one", path, logged, told)
			}
			return nil
		})
	}
}

// checkOwnAudit checks that requests of the server itself are audited, too: it registers the
// group-version of a CRD.
func checkOwnAudit(t *testing.T, c *cluster.Cluster, p *production) {
	eventually(t, patience, func(context.Context) error {
		for _, tier := range c.ServingTiers() {
			for _, event := range events(t, p.auditLog(tier), "v1.production.triune.dev") {
				if event.Verb == "create" && event.ObjectRef != nil && event.ObjectRef.Resource == "apiservices" && strings.HasPrefix(event.User.Username, "system:") {
					return nil
				}
			}
		}
		return errors.New("no event says that the APIService was created")
	})
}

// events returns the last event of each request in an audit log that contains about.
func events(t *testing.T, file, about string) (all []auditv1.Event) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var event auditv1.Event
		if !bytes.Contains(lines.Bytes(), []byte(about)) || json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // about something else, or still being written
		}
		if event.Stage == auditv1.StageResponseComplete {
			all = append(all, event)
		}
	}
	return all
}

// loggedEvents counts the last events of a request in an audit log.
func loggedEvents(t *testing.T, file, id, path string) (n int) {
	t.Helper()
	for _, event := range events(t, file, id) {
		if string(event.AuditID) != id {
			continue
		}
		n++
		if event.RequestURI != path || event.User.Username == "" {
			t.Errorf("audit event of %s has the URI %s and the user %q", path, event.RequestURI, event.User.Username)
		}
	}
	return n
}
