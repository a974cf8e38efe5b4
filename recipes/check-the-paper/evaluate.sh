#!/usr/bin/env bash
# Evaluate a released MINER model and its base model, and compare both with the paper: evaluate.sh 4B | 8B [OPTIONS]
# OPTIONS go to both evaluations, such as --samples 4 for a quick look.
# As the authors' code evaluates, at temperature 0.6 and with what their questions end with: AUTHORS=1 evaluate.sh 4B
set -euo pipefail

size=${1:?4B or 8B}
shift
base=${BASE:-Qwen/Qwen3-$size-Base} trained=${TRAINED:-pixas/Miner-$size}
benchmarks=(${BENCHMARKS:-aime24 aime25 amc23 hmmt25 math500 olympiadbench})
folder=evals/check-the-paper

# The prompt of the authors' training script (github.com/pixas/Miner @ 4d2a76c), in which the models were trained.
PROMPT="A conversation between User and Assistant. The user asks a question, and the Assistant solves it. \
The assistant first thinks about the reasoning process in the mind and then provides the user with the answer. The \
assistant thinks deeply and output the final answer within \\boxed{}. 
User: {question}
Assistant: "

# Evaluate both models, and print their scores beside the paper's: FOLDER PROMPT BENCHMARK... -- OPTIONS
both() {
  local output=$1 prompt=$2 names=()
  shift 2
  while [ "$1" != -- ]; do names+=("$1") && shift; done
  shift
  for model in "$base" "$trained"; do
    trl-miner eval --model "$model" --prompt_style plain --prompt_template "$prompt" --benchmarks "${names[@]}" \
      --paper "Qwen3-$size-Base" --output "$output/${model##*/}" "$@"
  done
  trl-miner eval "$output/${base##*/}" "$output/${trained##*/}" --paper "Qwen3-$size-Base"
}

if [ -z "${AUTHORS:-}" ]; then
  both "$folder" "$PROMPT" "${benchmarks[@]}" -- "$@"
  exit
fi

# Their code cuts "Please reason step by step ..." off a question, which all AIME and HMMT questions of their files end
# with (github.com/pixas/DECS @ 0d12e53). What the other three end with is another sentence, and stays.
declare -A ends=(
  [amc23]=" Let's think step by step and output the final answer within \\boxed{}."
  [math500]=" Let's think step by step and output the final answer within \\boxed{}."
  [olympiadbench]=" 
Please think step by step and put your answer within \\boxed{}."
)
for name in "${benchmarks[@]}"; do
  both "$folder-authors/$name" "${PROMPT/\{question\}/\{question\}${ends[$name]:-}}" "$name" -- --temperature 0.6 "$@"
done
