package parity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"triune.dev/tests/tools"
)

// project says where the CRDs and the examples of a project are in its module.
type project struct {
	definitions, examples []string
	// valid is how many objects the examples create, so that none are lost unnoticed.
	valid int
	// short projects are in the short form of the test.
	short bool
}

var projects = map[string]project{
	"argo-cd":             {definitions: []string{"manifests/crds"}, examples: []string{"applicationset/examples", "docs/operator-manual"}, valid: 27},
	"cert-manager":        {definitions: []string{"deploy/crds"}, examples: []string{"test/fixtures", "design"}, valid: 3, short: true},
	"cluster-api":         {definitions: []string{"core/config/crd/bases", "bootstrap/kubeadm/config/crd/bases", "controlplane/kubeadm/config/crd/bases"}, examples: []string{"docs"}, valid: 24},
	"crossplane":          {definitions: []string{"cluster/crds"}, examples: []string{"test/e2e/manifests", "cluster/composition"}, valid: 103},
	"external-secrets":    {definitions: []string{"config/crds/bases"}, examples: []string{"docs"}, valid: 131},
	"gateway-api":         {definitions: []string{"config/crd/standard"}, examples: []string{"examples"}, valid: 67},
	"keda":                {definitions: []string{"config/crd/bases"}, examples: []string{"config/samples"}, valid: 5},
	"knative-serving":     {definitions: []string{"config/core/300-resources"}, examples: []string{"test"}, valid: 30},
	"prometheus-operator": {definitions: []string{"example/prometheus-operator-crd"}, examples: []string{"example", "Documentation"}, valid: 37},
	"source-controller":   {definitions: []string{"config/crd/bases"}, examples: []string{"config", "docs"}, valid: 47, short: true},
}

// TestProjects installs the CRDs of projects that many clusters run, and creates, applies,
// reads and deletes their own examples, of which some are deliberately wrong.
func TestProjects(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(projects)) {
		project := projects[name]
		if testing.Short() && !project.short {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir, err := tools.Projects[name].Dir(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			use(t, dir, project)
		})
	}
}

func use(t *testing.T, dir string, project project) {
	p := newPair(t)
	p.createNamespace()
	var definitions []definition
	for _, o := range readObjects(t, dir, project.definitions) {
		if o.GetKind() == "CustomResourceDefinition" {
			definitions = append(definitions, newDefinition(t, o))
		}
	}
	if len(definitions) == 0 {
		t.Fatal("no definitions")
	}
	for _, d := range definitions {
		p.install(d)
	}
	for _, d := range definitions {
		p.describe(d)
	}
	created := 0
	for _, o := range readObjects(t, dir, project.examples) {
		i := slices.IndexFunc(definitions, func(d definition) bool { return d.defines(o) })
		if i >= 0 && o.GetName() != "" && p.createExample(definitions[i], o) {
			created++
		}
	}
	t.Logf("%d definitions, %d examples", len(definitions), created)
	if created != project.valid {
		t.Errorf("%d examples could be created, want %d", created, project.valid)
	}
	for _, d := range definitions {
		p.remove(d)
	}
}

// fence is a block of YAML in Markdown.
var fence = regexp.MustCompile("(?ms)^[ \t]*```ya?ml[^\n]*\n(.*?)^[ \t]*```")

// readObjects decodes the objects in all YAML and Markdown files below some directories.
// What is no object, such as a template or a fragment, is left out.
func readObjects(t *testing.T, root string, dirs []string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			extension := filepath.Ext(path)
			if !slices.Contains([]string{".yaml", ".yml", ".md"}, extension) {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if extension != ".md" {
				objects = append(objects, decodeObjects(data)...)
				return nil
			}
			for _, block := range fence.FindAllSubmatch(data, -1) {
				objects = append(objects, decodeObjects(block[1])...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return objects
}

func decodeObjects(data []byte) (objects []*unstructured.Unstructured) {
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			continue // the next document may be one
		case o.GetKind() != "" && o.GetAPIVersion() != "":
			objects = append(objects, o)
		}
	}
}

// definition is a CRD and what is needed of it.
type definition struct {
	object                        *unstructured.Unstructured
	group, plural, kind, listKind string
	namespaced                    bool
	versions                      []string // those that are served
	// ages are the cells of a table that grow older, by version.
	ages map[string][]string
}

func newDefinition(t *testing.T, o *unstructured.Unstructured) definition {
	t.Helper()
	var crd struct {
		Spec struct {
			Group, Scope string
			Names        struct{ Plural, Kind, ListKind string }
			Versions     []struct {
				Name                     string
				Served                   bool
				AdditionalPrinterColumns []struct{ Type string }
			}
		}
	}
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &crd); err != nil {
		t.Fatalf("%s: %v", o.GetName(), err)
	}
	d := definition{
		object: o, group: crd.Spec.Group, plural: crd.Spec.Names.Plural, kind: crd.Spec.Names.Kind,
		listKind: cmp.Or(crd.Spec.Names.ListKind, crd.Spec.Names.Kind+"List"), namespaced: crd.Spec.Scope == "Namespaced", ages: map[string][]string{},
	}
	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}
		d.versions = append(d.versions, version.Name)
		for i, column := range version.AdditionalPrinterColumns {
			if column.Type == "date" {
				d.ages[version.Name] = append(d.ages[version.Name], fmt.Sprintf("rows.*.cells.%d", i+1))
			}
		}
		if len(version.AdditionalPrinterColumns) == 0 {
			d.ages[version.Name] = []string{"rows.*.cells.1"}
		}
	}
	return d
}

func (d definition) defines(o *unstructured.Unstructured) bool {
	kind := o.GroupVersionKind()
	return kind.Group == d.group && kind.Kind == d.kind
}

// collection returns the path of the resource in a version.
func (d definition) collection(version string) string {
	if d.namespaced {
		return "/apis/" + d.group + "/" + version + "/namespaces/${ns}/" + d.plural
	}
	return "/apis/" + d.group + "/" + version + "/" + d.plural
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

const (
	// established is in a CRD whose resource is served, and approved in one whose group is
	// Kubernetes' own.
	established = `"type":"Established","status":"True"`
	approved    = `"type":"KubernetesAPIApprovalPolicyConformant","status":"True"`
)

// install applies a CRD twice, and waits until its resource is served.
func (p *pair) install(d definition) {
	p.t.Helper()
	path := definitionsPath + "/" + d.object.GetName()
	apply := Request{Do: "PATCH " + path + "?fieldManager=kubectl&force=true", Headers: map[string]string{"Content-Type": applyPatch}, Object: d.object}
	p.sameInAnyOrder(apply)
	if d.object.GetAnnotations()[apiextensionsv1.KubeAPIApprovedAnnotation] != "" {
		p.answers(Request{Do: "GET " + path, Until: approved})
	}
	p.sameInAnyOrder(Request{Do: "GET " + path, Until: established})
	p.sameInAnyOrder(apply)
}

// describe compares what clients learn of a resource before they use it, in each version.
func (p *pair) describe(d definition) {
	p.t.Helper()
	for _, version := range d.versions {
		group := "/apis/" + d.group + "/" + version
		p.answers(Request{Do: "GET " + group, Until: `"name":"` + d.plural + `"`})
		p.sameResources(group)
		p.answers(Request{Do: "GET /openapi/v3" + group, Until: `"kind":"` + d.kind + `"`})
		p.sameDocument("/openapi/v3" + group)
		// A new resource of kube-apiserver answers 429 at first.
		p.same(Request{Do: "GET " + d.collection(version), Until: `"kind":"` + d.listKind + `"`})
	}
}

// sameInAnyOrder is same for answers with lists that kube-apiserver writes in no order: the
// causes of an invalid custom resource, and the conditions of a CRD. It returns the answers.
func (p *pair) sameInAnyOrder(r Request) (want, got *Answer) {
	p.t.Helper()
	want, got = p.answers(r)
	p.compare(r, inOrder(p.t, want), inOrder(p.t, got))
	return want, got
}

func inOrder(t *testing.T, a *Answer) *Answer {
	t.Helper()
	if a.Header.Get("Content-Type") != "application/json" {
		return a // the 404 of a version that is not served
	}
	decoder := json.NewDecoder(bytes.NewReader(a.Body))
	decoder.UseNumber()
	var body map[string]any
	if err := decoder.Decode(&body); err != nil {
		t.Fatalf("%v: %.300s", err, a.Body)
	}
	for _, path := range [][]string{{"details", "causes"}, {"status", "conditions"}} {
		list, ok, err := unstructured.NestedFieldNoCopy(body, path...)
		if items, isList := list.([]any); ok && err == nil && isList {
			slices.SortFunc(items, func(a, b any) int { return strings.Compare(label(a), label(b)) })
		}
	}
	if message, ok := body["message"].(string); ok && a.Code == http.StatusUnprocessableEntity {
		words := strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune("[], ", r) })
		slices.Sort(words)
		body["message"] = strings.Join(words, " ")
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return &Answer{Code: a.Code, Header: a.Header, Body: append(data, '\n')}
}

// label is what distinguishes a cause or a condition from the others of its list.
func label(item any) string {
	fields, _ := item.(map[string]any)
	return fmt.Sprint(fields["type"], fields["field"], fields["message"])
}

// sameResources compares the resources of a group-version. kube-apiserver lists custom ones
// in no order.
func (p *pair) sameResources(group string) {
	p.t.Helper()
	want, got := p.answers(Request{Do: "GET " + group})
	var lists [2]metav1.APIResourceList
	for i, answer := range []*Answer{want, got} {
		if err := json.Unmarshal(answer.Body, &lists[i]); err != nil {
			p.t.Fatalf("%s: %v", group, err)
		}
		slices.SortFunc(lists[i].APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	}
	if diff := gocmp.Diff(lists[0], lists[1]); diff != "" {
		p.t.Errorf("%s (-kube-apiserver +tested):\n%s", group, diff)
	}
}

// createExample creates an object as kubectl does, applies it twice and reads it, and
// reports whether it could be created.
func (p *pair) createExample(d definition, o *unstructured.Unstructured) bool {
	p.t.Helper()
	o = o.DeepCopy()
	o.SetNamespace("")
	if d.namespaced {
		o.SetNamespace(p.tested["ns"])
	}
	version := o.GroupVersionKind().Version
	collection := d.collection(version)
	object := collection + "/" + o.GetName()
	created, _ := p.sameInAnyOrder(Request{Do: "POST " + collection + "?fieldValidation=Strict&fieldManager=kubectl-create", Object: o})
	if created.Code != http.StatusCreated {
		return false
	}
	apply := Request{Do: "PATCH " + object + "?fieldManager=kubectl&force=true", Headers: map[string]string{"Content-Type": applyPatch}, Object: o}
	p.sameInAnyOrder(apply)
	before := p.revision(object)
	p.sameInAnyOrder(apply)
	// One that writes null where there is a default changes the object each time.
	if after := p.revision(object); (before[0] == after[0]) != (before[1] == after[1]) {
		p.t.Errorf("%s: a second apply changed the object of one server: %v, %v", object, before, after)
	}
	p.same(Request{Do: "GET " + object, Headers: map[string]string{"Accept": asTable}, Volatile: d.ages[version]})
	if len(o.GetFinalizers()) > 0 {
		p.same(Request{Do: "PATCH " + object, Headers: map[string]string{"Content-Type": mergePatch}, Body: `{"metadata":{"finalizers":null}}`})
	}
	return true
}

// remove compares lists of the examples, deletes them, and then their CRD.
func (p *pair) remove(d definition) {
	p.t.Helper()
	for _, version := range d.versions {
		p.same(Request{Do: "GET " + d.collection(version)})
		p.same(Request{Do: "GET " + d.collection(version), Headers: map[string]string{"Accept": asTable}, Volatile: d.ages[version]})
	}
	p.same(Request{Do: "DELETE " + d.collection(d.versions[0])})
	path := definitionsPath + "/" + d.object.GetName()
	p.same(Request{Do: "DELETE " + path, Unchecked: true})
	p.same(Request{Do: "GET " + path, Until: fmt.Sprintf(`"reason":"NotFound","details":{"name":%q`, d.object.GetName())})
}

// revision returns the resource versions of an object, in the two servers.
func (p *pair) revision(path string) [2]string {
	p.t.Helper()
	p.same(Request{Do: "GET " + path, Save: map[string]string{"revision": "metadata.resourceVersion"}})
	return [2]string{p.reference["revision"], p.tested["revision"]}
}
