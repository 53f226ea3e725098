#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: every Triton kernel against its reference and against torch's time, and the engine's
# parity tests under both of vLLM's model runners, MLA included. One command, under eight minutes once vLLM is
# installed; the last line it prints is one JSON object.
#
#   benchmarks/gpu.sh                  in a virtual environment of its own, .venv-gpu, made with agentcache-kv[cuda]
#   benchmarks/gpu.sh --python PYTHON  with a Python that has torch and Triton, and vLLM for the engine's part
#
# Without a GPU it prints one line and ends with 3. It ends with 1 if anything measured is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

limit_s=460
python=""
if [[ "${1:-}" == "--python" && -n "${2:-}" ]]; then
  python=$2
elif [[ $# -gt 0 ]]; then
  echo "usage: benchmarks/gpu.sh [--python PYTHON]" >&2
  exit 2
fi

if ! { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }; then
  echo "gpu.sh: this machine has no NVIDIA GPU that nvidia-smi lists; nothing was measured" >&2
  exit 3
fi

if [[ -z "$python" ]]; then
  python=.venv-gpu/bin/python
  if ! "$python" -c 'import vllm' 2>/dev/null; then
    echo "gpu.sh: installing agentcache-kv[cuda] into .venv-gpu" >&2
    python3 -m venv .venv-gpu
    "$python" -m pip install --quiet --disable-pip-version-check --editable '.[cuda,dev]'
  fi
fi

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec timeout --kill-after=10 "$limit_s" "$python" benchmarks/gpu.py --json --limit-s "$((limit_s - 20))"
