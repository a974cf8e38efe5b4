# Sourced: machines of their own, in namespaces of this one, for a script that must run as root.
#
# The script starts anew as the first process of namespaces, in a folder of its own: nothing reaches another network,
# and with that process all others, the networks and the mounts are gone, however it ends.
#   . nodes.sh "COMMANDS that it needs" "PACKAGES of Debian that have them"
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
own=(unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc)

if [ -z "${NODES_WORK:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "This stage must run as root: got $(id -un). Use sudo." >&2; exit 1; }
    # shellcheck disable=SC2086  # words
    type -P $1 >/dev/null || {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $2 >/dev/null
    }
    "${own[@]}" true || { echo "This stage needs namespaces, which are not allowed here." >&2; exit 1; }
    NODES_WORK=$(mktemp -d)
    # the first process of the namespaces takes no signal but this one
    trap 'kill -KILL $! 2>/dev/null || true; rm -rf "$NODES_WORK"' EXIT
    trap 'exit 143' INT TERM
    NODES_WORK=$NODES_WORK "${own[@]}" "$0" &
    wait $!
    exit
fi

work=$NODES_WORK
unset NODES_WORK
cd "$work"
failed() { echo "FAILED: $1" >&2; tail -n 40 "$work"/*.log >&2; exit 1; }
said() { printf '%4d s  %s\n' $SECONDS "$1"; }

# Wait until a command succeeds: SECONDS COMMAND
until_true() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || failed "$1 seconds were not enough for: ${*:2}"
        sleep 0.5
    done
}
newest() {  # RUN: step of its newest whole checkpoint; 0 without one
    (ls -d "$1"/checkpoint-*/checksums.json 2>/dev/null || true) | sed 's|.*-\([0-9]*\)/.*|\1|' | sort -n | tail -n 1 | grep . || echo 0
}
has_checkpoint_after() { [ "$(newest "$1")" -gt "$2" ]; }
write_recipe() {  # SETTINGS on standard input: recipe.yaml, with those and a training of seconds
    cat >recipe.yaml <<'END'
model_name_or_path: trl_miner/arithmetic
dataset_name: trl_miner/arithmetic
reward_funcs: [math_reward]
use_cpu: true
bf16: false
gradient_checkpointing: false
num_generations: 4
max_completion_length: 16
held_out: 0
save_steps: 2
save_total_limit: 2
END
    cat >>recipe.yaml
}
expect() {  # LOG TEXT TIMES
    [ "$(grep -c -e "$2" "$1")" = "$3" ] || failed "$1 must have $3 times: $2"
}

{
    echo "127.0.0.1 localhost"
    echo "10.77.0.254 controller"
    for number in {1..9}; do echo "10.77.0.$number n$number"; done
} >hosts
mount --bind hosts /etc/hosts
hostname controller
ip link set lo up
ip link add bridge0 type bridge
ip address add 10.77.0.254/24 dev bridge0
ip link set bridge0 up

# The first process of each node, by its number. With it, all that runs on the node is gone, as if its power were.
declare -A first
start_node() {  # NUMBER COMMAND: what the node runs; its output goes to node-nNUMBER.log
    "${own[@]}" bash -c '
        hostname "n$1"
        until ip link set "node$1" name eth0 2>/dev/null; do sleep 0.1; done
        ip address add "10.77.0.$1/24" dev eth0
        ip link set eth0 up
        ip link set lo up
        ip route add default via 10.77.0.254
        exec "${@:2}"' node "$@" >>"node-n$1.log" 2>&1 &
    first[$1]=$!
    until_true 10 has_network_of_its_own "${first[$1]}"
    ip link delete "card$1" 2>/dev/null || true  # an ended node's, which its last connections may keep for minutes
    ip link add "card$1" type veth peer name "node$1"
    ip link set "card$1" master bridge0 up
    ip link set "node$1" netns "${first[$1]}"
}
has_network_of_its_own() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
lose_node() {  # NUMBER: without a word to the others, whose connections to it stay open
    ip link delete "card$1"
    { kill -KILL "${first[$1]}" && wait "${first[$1]}"; } 2>/dev/null || true
}
