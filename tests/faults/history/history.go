package history

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// History has the requests and answers of all clients of one namespace. Its methods may be
// called concurrently.
type History struct {
	begin time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
	unknown    int // number of writes with an unknown outcome
}

// New returns an empty history, for a namespace without config maps.
func New() *History { return &History{begin: time.Now()} }

// Now returns the current time for Add.
func (h *History) Now() int64 { return int64(time.Since(h.begin)) }

// Add records a request that was sent at the given time, and its answer, which came now.
func (h *History) Add(client int, r Request, sent int64, a Answer) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case a.Result == Refused || a.Result == Unknown && !r.Verb.Writes():
		return // without an effect
	case a.Result == Unknown:
		h.unknown++
		now = math.MaxInt64
	}
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: call{r, now}, Call: sent, Output: a, Return: now})
}

// Len returns the number of requests.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.operations)
}

// Unknown returns the number of writes with an unknown outcome.
func (h *History) Unknown() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unknown
}

// Check returns nil if the history is linearizable. If it is not, or if limit is too short
// to decide, the error begins with the part that could be explained, and a page for a
// browser is written to picture, if that is not empty.
func (h *History) Check(limit time.Duration, picture string) error {
	h.mu.Lock()
	operations := slices.Clone(h.operations)
	h.mu.Unlock()
	operations, all := resolve(operations)
	if len(all) > maxLost {
		return fmt.Errorf("a history with %d writes of unknown outcome says too little", len(all))
	}
	model := modelWith(all)
	result, info := porcupine.CheckOperationsVerbose(model, operations, limit)
	if result == porcupine.Ok {
		return nil
	}
	verdict := "is not linearizable"
	if result == porcupine.Unknown {
		verdict = fmt.Sprintf("was not decided within %v", limit)
	}
	if picture != "" {
		if err := draw(model, info, picture); err != nil {
			return fmt.Errorf("a history of %d requests %s; picture: %w", len(operations), verdict, err)
		}
		verdict += ", see " + picture
	}
	return fmt.Errorf("a history of %d requests %s\n%s", len(operations), verdict, stuck(model, operations, info))
}

// resolve determines the outcome of writes without an answer: a write whose value was seen
// was executed, at the revision seen, before the first answer that shows it. The others are
// returned separately.
func resolve(operations []porcupine.Operation) ([]porcupine.Operation, []lost) {
	type sighting struct {
		item Item
		over int64
	}
	seen := map[string]sighting{}
	see := func(item Item, over int64) {
		if s, ok := seen[item.Value]; !ok || over < s.over {
			seen[item.Value] = sighting{item, over}
		}
	}
	for _, op := range operations {
		a := op.Output.(Answer)
		for _, item := range a.Items {
			see(item, op.Return)
		}
		if a.Result == Done && op.Input.(call).Verb == Get {
			see(a.Item, op.Return)
		}
	}
	var known []porcupine.Operation
	var all []lost
	for _, op := range operations {
		c := op.Input.(call)
		if op.Output.(Answer).Result == Unknown {
			s, ok := seen[c.Value]
			if !ok || c.Verb == Delete {
				all = append(all, lost{c.Request, op.Call})
				continue
			}
			a := op.Output.(Answer)
			a.Result, a.Item, a.Detail = Done, s.item, "as seen; "+a.Detail
			c.over, op.Return = s.over, s.over
			op.Input, op.Output = c, a
		}
		known = append(known, op)
	}
	return known, all
}

func draw(model porcupine.Model, info porcupine.LinearizationInfo, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return porcupine.Visualize(model, info, f)
}

// stuck returns the requests around the point beyond which nothing could be explained.
func stuck(model porcupine.Model, operations []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, partial := range partition {
			if len(partial) > len(longest) {
				longest = partial
			}
		}
	}
	explained := map[string]bool{}
	id := func(op porcupine.Operation) string {
		return fmt.Sprint(op.ClientId, " ", op.Call)
	}
	for _, op := range longest {
		explained[id(op)] = true
	}
	var out strings.Builder
	write := func(note string, op porcupine.Operation) {
		end := "…"
		if op.Return != math.MaxInt64 {
			end = time.Duration(op.Return).Round(10 * time.Microsecond).String()
		}
		fmt.Fprintf(&out, "%s client %d %v–%s %s\n", note, op.ClientId,
			time.Duration(op.Call).Round(10*time.Microsecond), end, describe(op.Input.(call).Request, op.Output.(Answer)))
	}
	s := model.Init()
	for i, op := range longest {
		_, s = model.Step(s, op.Input, op.Output)
		if i >= len(longest)-12 {
			write("explained:  ", op)
		}
	}
	fmt.Fprintf(&out, "state then:  %s\n", model.DescribeState(s))
	left := 0
	slices.SortFunc(operations, func(a, b porcupine.Operation) int { return int(a.Return>>1) - int(b.Return>>1) })
	for _, op := range operations {
		if !explained[id(op)] {
			if left++; left <= 8 {
				write("unexplained:", op)
			}
		}
	}
	fmt.Fprintf(&out, "%d of %d explained", len(longest), len(operations))
	return out.String()
}
