package aggregator

import (
	"bytes"
	"strings"
	"testing"

	"triune.dev/shared/program/command"
)

func TestCommandReportsEveryProblem(t *testing.T) {
	var out bytes.Buffer
	err := command.Run(t.Context(), Command(), []string{"--secure-port=70000"}, &out, &out)
	if err == nil {
		t.Fatal("it runs without an etcd, a next tier and a certificate")
	}
	for _, flag := range []string{"--etcd-servers", "--secure-port", "--next-url", "--proxy-client-cert-file", "--proxy-client-key-file"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not named in %q", flag, err)
		}
	}
}

func TestCommandHasKubeAPIServersFlags(t *testing.T) {
	var out bytes.Buffer
	if err := command.Run(t.Context(), Command(), []string{"--help"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{
		"--aggregator-reject-forwarding-redirect", "--enable-aggregator-routing", "--requestheader-client-ca-file", "--client-ca-file",
		"--token-auth-file", "--enable-admission-plugins", "--audit-log-path", "--goaway-chance", "--next-url", "--core-url",
	} {
		if !strings.Contains(out.String(), flag+" ") {
			t.Errorf("there is no %s", flag)
		}
	}
}
