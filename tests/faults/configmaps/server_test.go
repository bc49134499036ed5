package configmaps

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"triune.dev/tests/faults/wire"
)

// faults are the bugs of a server.
type faults struct {
	lag              int  // reads at resourceVersion=0 lag this many writes behind
	staleLists       bool // all lists lag behind, too
	newerThanItSays  bool // the revision of a list is older than its content
	noPreconditions  bool // updates always succeed
	undeadAfter      int  // every n-th delete is acknowledged and not executed
	breakAnswers     int  // every n-th write is answered with 500, half of them after execution
	lateWrites       bool // interrupted writes are executed much later
	sameRevision     int  // every n-th write gets the revision of the previous one
	conflictsAtFault int  // every n-th update conflicts without a reason
}

// server is a small implementation of the API of config maps in one namespace, correct
// except for its faults.
type server struct {
	faults faults

	mu       sync.Mutex
	random   *rand.Rand
	revision int64
	past     []snapshot // the last is the current state
	writes   int
	late     []func()
}

type snapshot struct {
	revision int64
	objects  map[string]wire.Object
}

func startServer(t *testing.T, f faults) *httptest.Server {
	s := &server{faults: f, revision: 100, past: []snapshot{{revision: 100}}, random: rand.New(rand.NewPCG(1, 1))}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return h
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body wire.Object
	var options struct {
		Preconditions struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"preconditions"`
	}
	_, target, _ := strings.Cut(r.URL.Path, "/configmaps")
	target = strings.TrimPrefix(target, "/")
	into := any(&body)
	if r.Method == http.MethodDelete {
		into = &options
	}
	if r.Method != http.MethodGet && r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(into); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		s.read(w, target, r.URL.Query().Get("resourceVersion") == "0")
		return
	}
	write := func() (int, wire.Object) {
		switch r.Method {
		case http.MethodPost:
			return s.create(body)
		case http.MethodPut:
			return s.update(target, body)
		case http.MethodPatch:
			return s.patch(target, body)
		}
		return s.remove(target, options.Preconditions.ResourceVersion)
	}
	s.writes++
	if n := s.faults.breakAnswers; n > 0 && s.writes%n == 0 {
		switch {
		case s.faults.lateWrites:
			s.late = append(s.late, func() { write() })
		case s.writes%(2*n) == 0:
			write()
		}
		reply(w, http.StatusInternalServerError, wire.Object{Kind: "Status", Message: "broken"})
		return
	}
	if len(s.late) > 0 && s.random.IntN(10) == 0 {
		s.late[0]()
		s.late = s.late[1:]
	}
	code, answer := write()
	reply(w, code, answer)
}

func reply(w http.ResponseWriter, code int, o wire.Object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // the client may be gone
}

func status(code int, reason string) (int, wire.Object) {
	return code, wire.Object{Kind: "Status", Reason: reason, Message: reason}
}

func (s *server) present() map[string]wire.Object { return s.past[len(s.past)-1].objects }

// commit makes a change at a new revision.
func (s *server) commit(name string, o *wire.Object) {
	if n := s.faults.sameRevision; n == 0 || s.writes%n != 0 {
		s.revision += 1 + int64(s.random.IntN(3)) // other keys are written, too
	}
	objects := maps.Clone(s.present())
	if objects == nil {
		objects = map[string]wire.Object{}
	}
	if delete(objects, name); o != nil {
		o.Metadata.Name, o.Metadata.ResourceVersion = name, strconv.FormatInt(s.revision, 10)
		objects[name] = *o
	}
	s.past = append(s.past, snapshot{s.revision, objects})
}

func (s *server) read(w http.ResponseWriter, name string, stale bool) {
	view := s.past[len(s.past)-1]
	view.revision = s.revision
	if stale || name == "" && s.faults.staleLists {
		view = s.past[max(0, len(s.past)-1-s.faults.lag)]
	}
	if name != "" {
		if o, ok := view.objects[name]; ok {
			reply(w, http.StatusOK, o)
		} else {
			code, o := status(http.StatusNotFound, "NotFound")
			reply(w, code, o)
		}
		return
	}
	if s.faults.newerThanItSays {
		view.revision -= 5
	}
	list := wire.Object{Kind: "ConfigMapList", Metadata: wire.Metadata{ResourceVersion: strconv.FormatInt(view.revision, 10)}}
	for _, o := range view.objects {
		list.Items = append(list.Items, o)
	}
	reply(w, http.StatusOK, list)
}

func (s *server) create(o wire.Object) (int, wire.Object) {
	name := o.Metadata.Name
	if _, ok := s.present()[name]; ok {
		return status(http.StatusConflict, "AlreadyExists")
	}
	s.commit(name, &o)
	return http.StatusCreated, o
}

func (s *server) update(name string, o wire.Object) (int, wire.Object) {
	old, ok := s.present()[name]
	if !ok {
		return status(http.StatusNotFound, "NotFound")
	}
	unfair := s.faults.conflictsAtFault > 0 && s.writes%s.faults.conflictsAtFault == 0
	if unfair || old.Metadata.ResourceVersion != o.Metadata.ResourceVersion && !s.faults.noPreconditions {
		return status(http.StatusConflict, "Conflict")
	}
	s.commit(name, &o)
	return http.StatusOK, o
}

func (s *server) patch(name string, o wire.Object) (int, wire.Object) {
	if _, ok := s.present()[name]; !ok {
		return status(http.StatusNotFound, "NotFound")
	}
	s.commit(name, &o)
	return http.StatusOK, o
}

func (s *server) remove(name, revision string) (int, wire.Object) {
	old, ok := s.present()[name]
	switch {
	case !ok:
		return status(http.StatusNotFound, "NotFound")
	case revision != "" && revision != old.Metadata.ResourceVersion:
		return status(http.StatusConflict, "Conflict")
	case s.faults.undeadAfter == 0 || s.writes%s.faults.undeadAfter != 0:
		s.commit(name, nil)
	}
	return http.StatusOK, wire.Object{Kind: "Status", Message: fmt.Sprint(name, " is gone")}
}
