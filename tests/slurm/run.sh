#!/usr/bin/env bash
# Trains with recipes/slurm/train.slurm, as it stands, on a real Slurm: a controller and four nodes, each in a network of
# its own, on this one machine. As root; needs kernel namespaces, and installs Debian's Slurm where it is missing.
#
# All of it runs in namespaces: nothing reaches another network, and with the first process all others, the networks and
# the mounts are gone, however it ends. Two nodes train the embedded world on the CPU. vLLM's server would take longer to
# install than all of this takes: server_stand_in.py plays it, and nothing samples from it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "This stage must run as root: got $(id -un). Use sudo." >&2; exit 1; }
    type -P slurmctld slurmd munged ip >/dev/null || {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
            slurmctld slurmd slurm-client munge iproute2 >/dev/null
    }
    own=(unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc)
    "${own[@]}" true || { echo "This stage needs namespaces, which are not allowed here." >&2; exit 1; }
    work=$(mktemp -d)
    # the first process of the namespaces takes no signal but this one
    trap 'kill -KILL $! 2>/dev/null || true; rm -rf "$work"' EXIT
    trap 'exit 143' INT TERM
    "${own[@]}" "$0" inside "$work" &
    wait $!
    exit
fi

work=$2
cd "$work"
mkdir bin state spool-n{1,2,3,4}
failed() { echo "FAILED: $1" >&2; tail -n 40 "$work"/*.log >&2; exit 1; }

# Wait until a command succeeds: SECONDS COMMAND
until_true() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || failed "$1 seconds were not enough for: ${*:2}"
        sleep 0.5
    done
}

# --- the cluster
cat >hosts <<'END'
127.0.0.1 localhost
10.77.0.254 controller
10.77.0.1 n1
10.77.0.2 n2
10.77.0.3 n3
10.77.0.4 n4
END
mount --bind hosts /etc/hosts
hostname controller
ip link set lo up
ip link add bridge0 type bridge
ip address add 10.77.0.254/24 dev bridge0
ip link set bridge0 up

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
SlurmdTimeout=30
GresTypes=gpu
NodeName=n[1-4] CPUs=2 RealMemory=1000 Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=n[1-4] Default=YES State=UP
END
# for the script a GPU is a process of the training; these are never opened
echo "NodeName=n[1-4] Name=gpu File=/dev/zero" >gres.conf
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >cgroup.conf
export SLURM_CONF=$work/slurm.conf

mungekey --create --keyfile="$work/munge.key"
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --seed-file="$work/munge.seed" --log-file="$work/munged.log" 2>/dev/null
slurmctld

# The first process of each node, by its number. With it, all that runs on the node is gone, as if its power were.
declare -A first
start_node() {
    unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc bash -c "
        hostname n$1
        until ip link set node$1 name eth0 2>/dev/null; do sleep 0.1; done
        ip address add 10.77.0.$1/24 dev eth0
        ip link set eth0 up
        ip link set lo up
        exec slurmd -D -N n$1" >"node-n$1.log" 2>&1 &
    first[$1]=$!
    until_true 10 has_network_of_its_own "${first[$1]}"
    ip link add "card$1" type veth peer name "node$1"
    ip link set "card$1" master bridge0 up
    ip link set "node$1" netns "${first[$1]}"
}
has_network_of_its_own() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
nodes_are_idle() { [ "$(sinfo --noheader --nodes 'n[1-4]' --states idle --Node --format %N | wc -l)" = 4 ]; }

for number in 1 2 3 4; do start_node $number; done
until_true 60 nodes_are_idle

# --- the recipe, and what stands in the place of vLLM's server
trl_miner=$(type -P trl-miner)
cat >bin/trl-miner <<END
#!/usr/bin/env bash
[ "\$1" = launch ] && exec python3 "$here/server_stand_in.py" "\$@"
exec "$trl_miner" "\$@"
END
chmod +x bin/trl-miner
export PATH=$work/bin:$PATH HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
cat >recipe.yaml <<END
model_name_or_path: trl_miner/arithmetic
dataset_name: trl_miner/arithmetic
reward_funcs: [math_reward]
use_cpu: true
bf16: false
gradient_checkpointing: false
per_device_train_batch_size: 8
num_generations: 4
max_completion_length: 16
held_out: 0
save_steps: 2
save_total_limit: 2
max_steps: 100000
END

submit() {  # SETTINGS: prints the job's number
    sbatch --parsable --gpus-per-node 1 --output "$work/job.log" --requeue --open-mode=append \
        "$here/../../recipes/slurm/train.slurm" "$work/recipe.yaml" --output_dir "$work/run" \
        --accelerate_config "$here/../../recipes/accelerate/cpu_2_processes.yaml" "$@"
}
state() { scontrol show job "$job" --oneliner | grep -o "$1=[^ ]*" | cut -d= -f2; }
is_in_state() { [ "$(state JobState)" = "$1" ]; }
newest() {  # step of the newest whole checkpoint; 0 without one
    (ls -d run/checkpoint-*/files.json 2>/dev/null || true) | sed 's|.*-\([0-9]*\)/.*|\1|' | sort -n | tail -n 1 | grep . || echo 0
}
has_checkpoint_after() { [ "$(newest)" -gt "$1" ]; }
has_ended() { [[ $(state JobState) != @(PENDING|RUNNING|COMPLETING) ]]; }
has_started_again() { [ "$(state Restarts)" = "$1" ] && ! is_in_state COMPLETING; }
start_again_now() {  # RESTARTS: Slurm would wait for two minutes
    until_true 90 has_started_again "$1"
    step=$(newest)
    scontrol update JobId="$job" StartTime=now
}
expect() { [ "$(grep -c -e "$1" job.log)" = "$2" ] || failed "job.log must have $2 times: $1"; }
said() { printf '%4d s  %s\n' $SECONDS "$1"; }
said "a controller and four nodes"

job=$(submit)
until_true 240 has_checkpoint_after 0
scancel "$job"
until_true 60 is_in_state CANCELLED
until_true 60 nodes_are_idle
expect "the server's stand-in ended by SIGTERM" 1
expect "trl-miner: ended by SIGTERM" 2
said "scancel: both sides have ended by SIGTERM"

step=$(newest)
job=$(submit --resume_from_checkpoint latest)
until_true 240 has_checkpoint_after "$step"
said "a new job has gone on after step $step"

scontrol requeue "$job"
start_again_now 1
until_true 240 has_checkpoint_after "$step"
said "scontrol requeue: the job has gone on after step $step"

{ kill -KILL "${first[2]}" && wait "${first[2]}"; } 2>/dev/null || true
until_true 90 has_started_again 2
sed -i "s/^max_steps: .*/max_steps: $(($(newest) + 2))/" recipe.yaml
start_again_now 2
until_true 240 has_ended
is_in_state COMPLETED || failed "the job must be COMPLETED: it is $(state JobState)"
expect "The training ended with exit code 0; ending the vLLM server." 1
expect "the server's stand-in ended by SIGTERM" 4
grep -q "\"global_step\": $((step + 2))," run/trainer_state.json || failed "the training is not at its end"
said "a lost node: on the others the job has gone on after step $step and trained to the end"
