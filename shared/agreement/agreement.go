// Package agreement finds contradictions between what the tiers have been told.
//
// Some flags must be given to every tier alike: a request that core would refuse as
// anonymous must not be let in by the aggregator, and a Secret-like custom resource must
// not be stored in plain text because one tier has no encryption configuration. Core
// publishes what it has been told at [Path], files as digests; the other tiers ask for it
// and compare. A tier that contradicts core does not become ready. One that has been
// ready stays so, for a change of flags reaches the tiers one after the other; its
// readyz, log and metric tell until they agree again.
//
// Only the others compare, never core: tiers that waited for each other would not get
// through a rolling update.
package agreement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
)

// Path is where core publishes its Settings. Nothing of it is secret, but like any path
// it is shown to those only whom the authorizer lets see it.
const Path = "/triune/settings"

// Settings are what a tier has been told, by the name of the flag or of the part of its
// file: values, or what Digest and FileDigest return. A tier that has no such setting has
// no entry, and contradicts nobody.
type Settings map[string]string

// None stands for a file that is not given.
const None = "none"

// FileDigest returns a short digest of a file's content, and None for an empty name.
func FileDigest(name string) (string, error) {
	if name == "" {
		return None, nil
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	return Digest(content), nil
}

// Digest returns a short digest of content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:8])
}

// Contradictions returns a line for each setting that both have and that differs, in the
// order of their names. mine and others name the two tiers.
func (s Settings) Contradictions(mine, others string, other Settings) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if value, ok := other[name]; ok && value != s[name] {
			lines = append(lines, fmt.Sprintf("%s has %s=%s, %s has %s=%s", mine, name, s[name], others, name, value))
		}
	}
	return lines
}

// Handler publishes the settings that read returns at each request: files change.
func Handler(read func() (Settings, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
			return
		}
		settings, err := read()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(settings) // whoever has gone does not read it
	})
}
