#!/usr/bin/env bash
# Trains with recipes/slurm/train.slurm, as it stands, on a real Slurm: a controller and four nodes, each in a network of
# its own, on this one machine. As root; needs kernel namespaces, and installs Debian's Slurm where it is missing.
#
# Training nodes train the embedded world on the CPU. A stand-in plays vLLM's server, which would take minutes to
# start for each job, and nothing samples from it. tests/with_vllm launches the real one.
. "$(dirname "$0")/nodes.sh" "slurmctld slurmd munged ip" "slurmctld slurmd slurm-client munge iproute2"
mkdir bin state spool-n{1,2,3,4}

# --- the cluster
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=controller(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=20
GresTypes=gpu
NodeName=n[1-4] CPUs=3 RealMemory=1000 Gres=gpu:3 State=UNKNOWN
PartitionName=all Nodes=n[1-4] Default=YES State=UP
END
# for the script a GPU is a process of the training; these are never opened
echo "NodeName=n[1-4] Name=gpu File=$work/gpu[0-2]" >gres.conf
touch gpu{0..2}
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >cgroup.conf
export SLURM_CONF=$work/slurm.conf

mungekey --create --keyfile="$work/munge.key"
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --seed-file="$work/munge.seed" --log-file="$work/munged.log" 2>/dev/null
slurmctld

start_slurmd() { start_node "$1" slurmd -D -N "n$1"; }
nodes_are_idle() { [ "$(sinfo --noheader --nodes 'n[1-4]' --states idle --Node --format %N | wc -l)" = 4 ]; }
for number in 1 2 3 4; do start_slurmd $number; done
until_true 60 nodes_are_idle

# --- the recipe, and what stands in the place of vLLM's server
trl_miner=$(type -P trl-miner)
cat >bin/trl-miner <<END
#!/usr/bin/env bash
[[ " \$* " = *" --only server "* ]] || exec "$trl_miner" "\$@"
trap 'sleep 3; echo "the server'"'"'s stand-in ended by SIGTERM"; exit 143' TERM  # as long as a server may take
echo "the server's stand-in was started: \$*"
while :; do sleep 0.2; done
END
chmod +x bin/trl-miner
export PATH=$work/bin:$PATH HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
write_recipe <<END
per_device_train_batch_size: 8
max_steps: 100000
END

submit() {  # NAME [OPTIONS OF SBATCH] -- SETTINGS: a job with NAME.log; its number is `job`
    local options=()
    local name=$1
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    job=$(sbatch --parsable --gpus-per-node 1 --output "$work/$name.log" --requeue --open-mode=append "${options[@]}" \
        "$here/../../recipes/slurm/train.slurm" "$work/recipe.yaml" \
        --accelerate_config "$(realpath "$here/../../recipes/accelerate/cpu_2_processes.yaml")" "${@:2}")
}
state() { scontrol show job "$job" --oneliner | grep -o "$1=[^ ]*" | cut -d= -f2; }
is_in_state() { [ "$(state JobState)" = "$1" ]; }
has_ended() { [[ $(state JobState) != @(PENDING|RUNNING|COMPLETING) ]]; }
ends_in_state() {  # STATE SECONDS
    until_true "$2" has_ended
    is_in_state "$1" || failed "job $job must be $1: it is $(state JobState)"
}
until_saved() {  # RUN STEP: the job's checkpoint after a step
    until_true 240 has_saved_or_ended "$1" "$2"
    has_checkpoint_after "$1" "$2" || failed "job $job has ended before a checkpoint after step $2"
}
has_saved_or_ended() { has_checkpoint_after "$1" "$2" || has_ended; }
has_started_again() { [ "$(state Restarts)" = "$1" ] && ! is_in_state COMPLETING; }
start_again_now() {  # RESTARTS: Slurm would wait for two minutes
    until_true 90 has_started_again "$1"
    step=$(newest run)
    scontrol update JobId="$job" StartTime=now
}
said "a controller and four nodes"

submit job -- --output_dir "$work/run"
until_saved run 0
scancel "$job"
ends_in_state CANCELLED 60
until_true 60 nodes_are_idle
expect job.log "the server's stand-in ended by SIGTERM" 1
said "scancel: both sides have ended by SIGTERM"

step=$(newest run)
submit job -- --output_dir "$work/run" --resume_from_checkpoint latest
until_saved run "$step"
said "a new job has gone on after step $step"

scontrol requeue "$job"
start_again_now 1
until_saved run "$step"
said "scontrol requeue: the job has gone on after step $step"

lose_node 2
start_again_now 2
until_saved run "$step"
said "a training node lost: on the others the job has gone on after step $step"

start_slurmd 2
lose_node 4
until_true 90 has_started_again 3
sed -i "s/^max_steps: .*/max_steps: $(($(newest run) + 2))/" recipe.yaml
start_again_now 3
ends_in_state COMPLETED 240
expect job.log "The training ended with exit code 0; ending the vLLM server." 1
grep -q "\"global_step\": $((step + 2))," run/trainer_state.json || failed "the training is not at its end"
said "the server's node lost: with another one the job has gone on after step $step and trained to the end"
sed -i "s/^max_steps: .*/max_steps: 100000/" recipe.yaml
start_slurmd 4
until_true 60 nodes_are_idle

# --- three jobs at once: two on the same nodes, and one on others that wants the first one's folder
submit owner --nodes 2 --nodelist n1,n2 --oversubscribe -- --output_dir "$work/shared"
owner=$job
submit neighbour --nodes 2 --nodelist n1,n2 --oversubscribe -- --output_dir "$work/apart" --max_steps 4
neighbour=$job
until_saved shared 0
submit intruder --nodes 2 --nodelist n3,n4 -- --output_dir "$work/shared" --resume_from_checkpoint latest
ends_in_state FAILED 240
expect intruder.log "A run is alive in $work/shared" 1
job=$neighbour
ends_in_state COMPLETED 240
job=$owner
step=$(newest shared)
until_true 60 has_checkpoint_after shared "$step"
said "three jobs at once: two have trained beside each other, and the one with the first one's folder was refused"

scancel --batch --signal=TERM "$job"
ends_in_state FAILED 60
expect owner.log "The job is ended by a signal." 1
expect owner.log "the server's stand-in ended by SIGTERM" 1
said "SIGTERM to the batch shell alone: both sides have ended by it"
