#!/usr/bin/env bash
# Trains on two machines without Slurm, in namespaces of this one: a machine is lost without a word, the other ends after
# ddp_timeout; the training goes on with one machine, and with two again.
. "$(dirname "$0")/nodes.sh" ip iproute2
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
config=$(realpath "$here/../../recipes/accelerate/cpu_2_processes.yaml")
write_recipe <<END
optimizer_batch_size: 16
per_device_train_batch_size: 8
output_dir: $work/run
ddp_timeout: 30
accelerate_config: $config
END

train() {  # MACHINES SETTINGS: starts each machine with its training
    local rank
    for ((rank = 0; rank < $1; rank++)); do
        start_node $((rank + 1)) trl-miner launch recipe.yaml "${@:2}" --accelerate_args \
            "--num_machines $1 --num_processes $1 --machine_rank $rank --main_process_ip n1 --main_process_port 29500"
    done
}
has_saved_or_ended() { has_checkpoint_after run 0 || ! kill -0 "${first[1]}" 2>/dev/null; }
trained_to() {  # MACHINES STEP
    local machine code
    for ((machine = 1; machine <= $1; machine++)); do
        code=0
        wait "${first[$machine]}" || code=$?
        [ $code = 0 ] || failed "machine $machine must end with exit code 0: got $code"
    done
    grep -q "\"global_step\": $2," run/trainer_state.json || failed "the run must be at step $2"
}

train 2 --max_steps 100000
until_true 240 has_saved_or_ended
has_checkpoint_after run 0 || failed "the run has ended before its first checkpoint"
lose_node 2
begin=$SECONDS code=0
wait "${first[1]}" || code=$?
[ $code = 1 ] || failed "the machine that is left must end with exit code 1: got $code"
step=$(newest run)
said "a machine lost after step $step: the other has ended $((SECONDS - begin)) s later"
train 1 --resume_from_checkpoint latest --max_steps $((step + 2))
trained_to 1 $((step + 2))
said "one machine has gone on"
train 2 --resume_from_checkpoint latest --max_steps $((step + 4))
trained_to 2 $((step + 4))
said "two machines have gone on"
