package parity

import (
	"encoding/base64"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"triune.dev/tests/cluster"
	"triune.dev/tests/hooks"
)

// serveExtension is an extension API server, which answers to a request for an object as that
// is named, see badAnswers, and under echo/ with the request.
func serveExtension(discovery func(http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// /apis/<group>/<version>/<resource>/<name>
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		switch {
		case len(parts) == 3 && parts[0] == "apis":
			discovery(w, r)
		case len(parts) > 4 && parts[3] == "echo":
			r.Header.Del("Accept-Encoding") // see docs/divergences.md
			echo(w, r)
		case len(parts) == 5 && badAnswers[parts[4]] != nil:
			badAnswers[parts[4]](w, r)
		default:
			http.Error(w, "nothing is here", http.StatusNotFound)
		}
	}
}

func listNothing(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	version := strings.TrimPrefix(r.URL.Path, "/apis/")
	_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"`+version+`","resources":[]}`)
}

// TestExtensionServers has APIServices whose servers answer in every invalid way, cannot be
// trusted, and are not there.
func TestExtensionServers(t *testing.T) {
	p := newPair(t)
	p.createNamespace()
	p.same(Request{Do: "POST /api/v1/namespaces/${ns}/services", Unchecked: true, Object: map[string]any{
		// A name may resolve to the loopback address, while an endpoint must not be one.
		"metadata": map[string]any{"name": "extension"}, "spec": map[string]any{"type": "ExternalName", "externalName": "localhost"},
	}})
	certificate, err := hooks.NewCertificate("extension." + p.reference["ns"] + ".svc")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := hooks.NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	serve := func(c *hooks.Certificate, discovery func(http.ResponseWriter, *http.Request)) int {
		server := c.Serve(serveExtension(discovery))
		t.Cleanup(server.Close)
		return listenerPort(server.Listener)
	}
	closed, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]int{
		"works":    serve(certificate, listNothing),
		"stranger": serve(stranger, listNothing),
		"broken":   serve(certificate, badAnswers["broken"]),
		"garbage":  serve(certificate, badAnswers["no-http"]),
		"redirect": serve(certificate, badAnswers["redirect"]),
		"plain":    listenerPort(listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello\n") })),
		"silent":   listenerPort(listen(t, func(net.Conn) { <-t.Context().Done() })),
		"closed":   closed,
	}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		p.same(Request{Do: "POST /apis/apiregistration.k8s.io/v1/apiservices", Unchecked: true, Object: map[string]any{
			"metadata": map[string]any{"name": "v1." + name + ".${ns}.example.com"},
			"spec": map[string]any{
				"group": name + ".${ns}.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
				"caBundle": base64.StdEncoding.EncodeToString(certificate.CA),
				"service":  map[string]any{"namespace": "${ns}", "name": "extension", "port": ports[name]},
			},
		}})
	}
	// They would be in the discovery of other tests.
	defer func() {
		for _, name := range slices.Sorted(maps.Keys(ports)) {
			p.same(Request{Do: "DELETE /apis/apiregistration.k8s.io/v1/apiservices/v1." + name + ".${ns}.example.com", Unchecked: true})
		}
	}()
	api := func(name string) string { return "/apis/" + name + ".${ns}.example.com/v1" }
	t.Run("conditions", func(t *testing.T) {
		p := p.in(t)
		for _, name := range slices.Sorted(maps.Keys(ports)) {
			until := "FailedDiscoveryCheck"
			if name == "works" {
				until = `"Passed"`
			}
			condition := Request{Do: "GET /apis/apiregistration.k8s.io/v1/apiservices/v1." + name + ".${ns}.example.com", Until: until}
			if name == "silent" {
				condition.Volatile = []string{"status"} // which of two timeouts passes first is a matter of chance
			}
			p.same(condition)
			p.same(Request{Do: "GET " + api(name) + "/things"})
			p.same(Request{Do: "GET " + api(name) + "/things", User: "alice"})
		}
	})
	t.Run("answers", func(t *testing.T) {
		p := p.in(t)
		p.same(Request{Do: "GET " + api("works"), Until: "APIResourceList"})
		for _, name := range slices.Sorted(maps.Keys(badAnswers)) {
			p.same(Request{Do: "GET " + api("works") + "/things/" + name})
		}
		// Which error follows first after a POST of half an answer is a matter of chance.
		for _, name := range []string{"works", "cookie", "status", "not-found", "broken", "redirect"} {
			p.same(Request{Do: "POST " + api("works") + "/things/" + name, Body: "{}"})
		}
	})
	t.Run("requests", func(t *testing.T) {
		p := p.in(t)
		for _, path := range []string{"/echo/a", "/echo/a?c=d%2F&e", "/echo/a/../b", "/echo//a"} {
			p.same(Request{Do: "GET " + api("works") + path})
		}
		for _, header := range []map[string]string{
			{"X-Forwarded-For": "192.0.2.1"}, {"Te": "trailers"}, {"Cookie": "a=b"}, {"Authorization": "Basic eDp5"}, {"Proxy-Authorization": "Basic eDp5"},
			{"X-Remote-User": "alice"}, {"X-Remote-Group": "system:masters"}, {"X-Remote-Extra-A": "b"}, {"Accept-Encoding": "gzip"},
		} {
			p.same(Request{Do: "GET " + api("works") + "/echo/a", Headers: header})
		}
		p.same(Request{Do: "PATCH " + api("works") + "/echo/a", Body: "{}"})
	})
}
