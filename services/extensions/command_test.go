package extensions_test

import (
	"bytes"
	"strings"
	"testing"

	logsapi "k8s.io/component-base/logs/api/v1"

	"triune.dev/services/extensions"
	"triune.dev/shared/program/command"
)

// Validate reports all problems at once, each with its flag.
func TestProgramNamesItsFlags(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{
			"what must be given", nil,
			[]string{"--etcd-servers", "--core-url", "--proxy-client-cert-file", "--proxy-client-key-file"},
		},
		{
			"values that cannot be", []string{"--crd-establish-delay=-1s", "--authorization-mode=Magic", "--etcd-servers=http://127.0.0.1:1"},
			[]string{"--crd-establish-delay=-1s must not be negative", "--authorization-mode=Magic"},
		},
		{"a plugin that looks at built-in kinds", []string{"--enable-admission-plugins=NodeRestriction"}, []string{"NodeRestriction"}},
		{"a flag that does not exist", []string{"--next-url=https://127.0.0.1"}, []string{"unknown flag: --next-url"}},
		{"an argument", []string{"serve"}, []string{"takes no arguments"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			// The logging configuration can be applied once in a process.
			if err := logsapi.ResetForTest(nil); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err := command.Run(t.Context(), extensions.Command(), test.args, &out, &out)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if message := command.Message(err); !strings.Contains(message, want) {
					t.Errorf("%q is not in %q", want, message)
				}
			}
		})
	}
}

func TestProgramVersionAndHelp(t *testing.T) {
	for arg, want := range map[string]string{
		"--version": "Kubernetes v",
		"--help":    "--crd-establish-delay",
	} {
		var out bytes.Buffer
		if err := command.Run(t.Context(), extensions.Command(), []string{arg}, &out, &out); err != nil {
			t.Errorf("%s: %v", arg, err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s does not print %q:\n%s", arg, want, out.String())
		}
	}
}
