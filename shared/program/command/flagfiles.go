package command

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/cert"
)

// keyPairs lists the flags that name a certificate and its key.
var keyPairs = [][2]string{
	{"tls-cert-file", "tls-private-key-file"},
	{"proxy-client-cert-file", "proxy-client-key-file"},
	{"etcd-certfile", "etcd-keyfile"},
	{"nats-certfile", "nats-keyfile"},
}

// checkFiles reads every file that a set flag names, before the libraries of
// Kubernetes do: many of their errors name neither the flag nor the file. It
// returns all problems, each with its flag and value.
func checkFiles(flags *pflag.FlagSet) error {
	var problems []error
	flags.Visit(func(f *pflag.Flag) {
		if !namesFile(f.Name) {
			return
		}
		for _, path := range flagValues(f) {
			if path == "" {
				continue
			}
			if err := checkFile(f.Name, path); err != nil {
				problems = append(problems, fmt.Errorf("--%s=%s: %w", f.Name, path, err))
			}
		}
	})
	if len(problems) > 0 {
		return utilerrors.NewAggregate(problems)
	}
	for _, pair := range keyPairs {
		certificate, key := flags.Lookup(pair[0]), flags.Lookup(pair[1])
		if certificate == nil || key == nil || certificate.Value.String() == "" || key.Value.String() == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(certificate.Value.String(), key.Value.String()); err != nil {
			problems = append(problems, fmt.Errorf("--%s=%s --%s=%s: %w", certificate.Name, certificate.Value, key.Name, key.Value, err))
		}
	}
	return utilerrors.NewAggregate(problems)
}

// namesFile reports whether the value of flag is the name of a file. kube-apiserver
// has both --client-ca-file and --etcd-cafile.
func namesFile(flag string) bool {
	for _, suffix := range []string{"-file", "-cafile", "-certfile", "-keyfile"} {
		if strings.HasSuffix(flag, suffix) {
			return true
		}
	}
	return false
}

// namesCertificates reports whether the file that flag names holds certificates.
func namesCertificates(flag string) bool {
	for _, suffix := range []string{"-ca-file", "-cert-file", "-cafile", "-certfile"} {
		if strings.HasSuffix(flag, suffix) {
			return true
		}
	}
	return false
}

func checkFile(flag, path string) error {
	data, err := os.ReadFile(path)
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err // the caller adds the path
	}
	if err != nil {
		return err
	}
	if namesCertificates(flag) {
		if _, err := cert.ParseCertsPEM(data); err != nil {
			return err
		}
	}
	return nil
}
