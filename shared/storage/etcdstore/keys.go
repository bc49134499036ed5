package etcdstore

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apiserver/pkg/storage"
)

// keySpace maps the keys of storage.Interface, which begin with the resource's
// prefix, to etcd's, which begin with the cluster's: /pods/ns/a becomes
// /registry/pods/ns/a.
type keySpace struct {
	root     string // begins and ends with a slash
	resource string // begins with a slash
}

func newKeySpace(prefix, resourcePrefix string) (keySpace, error) {
	switch {
	case resourcePrefix == "", resourcePrefix == "/":
		return keySpace{}, fmt.Errorf("resource prefix %q: names no resource", resourcePrefix)
	case !strings.HasPrefix(resourcePrefix, "/"):
		return keySpace{}, fmt.Errorf("resource prefix %q: does not begin with a slash", resourcePrefix)
	}
	// "registry", "/registry" and "/registry/" are the same cluster prefix.
	root := path.Join("/", prefix)
	if !strings.HasSuffix(root, "/") {
		root += "/"
	}
	return keySpace{root: root, resource: resourcePrefix}, nil
}

// etcdKey returns the key in etcd. A collection's always ends with a slash, so
// that listing /a does not find /ab; keys that could leave the resource's part
// of the tree are refused.
func (k keySpace) etcdKey(key string, collection bool) (string, error) {
	key, err := storage.PrepareKey(k.resource, key, collection)
	if err != nil {
		return "", err
	}
	return k.root + strings.TrimPrefix(key, "/"), nil
}

// all is the etcd prefix of every object of the resource.
func (k keySpace) all() (string, error) { return k.etcdKey(k.resource, true) }
