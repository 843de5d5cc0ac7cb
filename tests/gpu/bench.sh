#!/bin/bash
# Start an engine by hand on this machine's GPU and measure it with bench.yml by its URL: a Glm4Moe of random weights, large enough to
# load the GPU, with the demo's tokenizer. PYTHON is a release's interpreter, OUT the folder for results and log.
#   PYTHON=/opt/venv/bin/python OUT=/tmp/out tests/gpu/bench.sh -e sglang_bench_repeats=3
set -euo pipefail
cd "$(dirname "$0")/../.."
model=/var/tmp/sglang-gpu-model url=http://127.0.0.1:30000
"$PYTHON" roles/sglang_model/files/make_tiny_glm4_moe.py "$model" >/dev/null
# Sizes of a real layer, 12 of them; the weights are drawn when it is loaded.
"$PYTHON" - "$model/config.json" <<'END'
import json, sys
config = json.load(open(sys.argv[1]))
config.update(hidden_size=4096, intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=12, n_routed_experts=64,
              num_experts_per_tok=8, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
json.dump(config, open(sys.argv[1], "w"))
END
mkdir -p "$OUT"
"$PYTHON" -m sglang.launch_server --model-path "$model" --load-format dummy --attention-backend triton --moe-runner-backend triton \
  --max-running-requests 256 --max-total-tokens 400000 --cuda-graph-max-bs 256 --enable-metrics --port 30000 >"$OUT/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 360); do
  curl -sf -o /dev/null "$url/health" && break
  kill -0 $server || { tail -n 40 "$OUT/server.log"; exit 1; }
  sleep 1
done
cat >"$OUT/hosts.yml" <<END
gpu_nodes: {hosts: {gpu-by-hand: {ansible_connection: local, ansible_become: false, ansible_python_interpreter: /usr/bin/python3}}}
END
ansible-playbook -i "$OUT/hosts.yml" bench.yml -e sglang_bench_url=$url -e sglang_bench_python="$PYTHON" \
  -e sglang_bench_model_path="$model" -e sglang_bench_served_model="$model" -e sglang_bench_results_dir="$OUT/results" "$@"
