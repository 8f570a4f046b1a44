#!/usr/bin/env bash
# Kubernetes discovery against a real kube-apiserver and etcd, built from their modules at
# the versions of e2e/k8s/go.mod. The first run compiles them: 10 minutes of CPU, 4 GiB of
# disk for sources and objects, 2 GiB of memory. Later runs take half a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.e2e/k8s
want=$(sha256sum e2e/k8s/go.mod | cut -d' ' -f1)
if [ "$(cat "$bin/built" 2>/dev/null)" != "$want" ]; then
  mkdir -p "$bin"
  cd e2e/k8s
  export CGO_ENABLED=0
  nice -n 10 go build -trimpath -o "$bin/etcd" go.etcd.io/etcd/server/v3
  nice -n 10 go build -trimpath -o "$bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
  cd ../..
  echo "$want" > "$bin/built"
fi
PREFIXRING_K8S_BIN=$bin exec go test -tags k8s -run '^TestK8s' -count=1 -timeout 5m -v ./internal/discovery
