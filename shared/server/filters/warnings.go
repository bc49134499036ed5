package filters

import (
	"net/http"
	"sync"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
)

const (
	// maxWarnings is the number of characters from which the warnings of an answer are
	// truncated. Then each keeps at most maxWarning characters.
	maxWarnings = 4 << 10
	maxWarning  = 256
)

// warnings records the warnings of an answer (KEP-1693). Each becomes one Warning header
// (RFC 7234, section 5.5); duplicates are dropped, and all are truncated when they become
// too long. It is safe for concurrent use.
type warnings struct {
	w http.ResponseWriter

	mu         sync.Mutex // guards the fields below
	added      []addedWarning
	characters int
	truncated  bool
}

type addedWarning struct{ agent, text string }

// withWarnings does the work of WithWarningRecorder of k8s.io/apiserver.
func withWarnings(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		next.ServeHTTP(w, req.WithContext(warning.WithWarningRecorder(req.Context(), &warnings{w: w})))
	})
}

// AddWarning implements warning.Recorder.
func (r *warnings) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" || r.truncated && r.characters >= maxWarnings {
		return
	}
	for _, other := range r.added {
		if other.text == text {
			return
		}
	}
	r.added = append(r.added, addedWarning{agent, text})
	if r.truncated || r.characters+utf8.RuneCountInString(text) <= maxWarnings {
		r.addHeaderLocked(agent, text)
		return
	}
	if _, err := utilnet.NewWarningHeader(299, agent, text); err != nil {
		return // it cannot be sent, and so does not count
	}
	klog.Background().V(2).Info("The warnings of an answer are truncated", "characters", maxWarnings)
	r.truncated, r.characters = true, 0
	r.w.Header().Del("Warning")
	for _, a := range r.added {
		r.addHeaderLocked(a.agent, a.text)
	}
}

func (r *warnings) addHeaderLocked(agent, text string) {
	length := utf8.RuneCountInString(text)
	if r.truncated && length > maxWarning {
		text, length = string([]rune(text)[:maxWarning]), maxWarning
	}
	header, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // it cannot be sent
	}
	r.characters += length
	r.w.Header().Add("Warning", header)
}
