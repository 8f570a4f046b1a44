#!/usr/bin/env bash
# The official Python clients, unmodified, against serve in front of two simulated engines.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.e2e/clients
[ -x $venv/bin/python ] || { python3 -m venv $venv && $venv/bin/pip -q --disable-pip-version-check install openai==3.57.0 anthropic==2.14.0; }
work=$(mktemp -d)
pids=()
cleanup() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
engines=()
for port in 18411 18412; do
  bin/prefixring engine --listen 127.0.0.1:$port --model m1 --preset 8b-tp1 --speed 50 > "$work/engine-$port.log" 2>&1 &
  pids+=($!)
  engines+=(--engine "http://127.0.0.1:$port")
done
bin/prefixring serve --listen 127.0.0.1:18410 --admin 127.0.0.1:18413 "${engines[@]}" > "$work/serve.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do curl -sf http://127.0.0.1:18413/readyz > /dev/null && break; sleep 0.1; done
curl -sf http://127.0.0.1:18413/readyz > /dev/null || { cat "$work/serve.log" >&2; exit 1; }
$venv/bin/python scripts/e2e_clients.py http://127.0.0.1:18410 m1
