package conformance

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"triune.dev/tests/node"
	"triune.dev/tests/tools"
)

// debianPackages are what specs expect in their images. Their busybox and agnhost come from
// Alpine, but specs only care for the programs.
const debianPackages = "bash,bind9-dnsutils,busybox-static,ca-certificates,curl,iproute2,iputils-ping,netbase,netcat-openbsd,nginx-light"

// debian is the release of the base image.
const debian = "bookworm"

// setUp are the commands that make the base image of Debian's packages; $1 is its directory.
const setUp = `
# Specs print variables whose names only bash hands to the programs that it starts.
ln -s /bin/bash "$1/usr/local/bin/sh"
# busybox brings what Debian does not have.
chroot "$1" sh -c 'for applet in $(busybox --list); do command -v $applet >/dev/null || ln -s /bin/busybox /usr/local/bin/$applet; done'
chroot "$1" useradd --uid=1000 --create-home user-defined-in-image
chroot "$1" groupadd --gid=50000 --users=user-defined-in-image group-defined-in-image
mkdir "$1/uploads"
rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/usr/share/doc/* "$1"/usr/share/locale/*`

// baseLayer returns the file of the layer that the images of specs have in common. A checkout
// makes it once.
func baseLayer(ctx context.Context) (string, error) {
	root, err := tools.Root()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(debianPackages + setUp))
	dir := filepath.Join(root, ".tools", fmt.Sprintf("debian-%s@%x", debian, sum[:6]))
	layer := filepath.Join(dir, "layer.tar")
	if _, err := os.Stat(layer); err == nil {
		return layer, nil
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "", errors.New("images of specs need debootstrap (apt-get install debootstrap)")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	files, err := os.MkdirTemp(dir, "files-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(files)
	part := layer + ".part"
	for _, args := range [][]string{
		{"debootstrap", "--variant=minbase", "--include=" + debianPackages, debian, files},
		{"sh", "-ec", setUp, "sh", files},
		{"tar", "--create", "--file=" + part, "--directory=" + files, "--numeric-owner", "."},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	return layer, os.Rename(part, layer)
}

// registry is where the images of specs come from.
const registry = "registry.k8s.io/e2e-test-images/"

// importImages gives the node an image under every name that specs use: built on this machine,
// with programs of the same module.
func importImages(ctx context.Context, n *node.Node, dir string) error {
	base, err := baseLayer(ctx)
	if err != nil {
		return err
	}
	programs := map[string]string{}
	for _, name := range []string{"agnhost", "nnp", "sample-apiserver", "etcd"} {
		if programs[name], err = tools.Path(ctx, name); err != nil {
			return err
		}
	}
	kubernetes, err := tools.ModuleDir(ctx, "..", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	file := func(parts ...string) string {
		return filepath.Join(append([]string{kubernetes, "test", "images"}, parts...)...)
	}
	layers := map[string][]node.Entry{
		"agnhost": {
			{Name: "agnhost", Source: programs["agnhost"]},
			{Name: "agnhost-2", Target: "agnhost"},
			{Name: "localhost.crt", Source: file("agnhost", "porter", "localhost.crt"), Mode: 0o644},
			{Name: "localhost.key", Source: file("agnhost", "porter", "localhost.key"), Mode: 0o644},
		},
		// A shell that is named by its path must be busybox's: specs know its messages.
		"busybox":          {{Name: "usr/bin/sh", Target: "busybox"}, {Name: "usr/bin/sysctl", Target: "busybox"}},
		"pause":            {{Name: "pause", Source: programs["agnhost"]}},
		"nonewprivs":       {{Name: "usr/local/bin/nnp", Source: programs["nnp"], Mode: os.ModeSetuid | 0o755}},
		"sample-apiserver": {{Name: "sample-apiserver", Source: programs["sample-apiserver"]}},
		"etcd":             {{Name: "usr/local/bin/etcd", Source: programs["etcd"]}},
		"kitten":           {{Name: "data.json", Source: file("kitten", "html", "data.json"), Mode: 0o644}, {Name: "kitten.jpg", Source: file("kitten", "html", "kitten.jpg"), Mode: 0o644}},
		"nautilus":         {{Name: "data.json", Source: file("nautilus", "html", "data.json"), Mode: 0o644}, {Name: "nautilus.jpg", Source: file("nautilus", "html", "nautilus.jpg"), Mode: 0o644}},
	}
	paths := map[string]string{}
	for name, entries := range layers {
		paths[name] = filepath.Join(dir, name+".tar")
		if err := node.WriteLayer(paths[name], entries...); err != nil {
			return err
		}
	}
	var images []node.Image
	add := func(name string, image node.Image, above ...string) {
		image.Name = name
		image.Layers = []string{base}
		for _, layer := range above {
			image.Layers = append(image.Layers, paths[layer])
		}
		images = append(images, image)
	}
	agnhost := []string{"/agnhost"}
	for _, version := range []string{"2.55", "2.63.0"} {
		add(registry+"agnhost:"+version, node.Image{Entrypoint: agnhost, Command: []string{"pause"}}, "agnhost")
	}
	for _, pet := range []string{"kitten", "nautilus"} {
		add(registry+pet+":1.8", node.Image{Entrypoint: agnhost, Command: []string{"test-webserver"}}, "agnhost", pet)
	}
	for _, version := range []string{"1.15-4", "1.27-0"} {
		add(registry+"nginx:"+version, node.Image{Command: []string{"nginx", "-g", "daemon off;"}})
	}
	add(registry+"busybox:1.37.0-1", node.Image{Command: []string{"sh"}}, "busybox")
	add(registry+"glibc-dns-testing:2.0.0", node.Image{Command: []string{"sh"}})
	add(registry+"nonroot:1.5", node.Image{Command: []string{"sh"}, User: "1234"})
	add(registry+"nonewprivs:1.4", node.Image{Command: []string{"nnp"}}, "nonewprivs")
	add(registry+"perl:5.26", node.Image{Command: []string{"perl"}})
	add(registry+"sample-apiserver:1.29.2", node.Image{Entrypoint: []string{"/sample-apiserver"}}, "sample-apiserver")
	add("registry.k8s.io/etcd:3.6.8-0", node.Image{Command: []string{"/usr/local/bin/etcd"}}, "etcd")
	images = append(images, node.Image{Name: "registry.k8s.io/pause:3.10.2", Layers: []string{paths["pause"]}, Entrypoint: []string{"/pause", "pause"}})
	return n.Import(ctx, images...)
}
