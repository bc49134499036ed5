package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"triune.dev/tests/tools"
)

// Images builds the images of the named programs from bin/, as `make images` does, and
// returns the variables that make docker-compose.yml use them.
func Images(ctx context.Context, programs ...string) ([]string, error) {
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	const prefix = "triune-test"
	for _, name := range programs {
		if _, err := tools.Binary(name); err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp("", "triune-image-")
		if err != nil {
			return nil, err
		}
		err = errors.Join(
			os.Mkdir(filepath.Join(dir, "bin"), 0o755),
			copyFile(filepath.Join(root, "bin", name), filepath.Join(dir, "bin", name)),
		)
		if err == nil {
			_, err = Docker(ctx, "build", "--quiet", "--target=prebuilt", "--file="+filepath.Join(root, "deploy", "docker", "Dockerfile"),
				"--build-arg=BASE=scratch", "--build-arg=SERVICE="+name, "--tag="+prefix+"/"+name+":dev", dir)
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			return nil, fmt.Errorf("build the image of %s: %w", name, err)
		}
	}
	return []string{"TRIUNE_IMAGES=" + prefix, "TRIUNE_VERSION=dev"}, nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// Project is an installation of docker-compose.yml.
type Project struct {
	name    string
	dir     string
	env     []string
	command []string
}

// NewProject prepares an installation. env are variables of docker-compose.yml.
func NewProject(ctx context.Context, name string, env []string) (*Project, error) {
	command, err := composeCommand(ctx)
	if err != nil {
		return nil, err
	}
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	return &Project{name: name, dir: root, env: env, command: append(command, "--project-name="+name)}, nil
}

// With returns the same installation with additional variables.
func (p *Project) With(env ...string) *Project {
	more := *p
	more.env = append(p.env[:len(p.env):len(p.env)], env...)
	return &more
}

// Volume returns the engine's name of a volume of the installation.
func (p *Project) Volume(name string) string { return p.name + "_" + name }

// Compose runs a command of compose.
func (p *Project) Compose(ctx context.Context, args ...string) (string, error) {
	return run(ctx, p.dir, p.env, p.command[0], append(p.command[1:len(p.command):len(p.command)], args...)...)
}

// Containers returns the IDs of the containers of a service, in a stable order.
func (p *Project) Containers(ctx context.Context, service string) ([]string, error) {
	out, err := Docker(ctx, "ps", "--all", "--no-trunc", "--quiet",
		"--filter=label=com.docker.compose.project="+p.name, "--filter=label=com.docker.compose.service="+service)
	return strings.Fields(out), err
}

// Healthy returns an error unless all containers of a service are healthy.
func (p *Project) Healthy(ctx context.Context, service string) error {
	ids, err := p.Containers(ctx, service)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("%s has no container", service)
	}
	out, err := Docker(ctx, append([]string{"inspect", "--format={{.State.Health.Status}}"}, ids...)...)
	if err != nil {
		return err
	}
	for status := range strings.FieldsSeq(out) {
		if status != "healthy" {
			return fmt.Errorf("%s is %s", service, status)
		}
	}
	return nil
}

// Cut disconnects a container from the network; Join connects it again under the name of
// its service.
func (p *Project) Cut(ctx context.Context, container string) error {
	_, err := Docker(ctx, "network", "disconnect", "--force", p.name+"_default", container)
	return err
}

// Join undoes Cut.
func (p *Project) Join(ctx context.Context, container, service string) error {
	_, err := Docker(ctx, "network", "connect", "--alias="+service, p.name+"_default", container)
	return err
}

// Address returns the address of a container in the network of the installation, which is
// reachable from the engine's machine.
func (p *Project) Address(ctx context.Context, container string) (string, error) {
	out, err := Docker(ctx, "inspect", fmt.Sprintf("--format={{(index .NetworkSettings.Networks %q).IPAddress}}", p.name+"_default"), container)
	return strings.TrimSpace(out), err
}

// Port returns the port of the API on this machine.
func (p *Project) Port(ctx context.Context) (string, error) {
	out, err := p.Compose(ctx, "port", "api", "6443")
	_, port, _ := strings.Cut(strings.TrimSpace(out), ":")
	return port, err
}

// Complaints returns the last warnings and errors of every container, at most n of each,
// and its last lines.
func (p *Project) Complaints(ctx context.Context, n int) string {
	out, err := Docker(ctx, "ps", "--all", "--filter=label=com.docker.compose.project="+p.name, "--format={{.Names}} {{.Status}}")
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for line := range strings.Lines(out) {
		fmt.Fprintf(&b, "==> %s", line)
		name, _, _ := strings.Cut(line, " ")
		logs, _ := Logs(ctx, name)
		lines := strings.Split(strings.TrimSpace(logs), "\n")
		var said []string
		for i, line := range lines {
			if !strings.HasPrefix(line, "I") || i >= len(lines)-3 {
				said = append(said, line)
			}
		}
		b.WriteString(strings.Join(said[max(0, len(said)-n):], "\n") + "\n")
	}
	return b.String()
}

// Logs returns the output of a container so far.
func Logs(ctx context.Context, container string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", "logs", container).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker logs %s: %w", container, err)
	}
	return string(out), nil
}
