// Package agreement detects contradictions between the settings of the tiers.
//
// Some flags must have the same value in every tier: the aggregator must not let in anonymous
// requests that core would refuse, and no tier may store confidential custom resources in plain
// text because it lacks the encryption configuration. Core publishes its [Settings] at [Path]
// through [Handler], with files as digests. The other tiers run a [Check], which fetches and
// compares them. A tier that contradicts core does not become ready. A tier that was ready
// before stays ready, because a change of flags reaches the tiers one after another; its
// readyz, log and metric report the contradiction until they agree again.
//
// Core never compares: tiers that wait for each other would block a rolling update.
//
// A Check is safe for concurrent use; call its Run once.
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

// Path is where core publishes its Settings. They are not secret, but like any path they are
// subject to authorization.
const Path = "/triune/settings"

// Settings maps the name of a flag, or of a part of its file, to a value or a digest. A tier
// that lacks a setting has no entry for it and contradicts no other tier.
type Settings map[string]string

// None is the digest of a file that is not configured.
const None = "none"

// FileDigest returns a short digest of a file's content, or None for an empty name.
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

// Contradictions returns one line for each setting that both sides have with different values,
// sorted by name. mine and others are the names of the two tiers.
func (s Settings) Contradictions(mine, others string, other Settings) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if value, ok := other[name]; ok && value != s[name] {
			lines = append(lines, fmt.Sprintf("%s has %s=%s, %s has %s=%s", mine, name, s[name], others, name, value))
		}
	}
	return lines
}

// Handler serves the settings that read returns. It calls read for each request, because files
// change.
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
		_ = json.NewEncoder(w).Encode(settings) // the client may have gone away
	})
}
