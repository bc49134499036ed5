package deploy

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"

	"triune.dev/tests/deploy/engine"
)

// TestImages checks that the images of `make images` are small and labelled, do not run as
// root, have a health check, and are reproducible.
func TestImages(t *testing.T) {
	full(t)
	needEngine(t)
	ctx := t.Context()
	const (
		repository = "triune-test-images"
		limit      = 40_000_000 // bytes, compressed
	)
	build := func() {
		t.Helper()
		cmd := exec.CommandContext(ctx, "make", "images", "PROGRAMS="+strings.Join(tierServices, " "), "IMAGES="+repository, "IMAGE_TAG=v1", "BUILD_FLAGS=--no-cache")
		cmd.Dir = path(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make images: %v\n%s", err, out)
		}
	}
	build()
	t.Cleanup(func() {
		for _, tier := range tierServices {
			if _, err := engine.Docker(context.WithoutCancel(ctx), "image", "rm", repository+"/"+tier+":v1"); err != nil {
				t.Error(err)
			}
		}
	})
	ids := map[string]string{}
	for _, tier := range tierServices {
		name := repository + "/" + tier + ":v1"
		out, err := engine.Docker(ctx, "image", "inspect", name)
		if err != nil {
			t.Fatal(err)
		}
		var images []struct {
			ID     string
			Config struct {
				User   string
				Labels map[string]string
			}
		}
		if err := json.Unmarshal([]byte(out), &images); err != nil || len(images) != 1 {
			t.Fatalf("%d images: %v", len(images), err)
		}
		ids[tier] = images[0].ID
		if user := images[0].Config.User; user != "65532:65532" {
			t.Errorf("%s runs as %q", tier, user)
		}
		for label, want := range map[string]string{"title": "triune " + tier, "version": "v1", "revision": "", "description": "", "licenses": "Apache-2.0"} {
			if got := images[0].Config.Labels["org.opencontainers.image."+label]; got == "" || want != "" && got != want {
				t.Errorf("%s: label %s is %q, want %q", tier, label, got, want)
			}
		}
		if size := compressed(t, name); size > limit {
			t.Errorf("%s has %d bytes, want %d at most", tier, size, limit)
		} else {
			t.Logf("%s has %.1f MB", tier, float64(size)/1e6)
		}
		_, err = engine.Docker(ctx, "run", "--rm", "--read-only", "--network=none", name, "healthcheck", "--timeout=5s")
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s healthcheck, without a server: %v", tier, err)
		}
	}
	build()
	for tier, id := range ids {
		again, err := engine.Docker(ctx, "image", "inspect", "--format={{.ID}}", repository+"/"+tier+":v1")
		if again = strings.TrimSpace(again); err != nil || again != id {
			t.Errorf("%s, built again, is %s and was %s: %v", tier, again, id, err)
		}
	}
}

// compressed returns the approximate size of an image in a registry.
func compressed(t *testing.T, name string) int64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", "save", name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var size counter
	w := gzip.NewWriter(&size)
	if _, err := io.Copy(w, out); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return int64(size)
}

type counter int64

func (c *counter) Write(data []byte) (int, error) {
	*c += counter(len(data))
	return len(data), nil
}
