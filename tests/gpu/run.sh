#!/usr/bin/env bash
# What to measure on a machine with one GPU or more, in minutes: a table of what was predicted and what was found.
#
#   pip install -e ".[test]" && tests/gpu/run.sh              # in $OUT, or else .gpu: table.md, and a log of each part
#   tests/gpu/run.sh --only step recipe                       # some parts; tests/gpu/kit.py lists them
#   tests/gpu/run.sh --recipe one-gpu/gsm8k                   # the first 20 steps of another recipe
#   tests/gpu/run.sh --dry                                    # on a CPU, at a tiny size: does every part run?
#
# Flash attention needs `pip install kernels`; the vLLM server `pip install -e ".[vllm]"` and a second GPU, else its part is
# skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD:$PWD/tests:$PWD/tests/gpu PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
exec "$(type -P python3 || type -P python)" tests/gpu/kit.py "$@"
