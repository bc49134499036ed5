package parity

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// auditWebhook receives audit events; each tier has its own path.
type auditWebhook struct {
	url string

	mu      sync.Mutex
	batches int
	refused map[string]bool // by their bytes
	events  map[cluster.Tier][]string
	err     error
}

func newAuditWebhook(t *testing.T) *auditWebhook {
	t.Helper()
	w := &auditWebhook{refused: map[string]bool{}, events: map[cluster.Tier][]string{}}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// kubeconfig writes the file with which a tier sends its events here.
func (w *auditWebhook) kubeconfig(t *testing.T, dir string, tier cluster.Tier) string {
	t.Helper()
	name := filepath.Join(dir, string(tier)+".kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "%s/%s"}}]}`, w.url, tier)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// ServeHTTP refuses every third batch once; it is then sent again.
func (w *auditWebhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var batch struct {
		Items []json.RawMessage `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(body, &batch)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = fmt.Errorf("batch of events: %w", err)
		return
	}
	if w.batches++; w.batches%3 == 0 && !w.refused[string(body)] {
		w.refused[string(body)] = true
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	tier := cluster.Tier(r.URL.Path[1:])
	for _, item := range batch.Items {
		text, err := plainEvent(item)
		if err != nil {
			w.err = err
			return
		}
		w.events[tier] = append(w.events[tier], text)
	}
}

// plainEvent returns an event without the fields that list elements lack, with sorted
// fields.
func plainEvent(event []byte) (string, error) {
	var fields map[string]any
	if err := json.Unmarshal(event, &fields); err != nil {
		return "", fmt.Errorf("event: %w: %s", err, event)
	}
	delete(fields, "kind")
	delete(fields, "apiVersion")
	text, err := json.Marshal(fields)
	return string(text), err
}

// compare fails unless the webhook got exactly the events of a tier's logs, each once.
func (w *auditWebhook) compare(t *testing.T, tier cluster.Tier, logs string) {
	t.Helper()
	var diff string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		// A server audits its own requests all the time, so read the logs after the
		// webhook's events, which they must contain.
		w.mu.Lock()
		got, err := slices.Clone(w.events[tier]), w.err
		w.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		lines, err := readLogs(logs)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, line := range lines {
			text, err := plainEvent(line)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, text)
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff = cmp.Diff(want, got); diff == "" && len(got) > 0 {
			return
		}
	}
	t.Errorf("%s: events in the log (-) and at the webhook (+):\n%s", tier, limit(diff, 3000))
}
