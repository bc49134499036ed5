package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

// TestBadStart starts every program of the topology with invalid flags and files. It must
// exit soon with status 1 and one line that names the flag and the value, without having
// served anything. kube-apiserver has the same status, and the same text if that names
// both.
func TestBadStart(t *testing.T) {
	needs(t)
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { occupied.Close() })
	_, port, err := net.SplitHostPort(occupied.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	broken := writeFile(t, "broken.pem", "no certificate\n")
	absent := filepath.Join(t.TempDir(), "absent")
	const kind = "apiVersion: apiserver.config.k8s.io/v1\nkind: %s\n%s\n"
	strange := writeFile(t, "strange.yaml", fmt.Sprintf(kind, "AuthenticationConfiguration", "password: secret"))
	unsafe := writeFile(t, "unsafe.yaml", fmt.Sprintf(kind, "AuthenticationConfiguration",
		"jwt: [{issuer: {url: 'http://issuer.example', audiences: [a]}, claimMappings: {username: {expression: 'claims.('}}}]"))
	lawless := writeFile(t, "lawless.yaml", fmt.Sprintf(kind, "AuthorizationConfiguration", "authorizers: []"))
	nobody := writeFile(t, "nobody.yaml", fmt.Sprintf(kind, "AuthenticationConfiguration", "anonymous: {enabled: false}"))
	mute := filepath.Join(t.TempDir(), "jwt.sock")
	socket, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	signer := grpc.NewServer()
	go signer.Serve(socket)
	t.Cleanup(signer.Stop)
	const encryption = "EncryptionConfiguration"
	short := writeFile(t, "short.yaml", fmt.Sprintf(kind, encryption, "resources: [{resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: YQ==}]}}]}]"))
	network := writeFile(t, "network.yaml", fmt.Sprintf(kind, encryption, "resources: [{resources: [secrets], providers: [{kms: {apiVersion: v2, name: a, endpoint: 'tcp://127.0.0.1:1'}}]}]"))
	for _, tc := range []struct {
		name  string
		flags []string // appended, so that they take precedence
		want  []string // fragments of the line
		core  bool     // only servers of built-in resources have the flag
		// kube-apiserver starts, and waits for an etcd forever.
		hangs bool
		data  bool // only triune keeps data itself
	}{
		{name: "an unknown flag", flags: []string{"--no-such-flag=7"}, want: []string{"unknown flag: --no-such-flag"}},
		{name: "an argument", flags: []string{"surplus"}, want: []string{"surplus"}},
		{name: "invalid port", flags: []string{"--secure-port=abc"}, want: []string{"--secure-port", "abc"}},
		{name: "port too large", flags: []string{"--secure-port=70000"}, want: []string{"--secure-port", "70000"}},
		{name: "invalid address", flags: []string{"--bind-address=nowhere"}, want: []string{"--bind-address", "nowhere"}},
		{name: "occupied port", flags: []string{"--secure-port=" + port}, want: []string{"--secure-port", port}},
		{name: "unreachable etcd", flags: []string{"--etcd-servers=http://127.0.0.1:1"}, want: []string{"--etcd-servers", "127.0.0.1:1"}, hangs: true},
		{name: "invalid etcd URL", flags: []string{"--etcd-servers=::no url"}, want: []string{"--etcd-servers", "::no url"}, hangs: true},
		{name: "missing certificate", flags: []string{"--tls-cert-file=" + absent}, want: []string{"--tls-cert-file", absent}},
		{name: "invalid certificate", flags: []string{"--tls-cert-file=" + broken}, want: []string{"--tls-cert-file", broken}},
		{name: "missing authority", flags: []string{"--client-ca-file=" + absent}, want: []string{"--client-ca-file", absent}},
		{name: "invalid authority", flags: []string{"--client-ca-file=" + broken}, want: []string{"--client-ca-file", broken}},
		{name: "missing front proxy authority", flags: []string{"--requestheader-client-ca-file=" + absent}, want: []string{"--requestheader-client-ca-file", absent}},
		{name: "missing token file", flags: []string{"--token-auth-file=" + absent}, want: []string{"--token-auth-file", absent}},
		{name: "a token file without users", flags: []string{"--token-auth-file=" + writeFile(t, "tokens.csv", "token-without-a-user\n")}, want: []string{"--token-auth-file", "tokens.csv"}},
		{name: "missing authentication configuration", flags: []string{"--authentication-config=" + absent}, want: []string{"--authentication-config", absent}},
		{name: "invalid authentication configuration", flags: []string{"--authentication-config=" + broken}, want: []string{"--authentication-config", broken}},
		{name: "an authentication configuration with an unknown field", flags: []string{"--authentication-config=" + strange}, want: []string{"--authentication-config", "password"}},
		{name: "unusable authentication configuration", flags: []string{"--authentication-config=" + unsafe}, want: []string{"--authentication-config", "http://issuer.example"}},
		{name: "anonymous requests configured twice", flags: []string{"--authentication-config=" + nobody, "--anonymous-auth=true"}, want: []string{"--anonymous-auth", "onfig"}},
		{name: "token issuers configured twice", flags: []string{"--authentication-config=" + nobody, "--oidc-issuer-url=https://issuer.example", "--oidc-client-id=a"}, want: []string{"authentication-config", "oidc"}, core: true},
		{name: "an issuer of tokens without TLS", flags: []string{"--oidc-issuer-url=http://issuer.example", "--oidc-client-id=a"}, want: []string{"oidc-issuer-url", "http://issuer.example"}, core: true},
		{name: "an issuer of tokens without an audience", flags: []string{"--oidc-issuer-url=https://issuer.example"}, want: []string{"oidc-client-id"}, core: true},
		{name: "missing token webhook", flags: []string{"--authentication-token-webhook-config-file=" + absent}, want: []string{"--authentication-token-webhook-config-file", absent}, core: true},
		{name: "missing authorization configuration", flags: []string{"--authorization-mode=", "--authorization-config=" + absent}, want: []string{"--authorization-config", absent}, core: true},
		{name: "an authorization configuration without authorizers", flags: []string{"--authorization-mode=", "--authorization-config=" + lawless}, want: []string{"--authorization-config", lawless}, core: true},
		{name: "authorization configured twice", flags: []string{"--authorization-mode=RBAC", "--authorization-config=" + lawless}, want: []string{"authorization-config", "authorization-mode"}, core: true},
		{name: "missing authorization webhook", flags: []string{"--authorization-mode=Webhook", "--authorization-webhook-config-file=" + absent}, want: []string{"--authorization-webhook-config-file", absent}, core: true},
		{name: "missing policy", flags: []string{"--authorization-mode=ABAC", "--authorization-policy-file=" + absent}, want: []string{"--authorization-policy-file", absent}, core: true},
		{name: "invalid cipher", flags: []string{"--tls-cipher-suites=ROT13"}, want: []string{"--tls-cipher-suites", "ROT13"}},
		{name: "invalid TLS version", flags: []string{"--tls-min-version=VersionTLS99"}, want: []string{"--tls-min-version", "VersionTLS99"}},
		{name: "invalid HTTP/2 server", flags: []string{"--http2-server=nginx"}, want: []string{"--http2-server", "nginx"}},
		{name: "invalid feature", flags: []string{"--feature-gates=NoSuchFeature=true"}, want: []string{"--feature-gates", "NoSuchFeature"}},
		{name: "invalid time", flags: []string{"--request-timeout=soon"}, want: []string{"--request-timeout", "soon"}},
		{name: "a negative time", flags: []string{"--request-timeout=-5s"}, want: []string{"--request-timeout", "-5s"}},
		{name: "a negative limit", flags: []string{"--max-requests-inflight=-1"}, want: []string{"--max-requests-inflight", "-1"}},
		{name: "invalid authorization mode", flags: []string{"--authorization-mode=Perhaps"}, want: []string{"--authorization-mode", "Perhaps"}, core: true},
		{name: "invalid plugin", flags: []string{"--enable-admission-plugins=NoSuchPlugin"}, want: []string{"--enable-admission-plugins", "NoSuchPlugin"}, core: true},
		{name: "invalid range", flags: []string{"--service-cluster-ip-range=10.0.0.0"}, want: []string{"--service-cluster-ip-range", "10.0.0.0"}, core: true},
		{name: "range too large", flags: []string{"--service-cluster-ip-range=fd00::/16"}, want: []string{"--service-cluster-ip-range", "fd00::/16"}, core: true},
		{name: "missing signing key", flags: []string{"--service-account-signing-key-file=" + absent}, want: []string{"--service-account-signing-key-file", absent}, core: true},
		{name: "invalid key", flags: []string{"--service-account-key-file=" + broken}, want: []string{"--service-account-key-file", broken}, core: true},
		{name: "signer without signatures", flags: []string{"--service-account-key-file=", "--service-account-signing-key-file=", "--service-account-signing-endpoint=" + mute}, want: []string{"--service-account-signing-endpoint", mute}, core: true},
		{name: "a signer and a key to sign with", flags: []string{"--service-account-key-file=", "--service-account-signing-endpoint=" + mute}, want: []string{"service-account-signing-endpoint", "service-account-signing-key-file"}, core: true},
		{name: "a signer and a key to verify with", flags: []string{"--service-account-signing-key-file=", "--service-account-signing-endpoint=" + mute}, want: []string{"--service-account-signing-endpoint", "--service-account-key-file"}, core: true},
		{name: "a signer without an issuer", flags: []string{"--service-account-issuer=", "--service-account-key-file=", "--service-account-signing-key-file=", "--service-account-signing-endpoint=" + mute}, want: []string{"service-account-"}, core: true},
		{name: "missing encryption configuration", flags: []string{"--encryption-provider-config=" + absent}, want: []string{"--encryption-provider-config", absent}},
		{name: "encryption configuration with a key too short", flags: []string{"--encryption-provider-config=" + short}, want: []string{"--encryption-provider-config", short, "keys[0].secret"}},
		{name: "a key management service on the network", flags: []string{"--encryption-provider-config=" + network}, want: []string{"--encryption-provider-config", network, "tcp"}},
		{name: "invalid issuer", flags: []string{"--service-account-issuer=::"}, want: []string{"--service-account-issuer", "::"}, core: true},
		{name: "invalid API version", flags: []string{"--runtime-config=nothing/v1=true"}, want: []string{"--runtime-config", "nothing"}, core: true},
		{name: "a data directory that cannot be made", flags: []string{"--data-dir=/proc/triune"}, want: []string{"--data-dir", "/proc/triune"}, data: true},
		{name: "a damaged database", flags: []string{"--data-dir=" + damagedData(t)}, want: []string{"--data-dir", "database"}, data: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range programs() {
				t.Run(program, func(t *testing.T) {
					if tc.hangs && program == "kube-apiserver" {
						return
					}
					if tc.data && (program != "triune" || *etcd) {
						return
					}
					if tc.core && (program == "aggregator" || program == "extensions") {
						return
					}
					begin := time.Now()
					stderr, code := startOnce(t, program, tc.flags)
					if code != 1 {
						t.Errorf("exit status %d, want 1\n%s", code, tail(stderr))
					}
					if took := time.Since(begin); took > 30*time.Second && program != "kube-apiserver" {
						t.Errorf("it took %v", took)
					}
					if program == "kube-apiserver" {
						return // kube-apiserver's messages are not ours to test
					}
					line := lastLine(stderr)
					for _, want := range tc.want {
						if !strings.Contains(line, want) {
							t.Errorf("the line does not have %q:\n%s", want, tail(stderr))
						}
					}
					if strings.Contains(stderr, "goroutine ") || strings.Contains(stderr, "Usage:") || strings.Contains(stderr, "grpc:") {
						t.Errorf("more than one line:\n%s", tail(stderr))
					}
				})
			}
		})
	}
}

// damagedData returns a data directory whose database is cut off.
func damagedData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	database := filepath.Join(dir, "etcd", "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(database), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(database, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// programs are the binaries of the topology under test.
func programs() []string {
	if cluster.Topology(*target) == cluster.Tiers {
		return []string{"aggregator", "core", "extensions"}
	}
	return []string{*target}
}

// startOnce runs a program with valid flags, followed by others, until it exits.
func startOnce(t *testing.T, program string, flags []string) (stderr string, code int) {
	t.Helper()
	c := shared.cluster
	dir := t.TempDir()
	p, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	var path string
	if program == "kube-apiserver" {
		path, err = tools.Path(t.Context(), program)
	} else {
		path, err = tools.Binary(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A repeatable flag would add to the valid value.
	args := slices.DeleteFunc(c.CommandLine(program, p, dir, port), func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.ContainsFunc(flags, func(flag string) bool { return strings.HasPrefix(flag, name+"=") })
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, flag := range flags {
		if !strings.HasSuffix(flag, "=") { // an empty value only removes the valid one
			args = append(args, flag)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stderr = &out
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("it did not end:\n%s", tail(out.String()))
	case err == nil:
		return out.String(), 0
	case errors.As(err, &exit):
		return out.String(), exit.ExitCode()
	default:
		t.Fatal(err)
	}
	return "", 0
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func tail(s string) string { return s[max(0, len(s)-3000):] }
