package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"triune.dev/tests/bench/load"
)

// The content of a measured server. Its bytes are the same in every run.
const (
	namespace = "bench"
	pods      = 4000
	podNodes  = 100 // so that 40 of 4,000 are on one node
	podApps   = 50  // so that 80 of 4,000 have one label
	widgets   = 4000
)

const (
	podsPath       = "/api/v1/namespaces/" + namespace + "/pods"
	configMapsPath = "/api/v1/namespaces/" + namespace + "/configmaps"
	widgetsPath    = "/apis/bench.triune.dev/v1/namespaces/" + namespace + "/widgets"
	jsonType       = "application/json"
	protobufType   = "application/vnd.kubernetes.protobuf"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

type object = map[string]any

// post returns a request that creates an object.
func post(path string, o object) load.Request {
	return load.Request{Method: http.MethodPost, Path: path, ContentType: jsonType, Accept: jsonType, Body: encode(o), Status: http.StatusCreated, MinSize: 100}
}

func patch(path, contentType string, o object) load.Request {
	return load.Request{Method: http.MethodPatch, Path: path, ContentType: contentType, Accept: jsonType, Body: encode(o), MinSize: 100}
}

func encode(o object) []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic("encode content: " + err.Error()) // maps, strings and numbers only
	}
	return data
}

// namespace creates a namespace with the ServiceAccount that pods need.
func (e *Env) namespace(ctx context.Context, name string) error {
	return e.once("namespace "+name, func() error {
		if _, err := e.send(ctx, post("/api/v1/namespaces", object{"metadata": object{"name": name}})); err != nil {
			return err
		}
		account := load.Request{Path: "/api/v1/namespaces/" + name + "/serviceaccounts/default"}
		if _, err := e.send(ctx, account); err == nil {
			return nil // a controller inside the server has created it
		}
		_, err := e.send(ctx, post("/api/v1/namespaces/"+name+"/serviceaccounts", object{"metadata": object{"name": "default"}}))
		return err
	})
}

// pod returns a pod of about 3.9 kB of JSON as it is read, with defaults and managed
// fields.
func pod(name string, i int) object {
	env := func(prefix string) []object {
		var all []object
		for k := range 9 {
			all = append(all, object{"name": fmt.Sprintf("%s_SETTING_%d", prefix, k), "value": fmt.Sprintf("value-%d-of-%s", k, name)})
		}
		return all
	}
	container := func(which string) object {
		return object{
			"name": which, "image": "registry.example.com/team/" + which + ":1.2.3",
			"args":         []string{"--listen=:8080", "--verbose=2"},
			"env":          env(strings.ToUpper(which)),
			"ports":        []object{{"containerPort": 8080, "name": "http"}},
			"resources":    object{"requests": object{"cpu": "100m", "memory": "64Mi"}, "limits": object{"memory": "128Mi"}},
			"volumeMounts": []object{{"name": "cache", "mountPath": "/var/cache"}},
		}
	}
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "labels": object{"app": fmt.Sprintf("app-%d", i%podApps), "tier": "backend"}},
		"spec": object{
			"nodeName":   nodeName(i),
			"containers": []object{container("main")},
			"volumes":    []object{{"name": "cache", "emptyDir": object{}}},
		},
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i%podNodes) }

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

func (e *Env) pods(ctx context.Context) error {
	if err := e.namespace(ctx, namespace); err != nil {
		return err
	}
	return e.once("pods", func() error {
		return e.fill(ctx, pods, func(i int) load.Request { return post(podsPath, pod(podName(i), i)) })
	})
}

// touchPod returns a request that changes one of the pods.
func touchPod(i int) load.Request {
	return patch(podsPath+"/"+podName(i%pods), mergePatch, object{"metadata": object{"annotations": object{"bench.triune.dev/touched": fmt.Sprintf("%08d", i)}}})
}

// configMap returns a config map of about 1 kB.
func configMap(name string, i int) object {
	return object{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": object{"name": name, "labels": object{"app": fmt.Sprintf("app-%d", i%podApps)}},
		"data":     object{"count": fmt.Sprintf("%08d", i), "text": strings.Repeat("0123456789abcdef", 40)},
	}
}

// definition returns a CRD of about size bytes.
func definition(group, plural, kind string, size int) object {
	properties := object{
		"size": object{"type": "integer"}, "color": object{"type": "string"},
		"notes": object{"type": "array", "items": object{"type": "string"}},
	}
	for i := 0; len(encode(properties)) < size-900; i++ {
		properties[fmt.Sprintf("setting%d", i)] = object{
			"type":        "object",
			"description": fmt.Sprintf("Setting %d of the thing, which says how the controller treats it and what it does when it changes.", i),
			"properties": object{
				"enabled": object{"type": "boolean"}, "limit": object{"type": "integer", "minimum": 0, "maximum": 1000},
				"mode": object{"type": "string", "enum": []string{"Fast", "Safe"}},
			},
		}
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + "." + group},
		"spec": object{
			"group": group, "scope": "Namespaced",
			"names": object{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
			"versions": []object{{
				"name": "v1", "served": true, "storage": true,
				"subresources": object{"status": object{}},
				"schema": object{"openAPIV3Schema": object{
					"type": "object",
					"properties": object{
						"spec":   object{"type": "object", "properties": properties},
						"status": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
					},
				}},
			}},
		},
	}
}

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

func widget(name string, i int) object {
	var notes []string
	for k := range 12 {
		notes = append(notes, fmt.Sprintf("note %d of %s: nothing of importance has happened here", k, name))
	}
	return object{
		"apiVersion": "bench.triune.dev/v1", "kind": "Widget",
		"metadata": object{"name": name, "labels": object{"app": fmt.Sprintf("app-%d", i%podApps)}},
		"spec":     object{"size": i, "color": "green", "notes": notes},
	}
}

// widgetCRD creates the CRD and waits until it is served.
func (e *Env) widgetCRD(ctx context.Context) error {
	if err := e.namespace(ctx, namespace); err != nil {
		return err
	}
	return e.once("widget definition", func() error {
		if _, err := e.send(ctx, post(crdPath, definition("bench.triune.dev", "widgets", "Widget", 3000))); err != nil {
			return err
		}
		return e.served(ctx, widgetsPath)
	})
}

func (e *Env) widgets(ctx context.Context) error {
	if err := e.widgetCRD(ctx); err != nil {
		return err
	}
	return e.once("widgets", func() error {
		return e.fill(ctx, widgets, func(i int) load.Request { return post(widgetsPath, widget(fmt.Sprintf("widget-%d", i), i)) })
	})
}
