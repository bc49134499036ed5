// Package image makes builds of container images reproducible. An engine records in an
// image when and by which steps it was built; two images should differ only by their
// programs and labels.
//
// Package mutate of go-containerregistry is not suitable: it rewrites all layers, including
// those of the base, by which registries and scanners recognize it.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// manifest is an entry of manifest.json in the output of `docker save`.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Retime reads the archive of one image, as written by `docker save`, and writes one for
// `docker load` of the image named tag. No time in it is later than at, and nothing
// describes the build. Older layers, those of the base, stay unchanged. It returns the
// image's ID.
func Retime(w io.Writer, r io.Reader, at time.Time, tag string) (id string, err error) {
	files, err := readAll(r)
	if err != nil {
		return "", fmt.Errorf("read the image: %w", err)
	}
	var images []manifest
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil {
		return "", fmt.Errorf("read manifest.json: %w", err)
	}
	if len(images) != 1 {
		return "", fmt.Errorf("%d images in the archive, want 1", len(images))
	}
	out := tar.NewWriter(w)
	write := func(name string, data []byte) error {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: at}); err != nil {
			return err
		}
		_, err := out.Write(data)
		return err
	}
	made := manifest{RepoTags: []string{tag}}
	digests := []string{}
	for _, name := range images[0].Layers {
		data, ok := files[name]
		if !ok {
			return "", fmt.Errorf("layer %s is not in the archive", name)
		}
		layer, err := retimeLayer(data, at)
		if err != nil {
			return "", fmt.Errorf("read layer %s: %w", name, err)
		}
		sum := digest(layer)
		digests = append(digests, "sha256:"+sum)
		made.Layers = append(made.Layers, sum+".tar")
		if err := write(sum+".tar", layer); err != nil {
			return "", fmt.Errorf("write layer %s: %w", name, err)
		}
	}
	config, err := retimeConfig(files[images[0].Config], at, digests)
	if err != nil {
		return "", fmt.Errorf("read the configuration: %w", err)
	}
	id = digest(config)
	made.Config = id + ".json"
	list, err := json.Marshal([]manifest{made})
	if err != nil {
		return "", err
	}
	if err := errors.Join(write(made.Config, config), write("manifest.json", list), out.Close()); err != nil {
		return "", fmt.Errorf("write the image: %w", err)
	}
	return "sha256:" + id, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func readAll(r io.Reader) (map[string][]byte, error) {
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}

// retimeLayer returns the uncompressed layer with no file newer than at.
func retimeLayer(layer []byte, at time.Time) ([]byte, error) {
	if bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		plain, err := gzip.NewReader(bytes.NewReader(layer))
		if err != nil {
			return nil, err
		}
		if layer, err = io.ReadAll(plain); err != nil {
			return nil, err
		}
	}
	var made bytes.Buffer
	changed := false
	out := tar.NewWriter(&made)
	for archive := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.ModTime.After(at) {
			header.ModTime, changed = at, true
		}
		header.AccessTime, header.ChangeTime = time.Time{}, time.Time{}
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.Copy(out, archive); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	if !changed {
		return layer, nil
	}
	return made.Bytes(), nil
}

// ofTheBuild are the fields of an image's configuration that describe the build; in config,
// Image is the previous step.
var ofTheBuild = []string{"container", "container_config", "docker_version", "parent"}

func retimeConfig(data []byte, at time.Time, layers []string) ([]byte, error) {
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, err
	}
	for _, field := range ofTheBuild {
		delete(config, field)
	}
	if run, ok := config["config"].(map[string]any); ok {
		delete(run, "Image")
		delete(run, "Hostname")
	}
	stamp := at.UTC().Format(time.RFC3339)
	later := func(object map[string]any) {
		text, _ := object["created"].(string)
		if t, err := time.Parse(time.RFC3339Nano, text); err != nil || t.After(at) {
			object["created"] = stamp
		}
	}
	later(config)
	if history, ok := config["history"].([]any); ok {
		for _, step := range history {
			if step, ok := step.(map[string]any); ok {
				later(step)
			}
		}
	}
	config["rootfs"] = map[string]any{"type": "layers", "diff_ids": layers}
	return json.Marshal(config)
}
