package parity

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// TestShutdown stops two servers while a request is in flight. It compares what they answer in
// each phase, and the events of their logs: with --shutdown-send-retry-after the server listens
// until that request is answered, and otherwise it does not.
func TestShutdown(t *testing.T) {
	if testing.Short() {
		t.Skip("four more servers for one test (-short)")
	}
	for name, flag := range map[string]string{
		"send retry-after": "--shutdown-send-retry-after=true",
		"close":            "--shutdown-send-retry-after=false",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			defer stop()
			stopped, err := startPeers(ctx, func(cluster.Tier) []string {
				return []string{flag, "--v=1", "--shutdown-delay-duration=3s"}
			})
			defer func() {
				if err := closePeers(stopped, t.Failed); err != nil {
					t.Error(err)
				}
			}()
			if err != nil {
				t.Fatal(err)
			}
			want, got := observeShutdown(t, stopped[0]), observeShutdown(t, stopped[1])
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("(-kube-apiserver +tested):\n%s", diff)
			}
		})
	}
}

// phases of a shutdown.
type phases struct {
	// Delayed and Draining are the answers to new requests during the delay and after it.
	Delayed, Draining []string
	// InFlight is the answer to the request that was in flight.
	InFlight string
	// Events are those of the log.
	Events []string
}

var shutdownEvent = regexp.MustCompile(`\[graceful-termination\] (?:shutdown event|pre-shutdown hooks completed)" name="(\w+)"`)

// observeShutdown stops the server, or the head of the tiers, with a request in flight.
func observeShutdown(t *testing.T, peer *Peer) (seen phases) {
	t.Helper()
	tier := peer.Cluster.ServingTiers()[0]
	head, address := peer.Cluster.Process(tier, 0), peer.Cluster.ReplicaURL(tier, 0)
	body, upload := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/api/v1/namespaces/default/configmaps?dryRun=All", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	answered := make(chan string, 1)
	go func() {
		resp, err := peer.clients["admin"].Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		resp.Body.Close()
		answered <- resp.Status
	}()
	if _, err := io.WriteString(upload, `{"metadata":`); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // until the server has it

	exited := make(chan error, 1)
	go func() { exited <- head.Stop() }()
	time.Sleep(time.Second)
	seen.Delayed = askNew(t, peer, address)
	awaitEvent(t, head, "NotAcceptingNewRequest")
	time.Sleep(300 * time.Millisecond)
	seen.Draining = askNew(t, peer, address)
	if _, err := io.WriteString(upload, `{"name":"late"}}`); err != nil {
		t.Fatal(err)
	}
	upload.Close()
	seen.InFlight = <-answered
	if err := <-exited; err != nil {
		t.Error(err)
	}
	for _, match := range shutdownEvent.FindAllStringSubmatch(head.Log(1<<20), -1) {
		seen.Events = append(seen.Events, match[1])
	}
	return seen
}

// askNew sends requests to one server over new connections.
func askNew(t *testing.T, peer *Peer, address string) (answers []string) {
	t.Helper()
	for _, path := range []string{"/readyz", "/livez", "/api/v1/namespaces/default"} {
		transport := peer.clients["admin"].Transport.(*http.Transport).Clone()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			answers = append(answers, path+": no connection")
			continue
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		transport.CloseIdleConnections()
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if path == "/readyz" && resp.StatusCode == http.StatusInternalServerError {
			lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.HasPrefix(line, "[-]") })
			text = strings.Join(lines, "\n")
		} else if resp.StatusCode == http.StatusOK {
			text = ""
		}
		answers = append(answers, path+": "+resp.Status+" "+resp.Header.Get("Retry-After")+" "+resp.Header.Get("Connection")+" "+text)
	}
	return answers
}

func awaitEvent(t *testing.T, p *cluster.Process, name string) {
	t.Helper()
	for deadline := time.Now().Add(requestTimeout); !strings.Contains(p.Log(1<<20), `shutdown event" name="`+name+`"`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no event %s", name)
		}
	}
}
