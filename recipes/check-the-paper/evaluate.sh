#!/usr/bin/env bash
# Evaluate a released MINER model and its base model, and compare both with the paper: evaluate.sh 4B | 8B [OPTIONS]
# OPTIONS go to both evaluations, such as --samples 4 for a quick look.
set -euo pipefail

size=${1:?4B or 8B}
shift
base=${BASE:-Qwen/Qwen3-$size-Base} trained=${TRAINED:-pixas/Miner-$size}
benchmarks=(${BENCHMARKS:-aime24 aime25 amc23 hmmt25 math500 olympiadbench})

# The prompt of the authors' training script (github.com/pixas/Miner @ 4d2a76c), in which the models were trained.
PROMPT="A conversation between User and Assistant. The user asks a question, and the Assistant solves it. \
The assistant first thinks about the reasoning process in the mind and then provides the user with the answer. The \
assistant thinks deeply and output the final answer within \\boxed{}. 
User: {question}
Assistant: "

for model in "$base" "$trained"; do
  trl-miner eval --model "$model" --style plain --prompt-template "$PROMPT" --benchmarks "${benchmarks[@]}" \
    --paper "Qwen3-$size-Base" --output "evals/check-the-paper/${model##*/}" "$@"
done
trl-miner score "evals/check-the-paper/${base##*/}" "evals/check-the-paper/${trained##*/}" --paper "Qwen3-$size-Base"
