package workload

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// Applications are custom resources like those of a controller, each of about 10 kB: with
// names and phrases that repeat, and digests, identifiers and times that do not.
const applicationsPath = "/apis/stored.bench.triune.dev/v1/namespaces/" + namespace + "/applications"

var applicationWords = strings.Fields("reconcile cluster node volume timeout failed waiting image ready certificate gateway route backend probe upgrade restart memory network policy quota replica secret endpoint service")

func application(i int) object {
	r := rand.New(rand.NewPCG(uint64(i), 11))
	word := func() string { return applicationWords[r.IntN(len(applicationWords))] }
	random := func(n int) []byte {
		b := make([]byte, n)
		for at := range b {
			b[at] = byte(r.Uint32())
		}
		return b
	}
	digest := func(n int) string { return hex.EncodeToString(random(n)) }
	sentence := func(n int) string {
		words := make([]string, n)
		for at := range words {
			words[at] = word()
		}
		return strings.Join(words, " ")
	}
	moment := func() string {
		return time.Unix(1790000000+r.Int64N(30000000), 0).UTC().Format(time.RFC3339)
	}
	name := fmt.Sprintf("application-%d", i)
	var parts, conditions, owned []object
	for k := range 10 {
		parts = append(parts, object{
			"name": fmt.Sprintf("%s-%d", word(), k), "image": "registry.example.com/team-" + word() + "/" + word() + "@sha256:" + digest(32),
			"replicas": r.IntN(20), "port": 1024 + r.IntN(60000),
			"resources": object{
				"requests": object{"cpu": fmt.Sprintf("%dm", r.IntN(4000)), "memory": fmt.Sprintf("%dMi", r.IntN(8192))},
				"limits":   object{"memory": fmt.Sprintf("%dMi", r.IntN(16384))},
			},
			"env": []object{{"name": "REGION", "value": word()}, {"name": "TOKEN_HASH", "value": digest(16)}, {"name": "LOG_LEVEL", "value": "info"}},
		})
		conditions = append(conditions, object{"type": word(), "status": "True", "reason": "Reconcile" + word(), "message": sentence(9), "lastTransitionTime": moment(), "observedGeneration": r.IntN(50)})
		owned = append(owned, object{"kind": "Deployment", "group": "apps", "version": "v1", "name": name + "-" + word(), "namespace": "team-" + word(), "uid": digest(16), "hash": digest(20), "health": object{"status": "Healthy"}, "syncedAt": moment()})
	}
	return object{
		"apiVersion": "stored.bench.triune.dev/v1", "kind": "Application",
		"metadata": object{
			"name":        name,
			"labels":      object{"app.kubernetes.io/instance": name, "app.kubernetes.io/part-of": word()},
			"annotations": object{"example.com/checksum": digest(32), "example.com/note": sentence(20)},
		},
		"spec": object{"size": i, "content": object{"components": parts, "bundle": base64.StdEncoding.EncodeToString(random(300)), "conditions": conditions, "resources": owned}},
	}
}

// applicationCRD creates the CRD and waits until it is served.
func (e *Env) applicationCRD(ctx context.Context) error {
	if err := e.namespace(ctx, namespace); err != nil {
		return err
	}
	return e.once("application definition", func() error {
		if _, err := e.send(ctx, post(crdPath, applicationDefinition())); err != nil {
			return err
		}
		return e.served(ctx, applicationsPath)
	})
}

func applicationDefinition() object {
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "applications.stored.bench.triune.dev"},
		"spec": object{
			"group": "stored.bench.triune.dev", "scope": "Namespaced",
			"names": object{"plural": "applications", "singular": "application", "kind": "Application", "listKind": "ApplicationList"},
			"versions": []object{{
				"name": "v1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{
					"type": "object",
					"properties": object{"spec": object{"type": "object", "properties": object{
						"size":    object{"type": "integer"},
						"content": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
					}}},
				}},
			}},
		},
	}
}

// collected is the time after which unused memory has been collected and returned: Go
// collects an idle heap every two minutes.
const collected = 150 * time.Second

// storedCustomResources publishes how much many custom resources raise the memory of the
// servers. They are read before and after, as by an informer.
func storedCustomResources(ctx context.Context, e *Env, publish Publish) error {
	if err := e.applicationCRD(ctx); err != nil {
		return err
	}
	if err := pause(ctx, 15*second); err != nil { // until unused memory of the start is returned
		return err
	}
	before, err := e.anonymous()
	if err != nil {
		return err
	}
	n := e.scaled(100000, 4000)
	begin := time.Now()
	if err := e.fill(ctx, n, func(i int) load.Request { return post(applicationsPath, application(i)) }); err != nil {
		return err
	}
	took := time.Since(begin)
	stored, err := e.storedBytes(ctx, n)
	if err != nil {
		return err
	}
	if err := pause(ctx, 5*second); err != nil {
		return err
	}
	soon, err := e.anonymous()
	if err != nil {
		return err
	}
	if err := pause(ctx, pick(e, 30*second, collected)); err != nil {
		return err
	}
	memory, err := e.memory()
	if err != nil {
		return err
	}
	rise := float64(report.Sample{Memory: memory}.AllMemory().Anonymous) - before
	publish("", 0, report.Sample{Value: rise / stored, Memory: memory, Notes: map[string]float64{
		"objects": float64(n), "stored MB": stored / 1e6, "rise MB": rise / 1e6, "rise after 5 s MB": (soon - before) / 1e6, "creates/s": float64(n) / took.Seconds(),
	}})
	e.profile(ctx, func(ctx context.Context) error {
		conns := e.conns(loadConns)
		defer load.CloseAll(conns)
		_, err := load.Closed{For: profileFor}.Run(ctx, conns, func(i int) load.Request { return post(applicationsPath, application(n+i)) })
		return err
	})
	return nil
}

// storedBytes returns the stored size of n applications, estimated from some of them: JSON
// without the resourceVersion.
func (e *Env) storedBytes(ctx context.Context, n int) (float64, error) {
	const samples = 20
	var bytes float64
	for k := range samples {
		one, err := e.send(ctx, load.Request{Path: fmt.Sprintf("%s/application-%d", applicationsPath, k*n/samples), Accept: jsonType})
		if err != nil {
			return 0, err
		}
		var read struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := json.Unmarshal(one, &read); err != nil {
			return 0, fmt.Errorf("read an application: %w", err)
		}
		bytes += float64(len(one) - len(`"resourceVersion":"",`) - len(read.Metadata.ResourceVersion))
	}
	return bytes * float64(n) / samples, nil
}

// anonymous returns the anonymous memory of all processes, in bytes.
func (e *Env) anonymous() (float64, error) {
	all, err := e.memory()
	return float64(report.Sample{Memory: all}.AllMemory().Anonymous), err
}
