// Package standalone is triune: the whole chain in one process.
//
// The three tiers are the same code that runs as three services; here each
// delegates to the next by a function call, and their informers call the chain
// without a socket. Unless others are named, etcd and NATS run inside the process
// too, and everything that a first start needs and nobody has given (keys,
// certificates, an administrator's kubeconfig) is made below the data directory.
//
// With --etcd-servers and kube-apiserver's flags, triune takes kube-apiserver's
// place.
package standalone
