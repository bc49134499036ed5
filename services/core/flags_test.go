package core

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"triune.dev/shared/program/command"
)

// appliedWhole are the parts of kube-apiserver's options that upstream's functions apply, with
// the call that does it. All flags of such a part have kube-apiserver's effect.
var appliedWhole = map[string]string{
	"GenericServerRunOptions": "GenericServerRunOptions.ApplyTo(",
	"SecureServing":           "serving.ApplyTo(",
	"Audit":                   "options.Audit.ApplyTo(",
	"Features":                "fairness.Apply(c.options.Features",
	"APIEnablement":           "options.APIEnablement.ApplyTo(",
	"EgressSelector":          "options.EgressSelector.ApplyTo(",
	"Traces":                  "options.Traces.ApplyTo(",
	"Metrics":                 "options.ApplyMetrics(c.options.Metrics",
	"Admission":               "options.Admission.GenericAdmission",
	"Authentication":          "options.Authentication.ApplyTo(",
	"Authorization":           "controlplaneapiserver.BuildAuthorizer(ctx, c.options.",
	"KubeletConfig":           "o.KubeletConfig",
	"Logs":                    "ValidateAndApply(spec.Logs",
}

// appliedByFlag are flags whose values are not in a field of the options, with what applies them.
var appliedByFlag = map[string]string{
	"feature-gates": "globals.Set()", "emulated-version": "globals.Set()", "min-compatibility-version": "globals.Set()",
	"default-not-ready-toleration-seconds": "options.Admission.GenericAdmission", "default-unreachable-toleration-seconds": "options.Admission.GenericAdmission",
	"log-json-info-buffer-size": "ValidateAndApply(spec.Logs", "log-text-info-buffer-size": "ValidateAndApply(spec.Logs",
	"etcd-servers-overrides": "builder.Complete(&etcd)", "storage-media-type": "builder.Complete(&etcd)",
	"service-cluster-ip-range": "o.PrimaryServiceClusterIPRange", "service-node-port-range": "o.ServiceNodePortRange",
}

// replaced are the packages of k8s.io that a linked package imports and Triune does not run.
var replaced = []string{"/pkg/storage/cacher", "/pkg/storage/etcd3"}

// TestFlagsHaveAnEffect: every flag of kube-apiserver is applied, or its lack of an effect is
// logged at the start and explained. A flag of a new version fails here until it is one of both.
func TestFlagsHaveAnEffect(t *testing.T) {
	sources, explained := readSources(t, "../../shared", "../standalone", "."), readFile(t, "../../docs/divergences.md")
	for part, call := range appliedWhole {
		if !strings.Contains(sources, call) {
			t.Errorf("nothing calls %s, which applies the flags of %s", call, part)
		}
	}
	o := options.NewServerRunOptions()
	fields := fieldsByAddress(o)
	sections := o.Flags()
	for _, section := range sections.Order {
		sections.FlagSets[section].VisitAll(func(flag *pflag.Flag) {
			if _, ok := command.FlagsWithoutEffect[flag.Name]; ok {
				if !flag.Hidden && flag.Deprecated == "" && !strings.Contains(explained, "`--"+flag.Name+"`") {
					t.Errorf("docs/divergences.md does not say why --%s has no effect", flag.Name)
				}
				return
			}
			if call, ok := appliedByFlag[flag.Name]; ok {
				if !strings.Contains(sources, call) {
					t.Errorf("nothing calls %s, which applies --%s", call, flag.Name)
				}
				return
			}
			path := fields[addressOf(flag.Value)]
			if path == "" {
				t.Errorf("--%s sets no known field", flag.Name)
				return
			}
			parts := strings.Split(strings.TrimPrefix(path, "."), ".")
			if slices.ContainsFunc(parts, func(part string) bool { return appliedWhole[part] != "" }) {
				return
			}
			if !strings.Contains(sources, "."+parts[len(parts)-1]) {
				t.Errorf("nothing reads %s, the field of --%s", path, flag.Name)
			}
		})
	}
}

// TestGatesHaveAnEffect: a feature gate that only replaced packages ask for is known as one
// without an effect, and explained.
func TestGatesHaveAnEffect(t *testing.T) {
	explained := readFile(t, "../../docs/divergences.md")
	for gate := range command.GatesWithoutEffect {
		if !strings.Contains(explained, "`"+string(gate)+"`") {
			t.Errorf("docs/divergences.md does not say why the gate %s has no effect", gate)
		}
	}
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.Dir}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	used := map[bool]map[string]bool{false: {}, true: {}} // by whether the package is replaced
	asked := regexp.MustCompile(`eatures?\.([A-Z]\w+)`)
	for directory := range strings.Lines(string(listed)) {
		directory = strings.TrimSpace(directory)
		if strings.HasSuffix(directory, "/pkg/features") {
			continue // which defines gates, and uses none
		}
		of := slices.ContainsFunc(replaced, func(p string) bool { return strings.Contains(directory, p) })
		files, err := filepath.Glob(directory + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, match := range asked.FindAllStringSubmatch(readFile(t, file), -1) {
				used[of][match[1]] = true
			}
		}
	}
	if len(used[false]) < 50 || len(used[true]) < 5 {
		t.Fatalf("%d gates are used, %d by replaced packages", len(used[false]), len(used[true]))
	}
	for gate := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		_, without := command.GatesWithoutEffect[gate]
		if used[true][string(gate)] && !used[false][string(gate)] && !without {
			t.Errorf("the gate %s has no effect, and nothing says so", gate)
		}
	}
}

// fieldsByAddress returns the paths of all fields of a struct by their addresses.
func fieldsByAddress(v any) map[uintptr]string {
	found := map[uintptr]string{}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.CanAddr() {
			if _, ok := found[v.UnsafeAddr()]; !ok || v.Kind() != reflect.Struct {
				found[v.UnsafeAddr()] = path
			}
		}
		if v.Kind() == reflect.Struct && strings.Count(path, ".") < 8 {
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		}
	}
	walk(reflect.ValueOf(v), "")
	return found
}

// addressOf returns the address of the field that a flag sets: that of the value itself, or that
// of the first pointer in it.
func addressOf(value pflag.Value) uintptr {
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Pointer && v.Elem().Kind() != reflect.Struct {
		return v.Pointer()
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		if field := v.Field(i); field.Kind() == reflect.Pointer && !field.IsNil() {
			return field.Pointer()
		}
	}
	return 0
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// readSources returns the Go files below directories, without tests.
func readSources(t *testing.T, directories ...string) string {
	t.Helper()
	var all strings.Builder
	for _, directory := range directories {
		err := filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				all.WriteString(readFile(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}
