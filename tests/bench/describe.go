package bench

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"triune.dev/tests/tools"
)

// describe returns the versions of the programs, and the commit of our sources, with a plus
// if there are changes.
func describe(ctx context.Context) (versions map[string]string, commit string, err error) {
	versions = map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")}
	for _, name := range []string{"kube-apiserver", "etcd", "nats-server"} {
		path, err := tools.Path(ctx, name)
		if err != nil {
			return nil, "", err
		}
		_, version, _ := strings.Cut(filepath.Base(filepath.Dir(path)), "@")
		versions[name] = version
	}
	root, err := tools.Root()
	if err != nil {
		return nil, "", err
	}
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			return "" // a checkout without git has no commit to name
		}
		return strings.TrimSpace(string(out))
	}
	commit = git("log", "-1", "--format=%h", "--", "shared", "services")
	if commit == "" {
		return versions, "unknown", nil
	}
	if git("status", "--porcelain", "--", "shared", "services") != "" {
		commit += "+"
	}
	return versions, commit, nil
}

// DefaultRounds is the default number of rounds.
const DefaultRounds = 3

// Command returns the command that reproduces a run.
func Command(o Options) string {
	command := "make bench"
	if o.Quick {
		command += "-quick"
	}
	if o.Subjects != nil && !o.Quick && !slices.Equal(o.Subjects, Subjects()) {
		command += fmt.Sprintf(" SERVERS='%s'", strings.Join(o.Subjects, ","))
	}
	if match := o.Match.String(); match != "" {
		command += fmt.Sprintf(" WORKLOAD='%s'", match)
	}
	if !o.Quick && o.Rounds != DefaultRounds {
		command += fmt.Sprintf(" ROUNDS=%d", o.Rounds)
	}
	return command
}
