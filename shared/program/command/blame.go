package command

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/cert"
)

// Much of what can be wrong with a flag is found by libraries of Kubernetes,
// which name the flag, or the value, or neither. What the user is told names
// both: files are looked at before anybody else does, and the problems of others
// are put behind the flag that they are about.

// pairs are the flags of a certificate and of its key.
var pairs = [][2]string{
	{"tls-cert-file", "tls-private-key-file"},
	{"proxy-client-cert-file", "proxy-client-key-file"},
	{"etcd-certfile", "etcd-keyfile"},
	{"nats-certfile", "nats-keyfile"},
}

// checkFiles looks at every file that a given flag names.
func checkFiles(flags *pflag.FlagSet) error {
	var problems []error
	flags.Visit(func(f *pflag.Flag) {
		if !isFile(f.Name) {
			return
		}
		for _, path := range elements(f) {
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
	for _, pair := range pairs {
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

// isFile knows the flags that name files: kube-apiserver says --client-ca-file and
// --etcd-cafile.
func isFile(flag string) bool {
	for _, suffix := range []string{"-file", "-cafile", "-certfile", "-keyfile"} {
		if strings.HasSuffix(flag, suffix) {
			return true
		}
	}
	return false
}

// hasCertificates knows those of them that hold certificates.
func hasCertificates(flag string) bool {
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
		return pathError.Err // the path is in front of it already
	}
	if err != nil {
		return err
	}
	if hasCertificates(flag) {
		if _, err := cert.ParseCertsPEM(data); err != nil {
			return err
		}
	}
	return nil
}

// blamed puts the flag and its value in front of each problem that does not name
// both of them.
func blamed(err error, flags *pflag.FlagSet) error {
	if err == nil {
		return nil
	}
	var problems []error
	for _, problem := range parts(err) {
		problems = append(problems, blame(problem, flags))
	}
	return utilerrors.NewAggregate(problems)
}

func blame(problem error, flags *pflag.FlagSet) error {
	text := problem.Error()
	rest := text
	flags.Visit(func(f *pflag.Flag) { // what is named in full explains itself
		for _, value := range elements(f) {
			rest = strings.ReplaceAll(rest, "--"+f.Name+"="+value, "")
		}
	})
	var best *pflag.Flag
	var bestValue string
	var bestScore int
	flags.Visit(func(f *pflag.Flag) {
		score := 0
		if hasWord(rest, f.Name) {
			score = 1000 + len(f.Name)
		}
		value := f.Value.String()
		for _, element := range elements(f) {
			key, _, _ := strings.Cut(element, "=")
			for _, mention := range []string{element, key} {
				if isTelling(mention) && strings.Contains(rest, mention) {
					score, value = score+len(mention), element
					break
				}
			}
		}
		if score > bestScore {
			best, bestValue, bestScore = f, value, score
		}
	})
	if best == nil {
		return problem
	}
	bestValue = strings.Trim(bestValue, "[]")
	if strings.Contains(text, "--"+best.Name) && strings.Contains(rest, bestValue) {
		return problem
	}
	// A server that does not start says where it would have listened.
	if flag, reason, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(flag, "--") && !strings.Contains(flag, " ") {
		text = reason
	}
	return fmt.Errorf("--%s=%s: %s", best.Name, bestValue, text)
}

// elements are the values of a flag that can have several.
func elements(f *pflag.Flag) []string {
	if several, ok := f.Value.(pflag.SliceValue); ok {
		return several.GetSlice()
	}
	return strings.Split(f.Value.String(), ",")
}

// isTelling says whether the value of a flag is so unlike others that a problem
// which mentions it must be about that flag.
func isTelling(value string) bool {
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		return false
	}
	if _, err := strconv.ParseBool(value); err == nil {
		return false
	}
	return len(value) >= 4 && net.ParseIP(value) == nil
}

// hasWord reports whether name is in text and not as a part of a longer name.
func hasWord(text, name string) bool {
	letter := func(c byte) bool { return c == '-' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := 0; ; {
		at := strings.Index(text[i:], name)
		if at < 0 {
			return false
		}
		begin, end := i+at, i+at+len(name)
		before := strings.TrimSuffix(text[:begin], "--")
		if (before == "" || !letter(before[len(before)-1])) && (end == len(text) || !letter(text[end])) && (strings.Contains(name, "-") || before != text[:begin]) {
			return true
		}
		i = begin + 1
	}
}
