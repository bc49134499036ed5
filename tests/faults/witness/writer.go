package witness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"triune.dev/tests/faults/wire"
)

// Writer creates, updates and deletes config maps of one namespace that nobody
// else touches, and writes into the ledger what it did. Run is called once.
type Writer struct {
	HTTP   *http.Client
	URLs   []string
	Ledger *Ledger
	// Namespace exists, and Prefix begins the names of all that is written.
	Namespace, Prefix string
	// Every is the time between two changes.
	Every  time.Duration
	Random *rand.Rand

	next    int
	created int
	live    []*written
	// Troubles counts requests without a clear answer, and Longest is how long
	// one change took at most.
	Troubles int
	Longest  time.Duration
}

// written is a config map as the writer left it.
type written struct {
	key      Key
	revision int64
	serial   int
}

// patience bounds one request of a writer.
const patience = 2 * time.Second

// maxLive is how many config maps a writer keeps.
const maxLive = 6

// Run writes until done is over, and returns when the last change is certain. An
// error means an answer that no server may give, or that ctx is over.
func (w *Writer) Run(ctx context.Context, done <-chan struct{}) error {
	select { // not all of them at the same moment
	case <-done:
		return nil
	case <-time.After(time.Duration(w.Random.Int64N(int64(w.Every)))):
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
			begin := time.Now()
			if err := w.change(ctx); err != nil {
				return fmt.Errorf("write in %s: %w", w.Namespace, err)
			}
			w.Longest = max(w.Longest, time.Since(begin))
		}
	}
}

// Mark creates one config map for each value of the label, so that every watcher
// of the namespace has something to see last.
func (w *Writer) Mark(ctx context.Context) error {
	for shard := range Shards {
		if err := w.create(ctx, shard); err != nil {
			return fmt.Errorf("mark the end of %s: %w", w.Namespace, err)
		}
	}
	return nil
}

func (w *Writer) change(ctx context.Context) error {
	dice := w.Random.IntN(10)
	switch {
	case len(w.live) == 0 || dice < 2 && len(w.live) < maxLive:
		return w.create(ctx, w.Random.IntN(Shards))
	case dice == 9:
		return w.remove(ctx)
	}
	return w.update(ctx)
}

func (w *Writer) object(o *written, serial, shard int) wire.Object {
	body := wire.Object{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{Serial: strconv.Itoa(serial)}}
	body.Metadata.Name = o.key.Name
	body.Metadata.Labels = map[string]string{Label: value(shard)}
	if o.revision != 0 {
		body.Metadata.ResourceVersion = strconv.FormatInt(o.revision, 10)
	}
	return body
}

// create uses a name that never was before, so a create that comes late finds it
// taken.
func (w *Writer) create(ctx context.Context, shard int) error {
	w.created++
	o := &written{key: Key{w.Namespace, fmt.Sprintf("%s-%d", w.Prefix, w.created)}, serial: 1}
	body := w.object(o, 1, shard)
	for {
		answer, code, err := w.send(ctx, http.MethodPost, "", body)
		if err != nil {
			return err
		}
		if code == http.StatusConflict && answer.Reason == "AlreadyExists" {
			// An earlier attempt was carried out.
			if answer, code, err = w.send(ctx, http.MethodGet, o.key.Name, nil); err != nil {
				return err
			}
		}
		if code == http.StatusCreated || code == http.StatusOK {
			if err := w.accept(o, answer, 1, shard); err != nil {
				return err
			}
			w.live = append(w.live, o)
			return nil
		}
		if code != 0 {
			return fmt.Errorf("create %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

// update repeats itself until the object is as it should be: all attempts have
// the same precondition, so one of them at most is carried out.
func (w *Writer) update(ctx context.Context) error {
	o := w.live[w.Random.IntN(len(w.live))]
	serial, shard := o.serial+1, w.Random.IntN(Shards)
	if w.Random.IntN(3) > 0 { // mostly, the label stays
		changes := w.Ledger.of(o.key)
		shard = changes[len(changes)-1].Shard
	}
	body := w.object(o, serial, shard)
	for {
		answer, code, err := w.send(ctx, http.MethodPut, o.key.Name, body)
		if err != nil {
			return err
		}
		if code == http.StatusConflict && answer.Reason == "Conflict" {
			if answer, code, err = w.send(ctx, http.MethodGet, o.key.Name, nil); err != nil {
				return err
			}
		}
		if code == http.StatusOK {
			return w.accept(o, answer, serial, shard)
		}
		if code != 0 {
			return fmt.Errorf("update %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

func (w *Writer) remove(ctx context.Context) error {
	i := w.Random.IntN(len(w.live))
	o := w.live[i]
	body := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]any{"resourceVersion": strconv.FormatInt(o.revision, 10)}}
	for tried := 0; ; tried++ {
		answer, code, err := w.send(ctx, http.MethodDelete, o.key.Name, body)
		if err != nil {
			return err
		}
		if code == http.StatusOK || code == http.StatusNotFound && tried > 0 {
			w.live = append(w.live[:i], w.live[i+1:]...)
			w.Ledger.add(o.key, Change{Serial: o.serial, Shard: -1})
			return nil
		}
		if code != 0 {
			return fmt.Errorf("delete %s: %d %s", o.key.Name, code, answer.Message)
		}
	}
}

// accept writes down what was done, if the answer shows it.
func (w *Writer) accept(o *written, answer wire.Object, serial, shard int) error {
	revision, err := answer.Metadata.Revision()
	if err != nil {
		return err
	}
	if got := answer.Data[Serial]; got != strconv.Itoa(serial) {
		return fmt.Errorf("%s has serial %s after change %d", o.key.Name, got, serial)
	}
	if revision <= o.revision {
		return fmt.Errorf("%s is at revision %d after %d", o.key.Name, revision, o.revision)
	}
	o.revision, o.serial = revision, serial
	w.Ledger.add(o.key, Change{Revision: revision, Serial: serial, Shard: shard})
	return nil
}

func (l *Ledger) of(key Key) []Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes[key]
}

// send asks the next server. No code means that there was no clear answer, and
// that a moment has passed.
func (w *Writer) send(ctx context.Context, method, name string, body any) (wire.Object, int, error) {
	server := w.URLs[w.next%len(w.URLs)]
	w.next++
	target := server + "/api/v1/namespaces/" + w.Namespace + "/configmaps"
	if name != "" {
		target += "/" + name
	}
	contentType := "application/json"
	if body == nil {
		contentType = ""
	}
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := wire.NewRequest(attempt, method, target, contentType, body)
	if err != nil {
		return wire.Object{}, 0, err
	}
	code, o, err := wire.Do(w.HTTP, req)
	if err == nil && code < http.StatusInternalServerError && code != http.StatusTooManyRequests {
		return o, code, nil
	}
	w.Troubles++
	select {
	case <-time.After(50 * time.Millisecond):
		return wire.Object{}, 0, nil
	case <-ctx.Done():
		return wire.Object{}, 0, fmt.Errorf("%s %s: %d %w: %w", method, target, code, err, context.Cause(ctx))
	}
}
