package parity

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Normaliser replaces values that differ between any two servers by placeholders. It never
// removes or adds a field, never changes a type, and keeps the order of lists (except for
// managed fields, see sortManagers), so that null, [], {}, "" and an absent field remain
// distinct.
//
// Equal values get equal placeholders, so that a uid that should appear twice (in an object
// and in a reference to it) is checked.
type Normaliser struct {
	// Now determines which times are replaced: those within a day of it. Older times came
	// from requests.
	Now time.Time
	// Hosts are the server's own addresses as they appear in texts.
	Hosts []string
	// Volatile are further paths to replace, see [Request.Volatile].
	Volatile []string

	uuids map[string]string
}

var (
	uuidPattern    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timePattern    = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	tokenPattern   = regexp.MustCompile(`^ey[\w-]+\.ey[\w-]+\.[\w-]+$`)
	versionMessage = regexp.MustCompile(`([rR]esource ?[vV]ersion[^0-9]{0,20})(\d+)(?: \((\d+)\)|, current: (\d+))?`)
	// The address in --advertise-address, with the port of the process.
	advertised = regexp.MustCompile(`192\.0\.2\.1:\d+`)
	digits     = regexp.MustCompile(`\d`)
)

// JSON normalises a document. Two documents are equal for a client if and only if their
// normal forms are equal.
func (n *Normaliser) JSON(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // 1 and 1.0 differ
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("normalise: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("normalise: something follows the document")
	}
	return n.value(v, nil), nil
}

// value visits keys in order, so that placeholders are numbered alike.
func (n *Normaliser) value(v any, path []string) any {
	if n.volatile(path) {
		return placeholder("volatile", v)
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[key] = n.value(v[key], append(path, key))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = n.value(v[i], append(path, strconv.Itoa(i)))
		}
		if len(path) > 0 && path[len(path)-1] == "managedFields" {
			sortManagers(out)
		}
		return out
	case string:
		return n.text(v, path)
	case json.Number:
		if len(path) > 0 && path[len(path)-1] == "nodePort" && v != "0" {
			return json.Number("30000")
		}
	}
	return v
}

// sortManagers sorts managed fields as if all of them had been written in the same second.
// Theirs is the only order that depends on the clock: by operation, then time in seconds,
// then manager.
func sortManagers(entries []any) {
	key := func(entry any) string {
		m, ok := entry.(map[string]any)
		if !ok {
			return ""
		}
		return fmt.Sprint(m["operation"], "\x00", m["manager"], "\x00", m["apiVersion"], "\x00", m["subresource"])
	}
	slices.SortStableFunc(entries, func(a, b any) int { return strings.Compare(key(a), key(b)) })
}

// placeholder keeps the type of a value, so that null differs from a name.
func placeholder(what string, v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		if v == "" {
			return ""
		}
		return "<" + what + ">"
	case json.Number:
		return "<" + what + " number>"
	case []any:
		return fmt.Sprintf("<%s list>", what)
	default:
		return fmt.Sprintf("<%s %T>", what, v)
	}
}

func (n *Normaliser) text(s string, path []string) string {
	key := ""
	if len(path) > 0 {
		key = path[len(path)-1]
	}
	switch key {
	case "resourceVersion":
		if s != "" && s != "0" && isNumber(s) {
			return "<resourceVersion>"
		}
	case "manager":
		// A server that writes an object itself uses its program's name as the manager.
		if slices.Contains(programs, s) {
			return "<server>"
		}
	case "continue":
		return n.continueToken(s)
	case "clusterIP", "0", "1":
		if ip, err := netip.ParseAddr(s); err == nil && serviceRange.Contains(ip) && slices.ContainsFunc(path, isClusterIP) {
			return "<clusterIP>"
		}
	}
	if tokenPattern.MatchString(s) {
		return "<token>"
	}
	return n.Text(s)
}

var programs = []string{"kube-apiserver", "triune", "aggregator", "core", "extensions"}

var serviceRange = netip.MustParsePrefix("10.0.0.0/24")

func isClusterIP(key string) bool { return key == "clusterIP" || key == "clusterIPs" }

// Text normalises unstructured text: a message, a page, a header.
func (n *Normaliser) Text(s string) string {
	s = advertised.ReplaceAllString(s, "<advertised>")
	for _, host := range n.Hosts {
		s = strings.ReplaceAll(s, host, "<server>")
	}
	s = uuidPattern.ReplaceAllStringFunc(s, func(uuid string) string {
		if n.uuids == nil {
			n.uuids = map[string]string{}
		}
		if _, ok := n.uuids[uuid]; !ok {
			n.uuids[uuid] = fmt.Sprintf("<uuid %d>", len(n.uuids)+1)
		}
		return n.uuids[uuid]
	})
	s = timePattern.ReplaceAllStringFunc(s, func(text string) string {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || at.Sub(n.Now).Abs() > 24*time.Hour {
			return text
		}
		// The precision and the zone depend on the format: MicroTime has six digits.
		return "<time" + digits.ReplaceAllString(text[len("2006-01-02T15:04:05"):], "0") + ">"
	})
	return versionMessage.ReplaceAllStringFunc(s, func(text string) string {
		m := versionMessage.FindStringSubmatch(text)
		if len(m[2]) < 2 && m[3] == "" && m[4] == "" { // 0 and 1 come from requests
			return text
		}
		out := m[1] + "<resourceVersion>"
		if m[3] != "" || m[4] != "" {
			out += " (<resourceVersion>)"
		}
		return out
	})
}

// continueToken replaces only the revision in a token.
func (n *Normaliser) continueToken(s string) string {
	data, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || s == "" {
		return s
	}
	var token map[string]any
	if err := json.Unmarshal(data, &token); err != nil {
		return s
	}
	if rv, ok := token["rv"].(float64); ok && rv > 0 {
		token["rv"] = "<resourceVersion>"
	}
	out, err := json.Marshal(token)
	if err != nil {
		return s
	}
	return string(out)
}

func (n *Normaliser) volatile(path []string) bool {
	for _, pattern := range n.Volatile {
		parts := strings.Split(pattern, ".")
		if len(parts) == len(path) && slices.EqualFunc(parts, path, func(p, have string) bool { return p == "*" || p == have }) {
			return true
		}
	}
	return false
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}
