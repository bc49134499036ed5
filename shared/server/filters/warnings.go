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
	// maxWarnings is how many characters the warnings of an answer may have before they are
	// cut, and maxWarning how many are left of each then.
	maxWarnings = 4 << 10
	maxWarning  = 256
)

// warnings are those of an answer (KEP-1693): each is a Warning header (RFC 7234, section
// 5.5) once, and all are cut when they become too long. They may be added concurrently.
type warnings struct {
	w http.ResponseWriter

	mu sync.Mutex
	// all that have been added, in order; guarded by mu, as is all below.
	all        []added
	characters int
	cut        bool
}

type added struct{ agent, text string }

// withWarnings is WithWarningRecorder of k8s.io/apiserver.
func withWarnings(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		next.ServeHTTP(w, req.WithContext(warning.WithWarningRecorder(req.Context(), &warnings{w: w})))
	})
}

// AddWarning implements warning.Recorder.
func (r *warnings) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" || r.cut && r.characters >= maxWarnings {
		return
	}
	for _, other := range r.all {
		if other.text == text {
			return
		}
	}
	r.all = append(r.all, added{agent, text})
	if r.cut || r.characters+utf8.RuneCountInString(text) <= maxWarnings {
		r.putLocked(agent, text)
		return
	}
	if _, err := utilnet.NewWarningHeader(299, agent, text); err != nil {
		return // it would not have been too long, for it cannot be sent
	}
	klog.Background().V(2).Info("The warnings of an answer are cut", "characters", maxWarnings)
	r.cut, r.characters = true, 0
	r.w.Header().Del("Warning")
	for _, a := range r.all {
		r.putLocked(a.agent, a.text)
	}
}

func (r *warnings) putLocked(agent, text string) {
	length := utf8.RuneCountInString(text)
	if r.cut && length > maxWarning {
		text, length = string([]rune(text)[:maxWarning]), maxWarning
	}
	header, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // of what cannot be sent nobody is warned
	}
	r.characters += length
	r.w.Header().Add("Warning", header)
}
