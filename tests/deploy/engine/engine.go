// Package engine drives a container engine for the tests of docker-compose.yml: it builds
// images that would otherwise come from a registry, and runs compose.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"triune.dev/tests/tools"
)

// ErrNone means that there is no container engine.
var ErrNone = errors.New("no container engine answers")

// Docker runs a command of the docker client and returns its output.
func Docker(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "", nil, "docker", args...)
}

// Available returns an error that wraps ErrNone unless the engine answers.
func Available(ctx context.Context) error {
	if _, err := Docker(ctx, "version", "--format={{.Server.Version}}"); err != nil {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return nil
}

// composeCommand returns the tests' own tool if it is built, docker's plugin, or the older
// separate program.
func composeCommand(ctx context.Context) ([]string, error) {
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	for _, command := range [][]string{{filepath.Join(root, ".tools", "docker-compose")}, {"docker", "compose"}, {"docker-compose"}} {
		if _, err := run(ctx, "", nil, command[0], append(command[1:], "version")...); err == nil {
			return command, nil
		}
	}
	return nil, fmt.Errorf("%w: neither docker compose nor docker-compose is installed", ErrNone)
}

// run executes a program and returns its standard output; the error includes its standard
// error.
func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// standIn is an image with one static program, at the same path as in the public image.
type standIn struct {
	variable string // of docker-compose.yml
	tool     string
	path     string
}

var standIns = []standIn{
	{"TRIUNE_ETCD_IMAGE", "etcd", "/usr/local/bin/etcd"},
	{"TRIUNE_NATS_IMAGE", "nats-server", "/nats-server"},
	{"TRIUNE_PROMETHEUS_IMAGE", "prometheus", "/bin/prometheus"},
	{"TRIUNE_CONTROLLER_MANAGER_IMAGE", "kube-controller-manager", "/usr/local/bin/kube-controller-manager"},
	{"TRIUNE_SCHEDULER_IMAGE", "kube-scheduler", "/usr/local/bin/kube-scheduler"},
	{"TRIUNE_KWOK_IMAGE", "kwok", "/usr/local/bin/kwok"},
	{"TRIUNE_KUBECTL_IMAGE", "kubectl", "/bin/kubectl"},
}

// Repository begins the names of stand-in images, which must differ from those of public
// images.
const Repository = "triune-stand-in"

// StandIns builds an image of each of the named tools, or of all, from programs that the
// tests use anyway, and returns the variables that make docker-compose.yml use them.
func StandIns(ctx context.Context, names ...string) ([]string, error) {
	var env []string
	for _, s := range standIns {
		if len(names) > 0 && !slices.Contains(names, s.tool) {
			continue
		}
		path, err := tools.Path(ctx, s.tool)
		if err != nil {
			return nil, err
		}
		_, version, _ := strings.Cut(filepath.Base(filepath.Dir(path)), "@")
		tag := Repository + "/" + s.tool + ":" + version
		env = append(env, s.variable+"="+tag)
		if _, err := Docker(ctx, "image", "inspect", tag); err == nil {
			continue
		}
		if err := s.build(ctx, path, tag); err != nil {
			return nil, fmt.Errorf("build %s: %w", tag, err)
		}
	}
	return env, nil
}

// build copies the program into an empty directory, because the whole directory is sent to
// the engine.
func (s standIn) build(ctx context.Context, program, tag string) error {
	dir, err := os.MkdirTemp("", "triune-stand-in-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, s.tool), data, 0o755); err != nil {
		return err
	}
	file := fmt.Sprintf("FROM scratch\nCOPY %s %s\nENTRYPOINT [%q]\n", s.tool, s.path, s.path)
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o644); err != nil {
		return err
	}
	_, err = Docker(ctx, "build", "--quiet", "--tag="+tag, dir)
	return err
}
