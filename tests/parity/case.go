package parity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Case is a sequence of requests that is sent to both servers, in a namespace of its own.
type Case struct {
	Name  string    `json:"name"`
	Steps []Request `json:"steps"`
}

// Request is one request. In Path, Headers and bodies, ${name} stands for a
// variable: ns is the namespace of the case, others come from Save.
type Request struct {
	// Do is the method and the path with its query: "GET /api/v1/pods?limit=1".
	Do string `json:"do"`
	// User sends the request: admin (the default), alice, bob, anonymous,
	// forged (a token nobody issued), nobody (a certificate of another CA), frontend (a
	// front proxy), or one of matrixClients.
	User    string            `json:"user,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Body is sent as it is; Object is sent as JSON, or as protobuf if Protobuf is set;
	// Generate names a generated body that is too large for a file.
	Body     string `json:"body,omitempty"`
	Object   any    `json:"object,omitempty"`
	Protobuf bool   `json:"protobuf,omitempty"`
	Generate string `json:"generate,omitempty"`
	// Truncate removes so many bytes from the end of the body.
	Truncate int `json:"truncate,omitempty"`
	// Save stores fields of the answer in variables: name to path ("metadata.uid").
	Save map[string]string `json:"save,omitempty"`
	// Volatile names fields whose values the server chooses, by path, with "*" for every
	// item of a list. Each use has a comment with the reason.
	Volatile []string `json:"volatile,omitempty"`
	// Events makes the request a watch: it ends after so many events.
	Events int `json:"events,omitempty"`
	// Until is a text that the answer must contain: the request is repeated until every
	// replica's answer does. It is for state that a server learns a moment after it was
	// written; such a request must not change anything.
	Until string `json:"until,omitempty"`
	// Unchecked requests only prepare; both must succeed.
	Unchecked bool `json:"unchecked,omitempty"`
}

// LoadCases reads all cases of a directory, sorted by file.
func LoadCases(dir string) (map[string][]Case, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("load cases: %w", err)
	}
	slices.Sort(files)
	cases := map[string][]Case{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("load cases: %w", err)
		}
		var list []struct {
			Case
			Request
		}
		if err := yaml.UnmarshalStrict(data, &list); err != nil {
			return nil, fmt.Errorf("load %s: %w", file, err)
		}
		for _, entry := range list {
			c := entry.Case
			if c.Name == "" || (entry.Do == "") == (len(c.Steps) == 0) {
				return nil, fmt.Errorf("load %s: case %q needs a name and either one request or steps", file, c.Name)
			}
			if entry.Do != "" {
				c.Steps = []Request{entry.Request}
			}
			cases[filepath.Base(file)] = append(cases[filepath.Base(file)], c)
		}
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("load cases: none in %s", dir)
	}
	return cases, nil
}

// usesNamespace reports whether a step needs the namespace of the case.
func (c Case) usesNamespace() bool {
	return slices.ContainsFunc(c.Steps, func(r Request) bool {
		return r.Generate != "" || strings.Contains(r.Do+r.Body+fmt.Sprint(r.Object), "${ns}")
	})
}
