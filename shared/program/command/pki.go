package command

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"triune.dev/shared/process/pki"
)

// pkiFlags are the flags of the subcommand pki.
type pkiFlags struct {
	dir         string
	names       []string
	serviceIPs  []net.IP
	domain      string
	clients     []string
	kubeconfigs []string
	owner       string
	give        []string
	share       []string
	program     string
}

func pkiCommand() *cobra.Command {
	var f pkiFlags
	cmd := subcommand(&cobra.Command{
		Use: "pki",
		Long: `Make the certificates, keys and kubeconfigs of an installation. Correct files are
kept, missing files are made, and certificates close to their expiry are issued
again. Files that hold something wrong are reported and never overwritten. The command
may be run before every start.`,
		RunE: func(*cobra.Command, []string) error { return f.run() },
	})
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", "", "Directory of the certificates and keys.")
	fs.StringSliceVar(&f.names, "name", nil, "Additional DNS name or IP address of every serving certificate. Repeat the flag for several.")
	fs.IPSliceVar(&f.serviceIPs, "service-ip", nil, "Address of the Service kubernetes, the first of --service-cluster-ip-range. (default 10.0.0.1)")
	fs.StringVar(&f.domain, "domain", pki.DefaultDomain, "DNS domain of the cluster.")
	fs.StringSliceVar(&f.clients, "client", nil, "Additional client certificate, of the form file:user[:group...]. The CA of etcd issues files below etcd/, that of NATS files below nats/, and that of the cluster all others. Repeat the flag for several.")
	fs.StringSliceVar(&f.kubeconfigs, "kubeconfig", nil, "Kubeconfig to write, of the form path=client@url, such as admin.kubeconfig=admin@https://127.0.0.1:6443. It gets the owner of its directory. Repeat the flag for several.")
	fs.StringVar(&f.owner, "owner", "", "Numeric uid:gid of the owner of all files in --dir.")
	fs.StringSliceVar(&f.give, "give", nil, "Another directory to make and to give to --owner with its contents, such as the data directory of an etcd. Repeat the flag for several.")
	fs.StringArrayVar(&f.share, "share", nil, "Directory to hold exactly some files of --dir for a program that must not read the others, of the form directory=file[,file...], such as /share/etcd=etcd/ca.crt,etcd/server.crt,etcd/server.key. It is given to --owner. Repeat the flag for several.")
	fs.StringVar(&f.program, "install", "", "Path at which to install a copy of this program, for health checks in containers that have no other program for it.")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

func (f *pkiFlags) run() error {
	o := pki.Options{ExtraNames: f.names, ServiceIPs: f.serviceIPs, Domain: f.domain}
	for _, text := range f.clients {
		client, err := parseClient(text)
		if err != nil {
			return fmt.Errorf("--client=%s %w", text, err)
		}
		o.Clients = append(o.Clients, client)
	}
	owner, err := parseOwner(f.owner)
	if err != nil {
		return err
	}
	var kubeconfigs []kubeconfig
	for _, text := range f.kubeconfigs {
		k, err := parseKubeconfig(text)
		if err != nil {
			return fmt.Errorf("--kubeconfig=%s %w", text, err)
		}
		kubeconfigs = append(kubeconfigs, k)
	}
	var shares []share
	for _, text := range f.share {
		s, err := parseShare(text)
		if err != nil {
			return fmt.Errorf("--share=%s %w", text, err)
		}
		shares = append(shares, s)
	}
	made, err := pki.Ensure(f.dir, o)
	if err != nil {
		return fmt.Errorf("--dir=%s: %w", f.dir, err)
	}
	for _, dir := range f.give {
		if err := owner.chown(dir); err != nil {
			return fmt.Errorf("--give=%s: %w", dir, err)
		}
	}
	if err := owner.chown(made.Dir); err != nil {
		return fmt.Errorf("--dir=%s: %w", made.Dir, err)
	}
	for _, k := range kubeconfigs {
		if err := k.write(made); err != nil {
			return fmt.Errorf("--kubeconfig=%s: %w", k.path, err)
		}
	}
	// Kubeconfigs are written by now; they may be among the files.
	for _, s := range shares {
		if err := made.Share(s.dir, s.files...); err != nil {
			return fmt.Errorf("--share=%s: %w", s.dir, err)
		}
		if err := owner.chown(s.dir); err != nil {
			return fmt.Errorf("--share=%s: %w", s.dir, err)
		}
	}
	if f.program != "" {
		if err := install(f.program); err != nil {
			return fmt.Errorf("--install=%s: %w", f.program, err)
		}
	}
	return nil
}

// parseClient parses file:user[:group...]. Names of users and groups that begin with
// "system:" are one part.
func parseClient(text string) (pki.Client, error) {
	parts := strings.Split(text, ":")
	for i := 0; i+1 < len(parts); i++ {
		if parts[i] == "system" {
			parts = slices.Replace(parts, i, i+2, "system:"+parts[i+1])
		}
	}
	if len(parts) < 2 || slices.Contains(parts, "") {
		return pki.Client{}, fmt.Errorf("is not of the form file:user[:group...]")
	}
	client := pki.Client{Name: parts[0], CommonName: parts[1], Organizations: parts[2:]}
	switch dir, _, nested := strings.Cut(client.Name, "/"); {
	case nested && dir == "etcd":
		client.Authority = pki.EtcdCA
	case nested && dir == "nats":
		client.Authority = pki.NATSCA
	}
	return client, nil
}

// share is a directory and the files of the PKI to put there.
type share struct {
	dir   string
	files []string
}

func parseShare(text string) (share, error) {
	dir, files, _ := strings.Cut(text, "=")
	s := share{dir, strings.Split(files, ",")}
	if dir == "" || slices.Contains(s.files, "") {
		return share{}, fmt.Errorf("is not of the form directory=file[,file...]")
	}
	return s, nil
}

// kubeconfig is a file to write.
type kubeconfig struct{ path, client, url string }

func parseKubeconfig(text string) (kubeconfig, error) {
	path, access, _ := strings.Cut(text, "=")
	client, url, _ := strings.Cut(access, "@")
	if path == "" || client == "" || url == "" {
		return kubeconfig{}, fmt.Errorf("is not of the form path=client@url")
	}
	return kubeconfig{path, client, url}, nil
}

func (k kubeconfig) write(made *pki.PKI) error {
	base := filepath.Join(made.Dir, filepath.FromSlash(k.client))
	err := pki.WriteKubeconfig(k.path, pki.Access{
		Server: k.url,
		CAFile: made.ClusterCA.CertFile,
		Client: pki.Pair{CertFile: base + ".crt", KeyFile: base + ".key"},
	})
	if err != nil {
		return err
	}
	return chownToDirectoryOwner(k.path)
}
