#!/usr/bin/env bash
# Two real vLLM engines on the CPU behind serve: affinity, cancel, failover, both wire protocols.
# Needs Python 3.11 with venv and about 7 GiB in $DIR (default .e2e/vllm); the first run installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${DIR:-.e2e/vllm}
clients=.e2e/clients
scripts/real-engine.sh setup "$dir"
[ -x $clients/bin/python ] || { python3 -m venv $clients && $clients/bin/pip -q --disable-pip-version-check install openai==3.57.0 anthropic==2.14.0; }
exec $clients/bin/python scripts/e2e_vllm.py "$dir"
