package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"slices"
	"testing"
	"time"
)

// archived returns a tar of files with the same time, given as names and contents.
func archived(t *testing.T, at time.Time, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for file := range slices.Chunk(files, 2) {
		if err := w.WriteHeader(&tar.Header{Name: file[0], Mode: 0o755, Size: int64(len(file[1])), ModTime: at}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(file[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// saved returns the output of `docker save` for an image that was built at a time.
func saved(t *testing.T, base []byte, at time.Time, program string) []byte {
	t.Helper()
	config := fmt.Sprintf(`{"architecture":"amd64","config":{"User":"65532:65532","Image":"sha256:%d"},"container_config":{"Hostname":"%[1]d"},"created":%[2]q,`+
		`"docker_version":"20","history":[{"created":"2020-01-01T00:00:00Z"},{"created":%[2]q}],"rootfs":{"type":"layers","diff_ids":["a","b"]}}`, at.Unix(), at.Format(time.RFC3339Nano))
	return archived(t, at, "config.json", config, "base/layer.tar", string(base), "layer.tar", string(archived(t, at, "bin/program", program)),
		"manifest.json", `[{"Config":"config.json","RepoTags":null,"Layers":["base/layer.tar","layer.tar"]}]`)
}

func TestRetimeMakesBuildsEqual(t *testing.T) {
	commit := time.Unix(1_700_000_000, 0)
	base := archived(t, commit.Add(-time.Hour), "etc/passwd", "nobody")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(base); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	build := func(base []byte, after time.Duration, program string) (string, []byte) {
		t.Helper()
		var out bytes.Buffer
		id, err := Retime(&out, bytes.NewReader(saved(t, base, commit.Add(after), program)), commit, "triune/core:dev")
		if err != nil {
			t.Fatal(err)
		}
		return id, out.Bytes()
	}
	id, first := build(base, time.Hour, "one")
	again, second := build(zipped.Bytes(), 2*time.Hour, "one")
	if id != again || !bytes.Equal(first, second) {
		t.Errorf("two builds of the same are %s and %s", id, again)
	}
	if other, _ := build(base, time.Hour, "two"); other == id {
		t.Errorf("another program is %s, too", other)
	}
	if !bytes.Contains(first, base) {
		t.Error("the layer of the base is another")
	}
}

func TestRetimeRefusesWhatIsNoImage(t *testing.T) {
	for name, archive := range map[string][]byte{
		"nothing":     nil,
		"no manifest": archived(t, time.Unix(0, 0), "a", "b"),
		"two images":  archived(t, time.Unix(0, 0), "manifest.json", `[{},{}]`),
		"no layer":    archived(t, time.Unix(0, 0), "config.json", "{}", "manifest.json", `[{"Config":"config.json","Layers":["gone"]}]`),
	} {
		t.Run(name, func(t *testing.T) {
			if id, err := Retime(&bytes.Buffer{}, bytes.NewReader(archive), time.Unix(0, 0), "t"); err == nil {
				t.Errorf("no error, and the image %s", id)
			}
		})
	}
}
