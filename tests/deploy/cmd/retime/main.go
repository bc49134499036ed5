// Command retime sets the time of an image in the engine to that of its commit, so that
// every build of the commit is the same image, and names it: make images.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"triune.dev/tests/deploy/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("retime", flag.ContinueOnError)
	built := flags.String("image", "", "ID of the image that was built; it is removed if it has no name")
	tag := flags.String("tag", "", "name of the image that is made")
	seconds := flags.Int64("time", 0, "what no time in it is later than, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *built == "" || *tag == "" {
		return errors.New("-image and -tag are needed")
	}
	saved, err := docker(ctx, nil, "save", *built)
	if err != nil {
		return err
	}
	var made bytes.Buffer
	id, err := image.Retime(&made, bytes.NewReader(saved), time.Unix(*seconds, 0), *tag)
	if err != nil {
		return fmt.Errorf("image %s: %w", *built, err)
	}
	if _, err := docker(ctx, &made, "load", "--quiet"); err != nil {
		return err
	}
	fmt.Fprintln(out, *tag, id)
	// The builder's cache may have returned an image that has a name.
	names, err := docker(ctx, nil, "image", "inspect", "--format={{len .RepoTags}}", *built)
	if err != nil || strings.TrimSpace(string(names)) != "0" {
		return err
	}
	_, err = docker(ctx, nil, "image", "rm", *built)
	return err
}

func docker(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
