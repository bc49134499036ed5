package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"runtime"
	"time"
)

// The images of the node. Both have the busybox of this machine; ToolsImage also has kubectl.
const (
	PauseImage = "localhost/pause:test"
	ToolsImage = "localhost/tools:test"
)

// applets are the programs that the images have.
var applets = []string{"sh", "sleep", "cat", "echo", "env", "ls", "httpd", "wget", "nc", "true", "false", "head", "seq", "sha256sum", "tar", "mkdir", "rm", "date", "stty", "dd", "id", "nslookup", "ip", "hostname", "test", "kill", "touch"}

// writeImage writes an image for `ctr images import` in the format of `docker save`: one layer
// with these programs, of which busybox has many names, and the command that it runs.
func writeImage(file, name string, programs []string, command ...string) error {
	var layer bytes.Buffer
	var err error
	w := tar.NewWriter(&layer)
	add := func(header *tar.Header, data []byte) {
		header.ModTime = time.Unix(0, 0)
		header.Size = int64(len(data))
		if err == nil {
			err = w.WriteHeader(header)
		}
		if err == nil {
			_, err = w.Write(data)
		}
	}
	for _, dir := range []string{"bin", "etc", "tmp", "www"} {
		add(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o777}, nil)
	}
	for _, program := range programs {
		data, err := os.ReadFile(program)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		add(&tar.Header{Name: "bin/" + path.Base(program), Mode: 0o755}, data)
	}
	for _, applet := range applets {
		add(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	add(&tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0::/:/bin/sh\n"))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	sum := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config": map[string]any{"Cmd": command, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	digest := sha256.Sum256(config)
	configName := hex.EncodeToString(digest[:]) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	var archive bytes.Buffer
	w = tar.NewWriter(&archive)
	add(&tar.Header{Name: configName, Mode: 0o644}, config)
	add(&tar.Header{Name: "layer.tar", Mode: 0o644}, layer.Bytes())
	add(&tar.Header{Name: "manifest.json", Mode: 0o644}, manifest)
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(file, archive.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}
