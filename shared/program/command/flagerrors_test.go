package command

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// givenFlags returns a few of the programs' flags, set by args.
func givenFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.Int("secure-port", 6443, "")
	fs.Int("max-requests-inflight", 400, "")
	fs.IP("bind-address", nil, "")
	fs.String("tls-min-version", "", "")
	fs.String("tls-cert-file", "", "")
	fs.String("tls-private-key-file", "", "")
	fs.String("etcd-cafile", "", "")
	fs.String("etcd-keyfile", "", "")
	fs.String("client-ca-file", "", "")
	fs.String("service-cluster-ip-range", "", "")
	fs.StringSlice("etcd-servers", nil, "")
	fs.StringSlice("enable-admission-plugins", nil, "")
	fs.StringArray("service-account-key-file", nil, "")
	fs.Bool("profiling", true, "")
	fs.String("v", "", "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestProblemsNameTheFlagAndItsValue(t *testing.T) {
	for _, tc := range []struct{ args, problem, want string }{
		{"--max-requests-inflight=-1", "--max-requests-inflight can not be negative value", "--max-requests-inflight=-1: --max-requests-inflight can not be negative value"},
		{"--max-requests-inflight=-1", "max-requests-inflight is odd", "--max-requests-inflight=-1: max-requests-inflight is odd"},
		{"--secure-port=1 --tls-min-version=TLS99", `--secure-port=1: unknown tls version "TLS99"`, `--tls-min-version=TLS99: unknown tls version "TLS99"`},
		{"--service-cluster-ip-range=fd00::/16", `family "fd00::/16" must match`, `--service-cluster-ip-range=fd00::/16: family "fd00::/16" must match`},
		{"--enable-admission-plugins=A,NoSuch", `plugin "NoSuch" is unknown`, `--enable-admission-plugins=NoSuch: plugin "NoSuch" is unknown`},
		{"--service-account-key-file=/a --service-account-key-file=/broken", "error reading public key file /broken: x", "--service-account-key-file=/broken: error reading public key file /broken: x"},
		// Unchanged: problems that name both, and problems that are about no flag.
		{"--secure-port=1", "--secure-port=1: address already in use", "--secure-port=1: address already in use"},
		{"--bind-address=127.0.0.1 --profiling=true", "dial tcp 127.0.0.1:2379: true story", "dial tcp 127.0.0.1:2379: true story"},
		{"--v=7", "version 7 of v", "version 7 of v"},
		{"--etcd-servers=http://127.0.0.1:1", "--etcd-servers=http://127.0.0.1:1: no answer", "--etcd-servers=http://127.0.0.1:1: no answer"},
	} {
		if got := Message(nameFlags(errors.New(tc.problem), givenFlags(t, strings.Fields(tc.args)...))); got != tc.want {
			t.Errorf("%s with %s:\n got %s\nwant %s", tc.problem, tc.args, got, tc.want)
		}
	}
}

func TestEachProblemNamesItsOwnFlag(t *testing.T) {
	err := errors.Join(errors.New("max-requests-inflight is odd"), errors.New(`unknown version "TLS99"`))
	got := Message(nameFlags(err, givenFlags(t, "--max-requests-inflight=3", "--tls-min-version=TLS99")))
	if want := `--max-requests-inflight=3: max-requests-inflight is odd; --tls-min-version=TLS99: unknown version "TLS99"`; got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if nameFlags(nil, givenFlags(t)) != nil {
		t.Error("nil became an error")
	}
}
