package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEventLogFlags checks that Validate reports each invalid flag by its name.
func TestEventLogFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const server = "--nats-url=tls://nats:4222"
	tests := map[string]struct {
		args []string
		want []string // prefixes of the problems, in order
	}{
		"defaults":             {nil, nil},
		"everything":           {[]string{server, "--nats-credentials=" + file, "--nats-cafile=" + file, "--nats-certfile=" + file, "--nats-keyfile=" + file, "--event-log-relay=core,extensions", "--event-log-replicas=3", "--event-log-storage=memory"}, nil},
		"several servers":      {[]string{"--nats-url=nats://a:1,nats://b:2"}, nil},
		"no URL":               {[]string{"--nats-url=nats"}, []string{"--nats-url=nats: "}},
		"a web page":           {[]string{"--nats-url=https://nats:4222"}, []string{"--nats-url=https://nats:4222: "}},
		"a file without a URL": {[]string{"--nats-cafile=" + file}, []string{"--nats-cafile needs --nats-url"}},
		"no such file":         {[]string{server, "--nats-credentials=/nowhere"}, []string{"--nats-credentials: stat /nowhere"}},
		"half a key pair":      {[]string{server, "--nats-certfile=" + file}, []string{"--nats-certfile and --nats-keyfile go together"}},
		"two problems":         {[]string{"--event-log-cluster=a.b", "--event-log-relay=gizmo"}, []string{"--event-log-cluster=", "--event-log-relay=gizmo: "}},
		"unknown storage":      {[]string{"--event-log-storage=tape"}, []string{"--event-log-storage=tape: "}},
		"bounds":               {[]string{"--event-log-replicas=0", "--event-log-max-age=0s", "--event-log-max-bytes=-1", "--cache-plain-bytes=-1", "--cache-log-bytes=0"}, []string{"--event-log-replicas=0", "--event-log-max-age=0s", "--event-log-max-bytes=-1", "--cache-plain-bytes=-1", "--cache-log-bytes=0"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewEventLog()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			problems := o.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %q", problems, test.want)
			}
			for i, problem := range problems {
				if !strings.HasPrefix(problem.Error(), test.want[i]) {
					t.Errorf("got %q, want %q…", problem, test.want[i])
				}
			}
		})
	}
}
