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

// pkiFlags are what the subcommand pki is told.
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
		Long: `Make the certificates, keys and kubeconfigs of an installation, once. What is
there and right is kept, what is missing is made, certificates close to their end
are issued again, and what is wrong is never overwritten but reported. It may be
run before every start.`,
		RunE: func(*cobra.Command, []string) error { return f.run() },
	})
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", "", "Directory of the certificates and keys.")
	fs.StringSliceVar(&f.names, "name", nil, "Further DNS name or IP address of every serving certificate. Repeat the flag for several.")
	fs.IPSliceVar(&f.serviceIPs, "service-ip", nil, "Address of the Service kubernetes, the first of --service-cluster-ip-range. (default 10.0.0.1)")
	fs.StringVar(&f.domain, "domain", pki.DefaultDomain, "DNS domain of the cluster.")
	fs.StringSliceVar(&f.clients, "client", nil, "Further client certificate, of the form file:user[:group...]. Files below etcd/ and nats/ are issued by the CAs of these, others by that of the cluster. Repeat the flag for several.")
	fs.StringSliceVar(&f.kubeconfigs, "kubeconfig", nil, "Kubeconfig to write, of the form path=client@url, such as admin.kubeconfig=admin@https://127.0.0.1:6443. It belongs to the owner of its directory. Repeat the flag for several.")
	fs.StringVar(&f.owner, "owner", "", "Numeric uid:gid that all files of --dir are given to.")
	fs.StringSliceVar(&f.give, "give", nil, "Directory to make and give to --owner as well, with what is in it, such as the data directory of an etcd. Repeat the flag for several.")
	fs.StringArrayVar(&f.share, "share", nil, "Directory to hold exactly some files of --dir for a program that must not read the others, of the form directory=file[,file...], such as /share/etcd=etcd/ca.crt,etcd/server.crt,etcd/server.key. It is given to --owner. Repeat the flag for several.")
	fs.StringVar(&f.program, "install", "", "Where to put a copy of this program, for the health checks of containers that have no other one.")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		panic(err) // the flag is there
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
	for _, dir := range append(slices.Clone(f.give), made.Dir) {
		if err := owner.give(dir); err != nil {
			return err
		}
	}
	for _, k := range kubeconfigs {
		if err := k.write(made); err != nil {
			return fmt.Errorf("--kubeconfig=%s: %w", k.path, err)
		}
	}
	// After the kubeconfigs, which may be among the files.
	for _, s := range shares {
		if err := made.Share(s.dir, s.files...); err != nil {
			return fmt.Errorf("--share=%s: %w", s.dir, err)
		}
		if err := owner.give(s.dir); err != nil {
			return err
		}
	}
	if f.program != "" {
		if err := install(f.program); err != nil {
			return fmt.Errorf("--install=%s: %w", f.program, err)
		}
	}
	return nil
}

// parseClient reads file:user[:group...]. User names of Kubernetes' own parts
// contain colons themselves, so a group begins with the last part that does not
// follow "system".
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

// share is a directory and the files of the PKI that it is to hold.
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

// kubeconfig is one file to write.
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
	return giveToDirectoryOwner(k.path)
}
