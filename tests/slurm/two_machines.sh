#!/usr/bin/env bash
# Trains on two machines without Slurm, in namespaces of this one, with the kinds of recipes/accelerate/fsdp2.yaml and,
# where DeepSpeed is installed, multi_node.yaml (ZeRO-3): a machine is lost, the other ends by its watchdog; the training
# goes on with one machine, and with two again.
. "$(dirname "$0")/nodes.sh" ip iproute2
export PYTHONPATH=$here/on_a_cpu:$here/..${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu
recipes=$here/../../recipes
write_recipe <<END
watchdog_seconds: 20
END

# As the recipe of accelerate has it, on a CPU of each machine: KIND
configure() {
    sed 's/^use_cpu: .*/use_cpu: true/; s/^mixed_precision: .*/mixed_precision: "no"/' "$recipes/accelerate/$1.yaml" >"$1.yaml"
}
rows=16  # of a micro-batch of all machines
train() {  # KIND MACHINES SETTINGS: starts each machine with its training
    local rank where
    for ((rank = 0; rank < $2; rank++)); do
        where=(--num_machines "$2" --num_processes "$2" --machine_rank $rank --main_process_ip n1 --main_process_port 29500)
        set_of=(--output_dir "$work/$1" --per_device_train_batch_size $((rows / $2)) "${@:3}")
        if [ "$1" = fsdp2 ]; then
            start_node $((rank + 1)) accelerate launch --config_file "$1.yaml" "${where[@]}" \
                -m trl_miner.train --config recipe.yaml "${set_of[@]}"
        else
            start_node $((rank + 1)) trl-miner train recipe.yaml --accelerate_config "$1.yaml" "${set_of[@]}" "${where[@]}"
        fi
    done
}
has_saved_or_ended() { has_checkpoint_after "$1" 0 || ! kill -0 "${first[1]}" 2>/dev/null; }
ended_with() {  # CODE MACHINE
    local code=0
    wait "${first[$2]}" || code=$?
    [ $code = "$1" ] || failed "machine $2 must end with exit code $1: got $code"
}
trained_to() {  # KIND MACHINES STEP
    local machine
    for ((machine = 1; machine <= $2; machine++)); do ended_with 0 $machine; done
    grep -q "\"global_step\": $3," "$1/trainer_state.json" || failed "$1 must be at step $3"
}

kinds=(fsdp2)
if python3 -c "import importlib.util as found; exit(not found.find_spec('deepspeed'))"; then
    kinds+=(multi_node)
else
    echo "DeepSpeed is not installed here: multi_node.yaml is left out"
fi
for kind in "${kinds[@]}"; do
    configure $kind
    train $kind 2 --max_steps 100000
    until_true 240 has_saved_or_ended $kind
    has_checkpoint_after $kind 0 || failed "$kind has ended before its first checkpoint"
    lose_node 2
    ended_with $([ $kind = fsdp2 ] && echo 1 || echo 75) 1  # accelerate ends with 1, whatever the training's own code
    grep -q "Process 1 does not answer, because it was stopped or is dead" node-n1.log || failed "nothing says who is gone"
    step=$(newest $kind)
    said "$kind: a machine lost after step $step, the other has ended by its watchdog"
    train $kind 1 --resume_from_checkpoint latest --max_steps $((step + 2))
    trained_to $kind 1 $((step + 2))
    said "$kind: one machine has gone on"
    train $kind 2 --resume_from_checkpoint latest --max_steps $((step + 4))
    trained_to $kind 2 $((step + 4))
    said "$kind: two machines have gone on"
done
