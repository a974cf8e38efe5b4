#!/usr/bin/env bash
# What can be measured on one bare GPU within eight minutes, in order of weight; what is missing is skipped, and said.
#   tests/gpu/run.sh pack [MODEL]   on a machine with a network: wheels for Python 3.12 into .gpu/wheels, and the weights of
#                                   a model's folder in 8 bits into .gpu/model, in parts of at most 55 MB
#   tests/gpu/run.sh [OUT [--only PART ...]]   on the GPU: a table to OUT/table.md, numbers to OUT/results.json
#   tests/gpu/run.sh --dry [OUT ...]           the same on a CPU, with tiny models: does it run?
# Of .gpu, carry at most 60 MB a call: the wheels, then a part of the model a call, then run. kit.py is what it runs, and
# predictions.json says what was expected before.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(type -P python3 || type -P python)

if [ "${1:-}" = pack ]; then
  mkdir -p .gpu/wheels
  # What a machine with torch, transformers, accelerate and peft has not. No dependencies: they are in this list.
  for name in trl==1.16.0 datasets==5.2.0 pyarrow pandas pytz tzdata python-dateutil six dill multiprocess xxhash \
    math-verify latex2sympy2-extended antlr4-python3-runtime==4.13.2 matplotlib contourpy cycler fonttools kiwisolver \
    pyparsing pydantic pydantic-core annotated-types typing-inspection typing-extensions scipy filelock tenacity \
    python-calamine reasoning-gym; do
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest .gpu/wheels \
      --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 "$name" || echo "not packed: $name"
  done
  [ -z "${2:-}" ] || "$python" tests/gpu/kit.py pack "$2" .gpu/model
  du -sh .gpu/*
  exit
fi

dry=()
[ "${1:-}" != --dry ] || { dry=(--dry) && shift; }
out=${1:-${OUT:-.gpu/out}}
mkdir -p "$out"
# Beside what is there, and never over it: a package that the machine has stays.
if [ -d .gpu/wheels ] && [ ! -d .gpu/packages ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target .gpu/packages .gpu/wheels/*.whl >"$out/pip.log" 2>&1 ||
    echo "the wheels could not be installed: $out/pip.log"
fi
# Behind the machine's own packages, which may be built for its GPU.
export PYTHONPATH=$PWD TRL_MINER_KIT_PACKAGES=$PWD/.gpu/packages HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" tests/gpu/kit.py "${dry[@]}" --out "$out" "${@:2}"
