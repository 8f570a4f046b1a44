#!/usr/bin/env bash
# What a proxied request costs: CPU of the whole proxy process per request, for nginx, HAProxy, prefixring and, when
# they are installed (PEERS=folder with bin/vllm-router and bin/sglang-router), two other routers. Same bytes, same two
# trivial upstreams, in turns, ROUNDS times; medians. Needs nginx, haproxy, wrk and jq.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in nginx haproxy wrk jq; do command -v $tool > /dev/null || { echo "cannot compare: $tool is not installed" >&2; exit 3; }; done
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-5}
work=$(mktemp -d)
declare -A pid
cleanup() { for p in "${pid[@]}"; do kill "$p" 2> /dev/null || true; done; wait 2> /dev/null || true; rm -rf "$work"; }
trap cleanup EXIT

upstream() { # name port: answers at once, looks like a vLLM engine to a health check
  cat > "$work/$1.conf" <<CONF
worker_processes 1; daemon off; pid $work/$1.pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000; default_type application/json;
  server { listen 127.0.0.1:$2;
    location /health { return 200; }
    location /metrics { default_type text/plain; return 200 'vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
'; }
    location /v1/models { return 200 '{"object":"list","data":[{"id":"m","object":"model"}]}'; }
    location / { return 200 '{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}'; } } }
CONF
  nginx -c "$work/$1.conf" 2> "$work/$1.log" & pid[$1]=$!
}
upstream up1 18601
upstream up2 18602

cat > "$work/nginx.conf" <<CONF
worker_processes 1; daemon off; pid $work/nginx.pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream engines { server 127.0.0.1:18601; server 127.0.0.1:18602; keepalive 64; keepalive_requests 1000000; }
  server { listen 127.0.0.1:18611; location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }
CONF
nginx -c "$work/nginx.conf" 2> "$work/nginx.log" & pid[nginx]=$!
cat > "$work/haproxy.cfg" <<CONF
global
  nbthread 1
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 2s
listen engines
  bind 127.0.0.1:18612
  http-reuse always
  server a 127.0.0.1:18601
  server b 127.0.0.1:18602
CONF
haproxy -f "$work/haproxy.cfg" > "$work/haproxy.log" 2>&1 & pid[haproxy]=$!
printf 'listen: 127.0.0.1:18613\nadmin: 127.0.0.1:18614\ntelemetry: {access_log: false}\npools:\n  - models: [m]\n    engines: [{name: a, url: "http://127.0.0.1:18601"}, {name: b, url: "http://127.0.0.1:18602"}]\n' > "$work/router.yaml"
GOMAXPROCS=1 bin/prefixring serve --config "$work/router.yaml" > "$work/prefixring.log" 2>&1 & pid[prefixring]=$!
declare -A port=([nginx]=18611 [haproxy]=18612 [prefixring]=18613)
order=(nginx haproxy prefixring)
if [ -n "${PEERS:-}" ]; then
  "$PEERS/bin/vllm-router" --host 127.0.0.1 --port 18615 --policy consistent_hash --worker-urls http://127.0.0.1:18601 http://127.0.0.1:18602 --prometheus-port 18616 > "$work/vllm-router.log" 2>&1 & pid[vllm-router]=$!
  "$PEERS/bin/sglang-router" launch --host 127.0.0.1 --port 18617 --policy cache_aware --worker-urls http://127.0.0.1:18601 http://127.0.0.1:18602 --prometheus-port 18618 > "$work/sglang-router.log" 2>&1 & pid[sglang-router]=$!
  port[vllm-router]=18615 port[sglang-router]=18617
  order+=(vllm-router sglang-router)
fi

script() { # name bytes: a chat request whose body has about that size, with a system prompt that is most of it
  cat > "$work/$1.lua" <<LUA
local text = string.rep("Rule: answer with facts about the order. ", math.floor($2 / 41))
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"m","messages":[{"role":"system","content":"' .. text .. '"},{"role":"user","content":"where is it?"}],"max_tokens":8}'
LUA
}
script thin 300
script fat 240000
for name in "${order[@]}"; do
  for _ in $(seq 100); do curl -sf -o /dev/null -d '{"model":"m","messages":[]}' -H 'Content-Type: application/json' "http://127.0.0.1:${port[$name]}/v1/chat/completions" && break; sleep 0.1; done
done

cpu() { awk '{print $14 + $15}' "/proc/$1/stat"; } # ticks of the process with its threads
measured() { local p=${pid[$1]}; if [ "$1" = nginx ]; then pgrep -P "$p" | head -1; else echo "$p"; fi; }
hz=$(getconf CLK_TCK)
run() { # name body: "requests/s us-of-CPU-per-request errors"
  local p before after out n
  p=$(measured "$1")
  before=$(cpu "$p")
  out=$(wrk -t1 -c16 -d"${seconds}s" -s "$work/$2.lua" "http://127.0.0.1:${port[$1]}/v1/chat/completions")
  after=$(cpu "$p")
  n=$(awk '/requests in/ {print $1}' <<< "$out")
  bad=$(awk '/Non-2xx/ {print $NF}' <<< "$out")
  awk -v n="$n" -v s="$seconds" -v t="$((after - before))" -v hz="$hz" -v bad="${bad:-0}" 'BEGIN { printf "%.0f %.1f %d\n", n / s, t / hz / n * 1e6, bad }'
}
for name in "${order[@]}"; do run "$name" thin > /dev/null; done # warm-up
for r in $(seq "$rounds"); do
  for name in "${order[@]}"; do for body in thin fat; do echo "$name $body $(run "$name" $body)" >> "$work/all"; done; done
done
median() { awk -v n="$1" -v b="$2" -v f="$3" '$1 == n && $2 == b {print $f}' "$work/all" | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
printf '%-14s %12s %10s %14s %10s %8s\n' proxy 'thin req/s' 'us/req' '240 KB req/s' 'us/req' errors
for name in "${order[@]}"; do
  printf '%-14s %12s %10s %14s %10s %8s\n' "$name" "$(median $name thin 3)" "$(median $name thin 4)" "$(median $name fat 3)" "$(median $name fat 4)" \
    "$(awk -v n=$name '$1 == n {s += $5} END {print s + 0}' "$work/all")"
done
