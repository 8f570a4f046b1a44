// Package k8s pins the versions of kube-apiserver and etcd that `make e2e-k8s` builds
// from their modules: the envtest binaries are not in a module proxy. It is a module of
// its own, so that the 190 modules of Kubernetes stay out of the router's go.mod.
package k8s
