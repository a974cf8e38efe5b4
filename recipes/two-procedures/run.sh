#!/usr/bin/env bash
# The runs of protocol.md, two at a time: bash run.sh NAME "SEEDS" "ARMS" [OPTIONS]
#   bash run.sh arms "1 2" "grpo miner miner_5 entropy_5 grpo_1e-5" --bf16 false
#   TAUGHT=mirror/start.jsonl bash run.sh mirror "1 2" "grpo miner"    # after procedures.py --worked 0.8 --folder mirror
# Writes results/NAME*. OPTIONS go to the starts and to the trainings. What is finished is skipped. It needs
# models/SmolLM2-135M-Instruct in the clone: see recipes/SmolLM2-135M-Instruct/README.md.
set -euo pipefail
cd "$(dirname "$0")"
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' run.sh && exit 2; }
seeds=$2 arms=$3
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TAUGHT=${TAUGHT:-data/start.jsonl}
export runs=runs/$1 starts=models/$1 options="${*:4}"

start() { # SEED
  [ -d "$starts-$1" ] || trl-miner sft --config grpo.yaml --model ../../models/SmolLM2-135M-Instruct \
    --model_name_or_path "$starts-$1" --dataset_name "$TAUGHT" --seed "$1" --steps 40 --lr 1e-4 $options
}
arm() { # SEED ARM
  local out=$runs/$1-$2
  trl-miner compare --recipes "$2.yaml" --seeds "$1-$1" --model_name_or_path "$starts-$1" --output "$out" $options
  python measure.py "$out" --samples 8
  rm -f "$out/$2/seed$1/model.safetensors" # 540 MB
}
export -f start arm

[ -d data ] || python procedures.py
jobs=() before=""
for seed in $seeds; do # a start is made before the arms of the seed before it
  jobs+=("start $seed")
  for name in ${before:+$arms}; do jobs+=("arm $before $name"); done
  before=$seed
done
for name in $arms; do jobs+=("arm $before $name"); done
mkdir -p "$runs/logs"
(start "${seeds%% *}") >"$runs/logs/first.log" 2>&1
printf '%s\n' "${jobs[@]}" |
  xargs -P 2 -I{} bash -ec 'job="{}"; $job >"$runs/logs/${job// /-}.log" 2>&1; echo "$(date +%T) $job"'
cat "$runs"/*/runs.jsonl | gzip -n >"results/$1.jsonl.gz"
cat "$runs"/*/measures.jsonl >"results/$1_measures.jsonl"
