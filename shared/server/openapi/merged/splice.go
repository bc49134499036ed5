package merged

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Spec is an OpenAPI v2 document of which only the outline is decoded.
type Spec struct {
	head     map[string]json.RawMessage // all other top-level fields
	paths    map[string]json.RawMessage
	sections map[string]map[string]json.RawMessage
}

// sections are the parts of a document that references point into, as "#/<section>/<name>".
var sections = []string{"definitions", "parameters"}

// ParseSpec decodes the outline of a document. It fails if the outline is not that of OpenAPI
// v2; it does not check the rest.
func ParseSpec(document []byte) (*Spec, error) {
	s := &Spec{sections: map[string]map[string]json.RawMessage{}}
	if err := json.Unmarshal(document, &s.head); err != nil {
		return nil, fmt.Errorf("parse OpenAPI v2: %w", err)
	}
	take := func(name string, into *map[string]json.RawMessage) error {
		content, ok := s.head[name]
		delete(s.head, name)
		*into = map[string]json.RawMessage{}
		if !ok {
			return nil
		}
		if err := json.Unmarshal(content, into); err != nil {
			return fmt.Errorf("parse OpenAPI v2: %s: %w", name, err)
		}
		return nil
	}
	if err := take("paths", &s.paths); err != nil {
		return nil, err
	}
	for _, section := range sections {
		var entries map[string]json.RawMessage
		if err := take(section, &entries); err != nil {
			return nil, err
		}
		s.sections[section] = entries
	}
	// JSON allows a slash to be written as \/ (RFC 8259, section 7), but references are
	// searched for as text.
	if bytes.Contains(document, []byte(`#\/`)) {
		if err := s.rewrite(func(content json.RawMessage) json.RawMessage {
			return bytes.ReplaceAll(content, []byte(`\/`), []byte(`/`))
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// JSON returns the document. Keys are sorted.
func (s *Spec) JSON() ([]byte, error) {
	whole := map[string]any{"paths": s.paths}
	for name, content := range s.head {
		whole[name] = content
	}
	for _, section := range sections {
		if len(s.sections[section]) > 0 {
			whole[section] = s.sections[section]
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(whole); err != nil {
		return nil, fmt.Errorf("encode OpenAPI v2: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// Keep removes the paths that begin with none of the prefixes, and everything that only those
// paths refer to.
func (s *Spec) Keep(prefixes []string) {
	s.keep(func(path string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
	})
}

func (s *Spec) keep(wanted func(path string) bool) {
	before := s.reachable()
	maps.DeleteFunc(s.paths, func(path string, _ json.RawMessage) bool { return !wanted(path) })
	after := s.reachable()
	for _, section := range sections {
		maps.DeleteFunc(s.sections[section], func(name string, _ json.RawMessage) bool {
			key := section + "/" + name
			return before[key] && !after[key]
		})
	}
}

// reachable returns "<section>/<name>" for everything that the paths refer to, directly or
// indirectly.
func (s *Spec) reachable() map[string]bool {
	seen := map[string]bool{}
	var pending []string
	visit := func(content json.RawMessage) {
		for reference := range references(content) {
			if !seen[reference] {
				seen[reference] = true
				pending = append(pending, reference)
			}
		}
	}
	for _, content := range s.paths {
		visit(content)
	}
	for len(pending) > 0 {
		section, name, _ := strings.Cut(pending[len(pending)-1], "/")
		pending = pending[:len(pending)-1]
		visit(s.sections[section][name])
	}
	return seen
}

// references yields "<section>/<name>" for every local reference in content.
func references(content json.RawMessage) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for rest := []byte(content); ; {
			at := bytes.Index(rest, []byte(`"#/`))
			if at < 0 {
				return
			}
			rest = rest[at+len(`"#/`):]
			end := bytes.IndexByte(rest, '"')
			if end < 0 || !yield(string(rest[:end])) {
				return
			}
			rest = rest[end:]
		}
	}
}

// Splice adds other to s and consumes other. Existing paths of s remain as they are. If both
// have a definition of the same name with different content, that of other is renamed with the
// suffix _v2, _v3 and so on. Definitions that differ only in their kinds
// (x-kubernetes-group-version-kind) become one definition with all these kinds.
func (s *Spec) Splice(other *Spec) error {
	fresh := func(path string) bool { _, taken := s.paths[path]; return !taken }
	conflicts := 0
	for path := range other.paths {
		if !fresh(path) {
			conflicts++
		}
	}
	if conflicts == len(other.paths) {
		return nil
	}
	if conflicts > 0 {
		other.keep(fresh)
	}
	for _, section := range sections {
		if err := s.spliceSection(section, other); err != nil {
			return fmt.Errorf("merge OpenAPI v2: %s: %w", section, err)
		}
	}
	maps.Copy(s.paths, other.paths)
	return nil
}

func (s *Spec) spliceSection(section string, other *Spec) error {
	mine, theirs := s.sections[section], other.sections[section]
	renames := map[string]string{}
	for name, content := range theirs {
		existing, taken := mine[name]
		if !taken {
			continue
		}
		alike, err := sameButKinds(existing, content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if alike {
			continue
		}
		if renames[name], err = freeName(name, content, mine, theirs, renames); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(renames) > 0 {
		if err := other.rename(section, renames); err != nil {
			return err
		}
		theirs = other.sections[section]
	}
	for name, content := range theirs {
		existing, taken := mine[name]
		if !taken {
			mine[name] = content
			continue
		}
		joined, err := joinKinds(existing, content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		mine[name] = joined
	}
	return nil
}

// freeName returns a name for a definition of theirs beside mine: an unused one, or that of an
// equal definition that was renamed earlier.
func freeName(name string, content json.RawMessage, mine, theirs map[string]json.RawMessage, renames map[string]string) (string, error) {
	for i := 2; ; i++ {
		candidate := fmt.Sprintf("%s_v%d", name, i)
		if existing, taken := mine[candidate]; taken {
			alike, err := sameButKinds(existing, content)
			if err != nil {
				return "", err
			}
			if alike {
				return candidate, nil
			}
			continue
		}
		_, theirOwn := theirs[candidate]
		given := false
		for _, other := range renames {
			given = given || other == candidate
		}
		if !theirOwn && !given {
			return candidate, nil
		}
	}
}

// rename renames entries of a section, and all references to them.
func (s *Spec) rename(section string, renames map[string]string) error {
	err := s.rewrite(func(content json.RawMessage) json.RawMessage {
		if !bytes.Contains(content, []byte(`"#/`+section+"/")) {
			return content
		}
		return renameReferences(content, section, renames)
	})
	if err != nil {
		return err
	}
	renamed := make(map[string]json.RawMessage, len(s.sections[section]))
	for name, content := range s.sections[section] {
		if to, ok := renames[name]; ok {
			name = to
		}
		renamed[name] = content
	}
	s.sections[section] = renamed
	return nil
}

func renameReferences(content json.RawMessage, section string, renames map[string]string) json.RawMessage {
	prefix := []byte(`"#/` + section + "/")
	out := make([]byte, 0, len(content)+64)
	for rest := []byte(content); ; {
		at := bytes.Index(rest, prefix)
		if at < 0 {
			return append(out, rest...)
		}
		out = append(out, rest[:at+len(prefix)]...)
		rest = rest[at+len(prefix):]
		end := max(bytes.IndexByte(rest, '"'), 0)
		name := string(rest[:end])
		if to, ok := renames[name]; ok {
			name = to
		}
		out = append(out, name...)
		rest = rest[end:]
	}
}

// rewrite replaces every part of the document by the result of f.
func (s *Spec) rewrite(f func(json.RawMessage) json.RawMessage) error {
	parts := []map[string]json.RawMessage{s.paths}
	for _, section := range sections {
		parts = append(parts, s.sections[section])
	}
	for _, part := range parts {
		for name, content := range part {
			changed := f(content)
			if !json.Valid(changed) {
				return fmt.Errorf("rewrite OpenAPI v2: %s is no longer JSON", name)
			}
			part[name] = changed
		}
	}
	return nil
}

// kindsKey is the extension that lists the kinds of a definition.
const kindsKey = "x-kubernetes-group-version-kind"

// sameButKinds reports whether two definitions are equal except for kindsKey.
func sameButKinds(a, b json.RawMessage) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	left, err := decode(a)
	if err != nil {
		return false, err
	}
	right, err := decode(b)
	if err != nil {
		return false, err
	}
	delete(left, kindsKey)
	delete(right, kindsKey)
	return reflect.DeepEqual(left, right), nil
}

// joinKinds returns a with the kinds of both definitions.
func joinKinds(a, b json.RawMessage) (json.RawMessage, error) {
	if bytes.Equal(a, b) {
		return a, nil
	}
	left, err := decode(a)
	if err != nil {
		return nil, err
	}
	right, err := decode(b)
	if err != nil {
		return nil, err
	}
	mine, theirs := kindsOf(left), kindsOf(right)
	joined := maps.Clone(mine)
	maps.Copy(joined, theirs)
	if len(joined) == len(mine) {
		return a, nil
	}
	kinds := make([]any, 0, len(joined))
	for _, key := range slices.Sorted(maps.Keys(joined)) {
		kinds = append(kinds, joined[key])
	}
	left[kindsKey] = kinds
	return json.Marshal(left)
}

// kindsOf returns the kinds of a definition by "group/version.kind", the order in
// kube-apiserver's documents.
func kindsOf(definition map[string]any) map[string]any {
	list, _ := definition[kindsKey].([]any)
	kinds := make(map[string]any, len(list))
	for _, item := range list {
		kind, _ := item.(map[string]any)
		kinds[fmt.Sprintf("%v/%v.%v", kind["group"], kind["version"], kind["kind"])] = item
	}
	return kinds
}

// decode preserves the text of numbers: a default of 1 must not become 1.0, and a large number
// must not lose digits.
func decode(content json.RawMessage) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var value map[string]any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return value, nil
}
