package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"triune.dev/tests/faults/wire"
)

// Watcher watches one view from a revision on and writes down what it is told.
// It goes on from its last resourceVersion, at the next server, whenever its
// connection ends. Run is called once; the other methods are safe meanwhile.
type Watcher struct {
	HTTP *http.Client
	URLs []string
	View View
	// Since is the revision after which it begins.
	Since int64
	// Namespaces that count: in a view of all of them there may be others.
	Prefix string
	Random *rand.Rand

	mu     sync.Mutex
	events []Event
	at     int64 // the resourceVersion to resume from
	counts Counts
}

// Counts are what happened to a watcher besides events.
type Counts struct {
	Connections, Bookmarks int
	// Refusals are attempts that were not answered with a watch.
	Refusals int
	// Expired counts 410s: after one it would have to list.
	Expired int
}

// Counts returns those so far.
func (w *Watcher) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// last is the revision of the last event.
func (w *Watcher) last() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return 0
	}
	return w.events[len(w.events)-1].Revision
}

// told returns the events so far. They are not changed any more.
func (w *Watcher) told() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[:len(w.events):len(w.events)]
}

// errExpired is what a watch that needs a new LIST ends with.
var errExpired = errors.New("410")

// Run watches until ctx is over, which is not an error. An error is something that
// no server may say.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.at = w.Since
	w.mu.Unlock()
	for next := w.Random.IntN(len(w.URLs)); ctx.Err() == nil; next++ {
		err := w.once(ctx, w.URLs[next%len(w.URLs)])
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errExpired) {
			w.mu.Lock()
			w.counts.Expired++
			w.mu.Unlock()
		}
		if err != nil {
			return fmt.Errorf("watch %v: %w", w.View, err)
		}
		select { // not all of them at the same moment
		case <-time.After(time.Duration(50+w.Random.IntN(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// frame is a line of a watch.
type frame struct {
	Type   string      `json:"type"`
	Object wire.Object `json:"object"`
}

// once is one connection. Its end, however it comes, is no error.
func (w *Watcher) once(ctx context.Context, server string) error {
	w.mu.Lock()
	at := w.at
	w.mu.Unlock()
	query := url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatInt(at, 10)},
		// Some end in the middle of everything, by themselves.
		"timeoutSeconds": {strconv.Itoa(5 + w.Random.IntN(120))},
	}
	req, err := wire.NewRequest(ctx, http.MethodGet, server+w.View.path(query), "", nil)
	if err != nil {
		return err
	}
	resp, err := w.HTTP.Do(req)
	if err != nil {
		w.refused()
		return nil
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusGone:
		return fmt.Errorf("from %d at %s: %w", at, server, errExpired)
	case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
		w.refused()
		return nil
	case resp.StatusCode != http.StatusOK:
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("from %d at %s: %s: %s", at, server, resp.Status, body)
	}
	w.mu.Lock()
	w.counts.Connections++
	w.mu.Unlock()
	frames := json.NewDecoder(resp.Body)
	for {
		var f frame
		if err := frames.Decode(&f); err != nil {
			if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
				return fmt.Errorf("from %d at %s: %w", at, server, err)
			}
			return nil
		}
		if err := w.take(f); err != nil {
			return fmt.Errorf("from %d at %s: %w", at, server, err)
		}
	}
}

func (w *Watcher) refused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.Refusals++
}

// take writes one frame down.
func (w *Watcher) take(f frame) error {
	if f.Type == "ERROR" {
		if f.Object.Code == http.StatusGone {
			return fmt.Errorf("%w: %s", errExpired, f.Object.Message)
		}
		if f.Object.Code >= http.StatusInternalServerError {
			return nil // the connection ends, and a client goes on
		}
		return fmt.Errorf("event ERROR: %d %s: %s", f.Object.Code, f.Object.Reason, f.Object.Message)
	}
	revision, err := f.Object.Metadata.Revision()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Type, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Type == "BOOKMARK" {
		w.counts.Bookmarks++
		if revision < w.at {
			return fmt.Errorf("a bookmark of %d after %d", revision, w.at)
		}
		w.at = revision
		return nil
	}
	if revision <= w.at {
		return fmt.Errorf("%s of %s at %d after %d", f.Type, f.Object.Metadata.Name, revision, w.at)
	}
	w.at = revision
	if !strings.HasPrefix(f.Object.Metadata.Namespace, w.Prefix) {
		return nil
	}
	serial, err := strconv.Atoi(f.Object.Data[Serial])
	if err != nil {
		if f.Object.Data[Serial] == "" {
			return nil // one that a controller wrote
		}
		return fmt.Errorf("%s of %s: serial: %w", f.Type, f.Object.Metadata.Name, err)
	}
	w.events = append(w.events, Event{
		Key:  Key{f.Object.Metadata.Namespace, f.Object.Metadata.Name},
		Type: f.Type, Revision: revision, Serial: serial,
	})
	return nil
}

// Told is the number of events so far.
func (w *Watcher) Told() int { return len(w.told()) }
