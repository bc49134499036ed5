package authn

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"triune.dev/shared/process/pki"
)

func TestValidate(t *testing.T) {
	made, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shortTokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(shortTokens, []byte("token,user\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknownField := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(unknownField, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymus: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want []string // one for each problem
	}{
		"the defaults": {},
		"missing files": {
			args: []string{"--client-ca-file=/no/ca", "--requestheader-client-ca-file=/no/proxy-ca", "--requestheader-username-headers=X-Remote-User", "--token-auth-file=/no/tokens"},
			want: []string{"--client-ca-file=/no/ca", "--requestheader-client-ca-file=/no/proxy-ca", "--token-auth-file=/no/tokens"},
		},
		"one CA for clients and proxies": {
			args: []string{"--client-ca-file=" + made.ClusterCA.CertFile, "--requestheader-client-ca-file=" + made.ClusterCA.CertFile, "--requestheader-username-headers=X-Remote-User"},
			want: []string{"--requestheader-allowed-names"},
		},
		"no header for the user of a front proxy": {
			args: []string{"--requestheader-client-ca-file=" + made.FrontProxyCA.CertFile},
			want: []string{"--requestheader-username-headers"},
		},
		"a token file without a UID": {args: []string{"--token-auth-file=" + shortTokens}, want: []string{"--token-auth-file=" + shortTokens}},
		"an unknown field":           {args: []string{"--authentication-config=" + unknownField}, want: []string{"--authentication-config=" + unknownField}},
		"durations": {
			args: []string{"--authentication-token-webhook-cache-ttl=-1s", "--authentication-token-webhook-timeout=0s", "--authentication-max-staleness=-1s"},
			want: []string{"--authentication-token-webhook-cache-ttl=-1s", "--authentication-token-webhook-timeout=0s", "--authentication-max-staleness=-1s"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			problems := o.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %d problems", problems, len(test.want))
			}
			for i, problem := range problems {
				if !strings.Contains(problem.Error(), test.want[i]) {
					t.Errorf("%q does not name %s", problem, test.want[i])
				}
			}
		})
	}
}

func TestAnonymousFlagExcludesConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := NewOptions()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--anonymous-auth=true", "--authentication-config=" + file}); err != nil {
		t.Fatal(err)
	}
	if problems := o.Validate(); len(problems) != 1 || !strings.Contains(problems[0].Error(), "--anonymous-auth") {
		t.Errorf("got %v, want one problem that names --anonymous-auth", problems)
	}
}
