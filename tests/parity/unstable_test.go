package parity

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"triune.dev/tests/cluster"
)

// unstable matches the paths of alpha and beta group-versions.
var unstable = regexp.MustCompile(`/(v\d+(?:alpha|beta)\d+)$`)

// TestAlphaAndBeta turns on every API and every feature gate. It sends the requests of
// TestEveryResource to each alpha and beta resource, and lets an object of each one live: it is
// created, read, watched, changed and deleted.
func TestAlphaAndBeta(t *testing.T) {
	if testing.Short() {
		t.Skip("two more servers for one test (-short)")
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	all, err := startPeers(ctx, func(cluster.Tier) []string {
		return []string{"--runtime-config=api/all=true", "--feature-gates=AllAlpha=true,AllBeta=true"}
	})
	defer func() {
		if err := closePeers(all, t.Failed); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api", "/apis"} {
		newPairOf(t, all).same(Request{Do: "GET " + path, Headers: map[string]string{"Accept": aggregatedV2}})
	}
	objects := unstableObjects(t)
	t.Run("resources", func(t *testing.T) {
		for _, gv := range groupVersions(t, all[0]) {
			version := unstable.FindStringSubmatch(gv.path)
			if version == nil {
				continue
			}
			for _, r := range gv.resources {
				t.Run(strings.TrimPrefix(gv.path, "/apis/")+" "+strings.ReplaceAll(r.Name, "/", " "), func(t *testing.T) {
					t.Parallel()
					p := newPairOf(t, all)
					for _, request := range probes(gv.path, r.Name, r.Namespaced) {
						p.same(request)
					}
					if strings.Contains(r.Name, "/") {
						return
					}
					object, ok := objects[r.Kind+" "+version[1]]
					if !ok {
						object, ok = objects[r.Kind]
					}
					if !ok {
						t.Fatalf("testdata/unstable has no %s", r.Kind)
					}
					p.createNamespace()
					for _, request := range life(gv.path, r, object) {
						p.same(request)
					}
				})
			}
		}
	})
}

// unstableObjects reads testdata/unstable.
func unstableObjects(t *testing.T) map[string]map[string]any {
	t.Helper()
	data, err := os.ReadFile("testdata/unstable/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(keys.ClusterCA.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(string(bundle))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		`"${trustBundle}"`, string(quoted),
		"${publicKey}", base64.StdEncoding.EncodeToString(encoded),
		"${possession}", base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte("pod-uid"))),
	).Replace(string(data))
	objects := map[string]map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &objects); err != nil {
		t.Fatal(err)
	}
	return objects
}

// life returns the requests for an object from its creation to its deletion.
func life(path string, r metav1.APIResource, object map[string]any) []Request {
	collection := path + "/" + r.Name
	if r.Namespaced {
		collection = path + "/namespaces/${ns}/" + r.Name
	}
	metadata := map[string]any{}
	if given, ok := object["metadata"].(map[string]any); ok {
		metadata = given
	}
	given, _ := metadata["name"].(string)
	name := cmp.Or(given, "${ns}")
	whole := map[string]any{"apiVersion": strings.TrimPrefix(path, "/apis/"), "kind": r.Kind, "metadata": map[string]any{"name": name, "labels": map[string]any{"of": "${ns}"}}}
	for field, value := range object {
		if field != "metadata" {
			whole[field] = value
		}
	}
	// Controllers write the status.
	volatile, merge := []string{"status"}, map[string]string{"Content-Type": mergePatch}
	item := collection + "/" + name
	selected := collection + "?labelSelector=of%3D${ns}"
	return []Request{
		{Do: "POST " + collection + "?dryRun=All", Object: whole, Volatile: volatile},
		{Do: "POST " + collection, Object: whole, Volatile: volatile},
		{Do: "POST " + collection, Object: whole, Volatile: volatile},
		{Do: "GET " + item, Volatile: volatile},
		{Do: "GET " + item, Headers: map[string]string{"Accept": asTable}, Volatile: []string{"rows.*.cells"}}, // with its age
		{Do: "GET " + selected, Volatile: []string{"items.*.status"}},
		{Do: "GET " + selected + "&watch=true", Events: 1, Volatile: []string{"*.object.status"}},
		{Do: "PATCH " + item, Headers: merge, Body: `{"metadata":{"annotations":{"a":"b"}}}`, Volatile: volatile},
		{Do: "PATCH " + item + "?fieldManager=parity", Headers: map[string]string{"Content-Type": applyPatch}, Object: whole, Volatile: volatile},
		{Do: "PATCH " + item, Headers: merge, Body: `{"spec":"none"}`},
		{Do: "DELETE " + item, Volatile: volatile},
		{Do: "DELETE " + selected, Volatile: []string{"items"}},
	}
}
