package filters

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/warning"
)

// TestWarningsAsUpstream: the same warnings make the same headers as with upstream's filter.
func TestWarningsAsUpstream(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		type said struct{ agent, text string }
		var all []said
		for range random.IntN(60) {
			text := strings.Repeat(string(rune('a'+random.IntN(8))), random.IntN(600))
			switch random.IntN(6) {
			case 0:
				text = strings.Repeat("é\"\\", random.IntN(300))
			case 1:
				text += string([]byte{0xff, 'x'}[:random.IntN(3)]) // is not UTF-8
			case 2:
				text = ""
			}
			all = append(all, said{[]string{"", "agent", "a b"}[random.IntN(3)], text})
		}
		outcome := func(filter func(http.Handler) http.Handler) []string {
			return do(filter(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				for _, one := range all {
					warning.AddWarning(req.Context(), one.agent, one.text)
				}
			})), httptest.NewRequest("GET", "/", nil)).Header()["Warning"]
		}
		if diff := cmp.Diff(outcome(filters.WithWarningRecorder), outcome(withWarnings)); diff != "" {
			t.Fatal(fmt.Sprintf("seed %d (-upstream's filter +ours):\n", seed), diff)
		}
	}
}
