package parity

import (
	"bytes"
	"fmt"
	"strings"
)

// generators generate bodies that are too large for a file, for a namespace.
var generators = map[string]func(namespace string) []byte{
	// Above the limit of 3 MiB for requests.
	"oversized json": func(ns string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big","namespace":%q},"data":{"x":%q}}`, ns, strings.Repeat("x", 3<<20+1))
	},
	// Below that, and above the limit of 1 MiB for ConfigMaps.
	"large config map": func(ns string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big","namespace":%q},"data":{"x":%q}}`, ns, strings.Repeat("x", 1<<20+1))
	},
	// Below that and the 2 MiB of an etcd client, but above etcd's own 1.5 MiB: for kinds
	// without their own limit.
	"large pod template": func(ns string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"PodTemplate","metadata":{"name":"big","namespace":%q},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"a","args":[%q]}]}}}`, ns, strings.Repeat("x", 1600<<10))
	},
	"large annotations": func(ns string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big","namespace":%q,"annotations":{"x":%q}}}`, ns, strings.Repeat("x", 256<<10+1))
	},
	"deep json": func(ns string) []byte {
		const depth = 20_000
		return slicesOf(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"deep","namespace":%q},"data":{"x":`, ns), strings.Repeat("[", depth), strings.Repeat("]", depth), "}}")
	},
	"deep yaml": func(string) []byte {
		const depth = 12_000
		return slicesOf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: deep}\ndata: ", strings.Repeat("[", depth), strings.Repeat("]", depth), "\n")
	},
	"yaml bomb": func(string) []byte {
		var b bytes.Buffer
		b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n")
		for i := 1; i < 9; i++ {
			ref := fmt.Sprintf("*a%d", i-1)
			fmt.Fprintf(&b, "  a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(ref+",", 9), ","))
		}
		return b.Bytes()
	},
	"many json patch operations": func(string) []byte {
		op := `{"op":"add","path":"/data/x","value":"1"}`
		return slicesOf("[", strings.Repeat(op+",", 10_000), op, "]")
	},
	// Each copy doubles a field that is finally removed.
	"self-copying json patch": func(string) []byte {
		patch := []string{`{"op":"add","path":"/x","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`}
		for i := range 14 {
			patch = append(patch, fmt.Sprintf(`{"op":"copy","from":"/x","path":"/x/c%d"}`, i))
		}
		return slicesOf("[", strings.Join(patch, ","), "]")
	},
	"deep json patch": func(string) []byte {
		return slicesOf(`{"data":{"x":`, strings.Repeat(`{"a":`, 12_000), "1", strings.Repeat("}", 12_000), "}}")
	},
	"not utf-8": func(ns string) []byte {
		return slicesOf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bytes","namespace":"`+ns+`"},"data":{"x":"`, "\xff\xfe", `"}}`)
	},
	"random bytes": func(string) []byte {
		return []byte("k8s\x00\x0a\xff\xff\xff\xff\x0f\x00\x01\x02")
	},
}

func slicesOf(parts ...string) []byte { return []byte(strings.Join(parts, "")) }
