package node

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"
)

// The images of the node. Both have the busybox of this machine; ToolsImage also has kubectl.
const (
	PauseImage = "localhost/pause:test"
	ToolsImage = "localhost/tools:test"
)

// Image is a container image that is made on this machine.
type Image struct {
	// Name is its name with a tag.
	Name string
	// Layers are the files of its layers, the lowest first. Images may share them.
	Layers []string
	// Entrypoint and Command are what a container runs that says nothing else.
	Entrypoint, Command []string
	// User is the user of its processes; "" is root.
	User string
}

// Entry is a file, or a link if Target is not empty, of a layer.
type Entry struct {
	// Name is its path in the image, without a slash at the beginning.
	Name string
	// Source is the file of this machine whose content it has.
	Source string
	// Target is the target of a symbolic link.
	Target string
	// Mode has its permissions; 0 stands for those of a program.
	Mode fs.FileMode
}

// WriteLayer writes a layer of an image with the entries.
func WriteLayer(file string, entries ...Entry) error {
	err := createTar(file, func(w *tar.Writer) error {
		for _, e := range entries {
			if err := e.write(w); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("layer %s: %w", filepath.Base(file), err)
	}
	return nil
}

func (e Entry) write(w *tar.Writer) error {
	header := &tar.Header{Name: e.Name, Mode: int64(e.Mode.Perm()), Linkname: e.Target}
	if e.Mode == 0 {
		header.Mode = 0o755
	}
	if e.Mode&fs.ModeSetuid != 0 {
		header.Mode |= 0o4000
	}
	switch {
	case e.Target != "":
		header.Typeflag = tar.TypeSymlink
		return addFile(w, header, nil)
	case e.Source == "":
		header.Typeflag = tar.TypeDir
		return addFile(w, header, nil)
	default:
		return copyFile(w, header, e.Source)
	}
}

// createTar creates an archive whose entries add writes.
func createTar(file string, add func(*tar.Writer) error) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	if err := add(w); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(w.Close(), f.Close())
}

func addFile(w *tar.Writer, header *tar.Header, data []byte) error {
	header.ModTime = time.Unix(0, 0)
	header.Size = int64(len(data))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func copyFile(w *tar.Writer, header *tar.Header, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.ModTime = time.Unix(0, 0)
	header.Size = info.Size()
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// writeImages writes images for `ctr images import` in the format of `docker save`.
func writeImages(file string, images []Image) error {
	return createTar(file, func(w *tar.Writer) error {
		written := map[string]string{} // digests by the files of layers
		var manifest []any
		for _, image := range images {
			var layers, digests []string
			for _, layer := range image.Layers {
				if written[layer] == "" {
					sum, err := digestOf(layer)
					if err != nil {
						return err
					}
					if err := copyFile(w, &tar.Header{Name: sum + ".tar", Mode: 0o644}, layer); err != nil {
						return err
					}
					written[layer] = sum
				}
				layers = append(layers, written[layer]+".tar")
				digests = append(digests, "sha256:"+written[layer])
			}
			config, err := json.Marshal(map[string]any{
				"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
				"config": map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Command, "User": image.User,
					"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
				"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
			})
			if err != nil {
				return err
			}
			sum := sha256.Sum256(config)
			name := hex.EncodeToString(sum[:]) + ".json"
			if err := addFile(w, &tar.Header{Name: name, Mode: 0o644}, config); err != nil {
				return err
			}
			manifest = append(manifest, map[string]any{"Config": name, "RepoTags": []string{image.Name}, "Layers": layers})
		}
		data, err := json.Marshal(manifest)
		if err != nil {
			return err
		}
		return addFile(w, &tar.Header{Name: "manifest.json", Mode: 0o644}, data)
	})
}

func digestOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Import gives images to the node.
func (n *Node) Import(ctx context.Context, images ...Image) error {
	archive := n.file("images.tar")
	defer os.Remove(archive)
	if err := writeImages(archive, images); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return n.ctr(ctx, "images", "import", archive)
}

// applets are the programs that busybox has in the images.
var applets = []string{"sh", "sleep", "cat", "echo", "env", "ls", "httpd", "wget", "nc", "true", "false", "head", "seq", "sha256sum", "tar", "mkdir", "rm", "date", "stty", "dd", "id", "nslookup", "ip", "hostname", "test", "kill", "touch"}

// ImportPrograms makes an image of busybox and further static programs, which are in /bin, and
// gives it to the node.
func (n *Node) ImportPrograms(ctx context.Context, name string, programs []string, command ...string) error {
	passwd := n.file("passwd")
	if err := n.write("passwd", "root:x:0:0::/:/bin/sh\n"); err != nil {
		return err
	}
	entries := []Entry{{Name: "etc/passwd", Source: passwd, Mode: 0o644}}
	for _, dir := range []string{"bin/", "etc/", "tmp/", "www/"} {
		entries = append(entries, Entry{Name: dir, Mode: 0o777})
	}
	for _, program := range append([]string{busyboxPath}, programs...) {
		entries = append(entries, Entry{Name: "bin/" + path.Base(program), Source: program})
	}
	for _, applet := range applets {
		entries = append(entries, Entry{Name: "bin/" + applet, Target: "busybox"})
	}
	layer := n.file("layer.tar")
	defer os.Remove(layer)
	if err := WriteLayer(layer, entries...); err != nil {
		return err
	}
	return n.Import(ctx, Image{Name: name, Layers: []string{layer}, Command: command})
}
