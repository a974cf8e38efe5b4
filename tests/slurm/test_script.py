"""What recipes/slurm/train.slurm starts, and how it ends, with what stands for Slurm's commands.

run.sh has the real Slurm, on four nodes in namespaces of one machine; it is run by its name.
"""

import json
import os
import shlex
import subprocess
import sys

import psutil
import pytest
from accelerate.commands.launch import launch_command_parser

from trl_miner import cli
from trl_miner.recipe.files import shipped, shipped_folder

pytestmark = pytest.mark.slow

# They keep what the script relies on: `scontrol show hostnames`, tasks with SLURM_PROCID, a step
# that fails when a task does, an `srun` that kills its tasks on SIGTERM, a `scancel` that lets them
# end. In the place of trl-miner stands TASK, which notes how it was called: the server's waits
# until it is let end, the others end with a code.
SCONTROL = "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n"
SRUN = """#!{python}
import os, signal, subprocess, sys
words, options = sys.argv[1:], {{}}
while words[0].startswith("--"):
    name, equals, value = words.pop(0).partition("=")
    options[name] = value if equals else words.pop(0)
tasks = [subprocess.Popen(words, env=os.environ | dict(SLURM_PROCID=str(rank), SLURMD_NODENAME=node))
         for rank, node in enumerate(options["--nodelist"].split(","))]
signal.signal(15, lambda *args: [task.kill() for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
"""
SCANCEL = """#!{python}
import json, os, sys
from pathlib import Path
assert sys.argv[1:] == ["--signal=TERM", "7"]
for node in ("n1", "n2", "n3"):
    try:
        os.kill(json.loads(Path(node).read_text())["pid"], 15)
    except ProcessLookupError:
        pass
"""
TASK = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
def end(*args):
    Path("ended").touch()
    sys.exit(143)
signal.signal(15, end)
node = os.environ["SLURMD_NODENAME"]
Path(node + ".part").write_text(json.dumps(dict(pid=os.getpid(), words=sys.argv[1:])))
os.rename(node + ".part", node)
while not all(Path(name).is_file() for name in ("n1", "n2", "n3")) or node == "n3":
    time.sleep(.05)
sys.exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize("code", [0, 5])
def test_each_side_is_started_on_its_nodes_and_ends_when_one_does(
    code, tmp_path, monkeypatch, capsys
):
    programs = tmp_path / "bin"
    programs.mkdir()
    texts = {"scontrol": SCONTROL, "scancel": SCANCEL, "srun": SRUN, "trl-miner": TASK}
    for name, text in texts.items():
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    for name in ("SLURM_PROCID", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "CODE": str(code),
        "SLURM_JOB_NODELIST": "n[1-3]", "SERVER_ARGS": "--seed 1 --enforce-eager",
    }  # fmt: skip
    config = shipped_folder() / "accelerate" / "multi_node.yaml"
    settings = {"use_vllm": True, "vllm_mode": "server", "model_name_or_path": "m"}
    recipe = tmp_path / "it's a recipe.yaml"
    recipe.write_text(json.dumps(settings | {"accelerate_config": str(config)}))
    done = subprocess.run(
        ["bash", shipped()["slurm/train"], recipe.name, "--learning_rate", "1e-6"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert f"The training ended with exit code {code}; ending the vLLM server." in done.stderr
    tasks = {node: json.loads((tmp_path / node).read_text()) for node in ("n1", "n2", "n3")}
    assert not any(psutil.pid_exists(task["pid"]) for task in tasks.values())
    assert (tmp_path / "ended").is_file()  # the server, which was let end

    monkeypatch.chdir(tmp_path)
    commands = {}
    for node, task in tasks.items():
        assert cli.main([*task["words"], "--dry_run", "--machine", "8x80GB"]) == 0
        (commands[node],) = map(shlex.split, capsys.readouterr().out.splitlines())
    server = commands["n3"]
    assert {"--host=n3", "--port=10007", "--data_parallel_size=8"} < {*server}
    assert server[-3:] == ["--seed", "1", "--enforce-eager"]
    for rank, node in enumerate(("n1", "n2")):
        train = commands[node]
        found = launch_command_parser().parse_args(
            train[train.index("trl_miner.launching.start") + 1 :]
        )
        assert (found.num_machines, found.machine_rank, found.num_processes) == (2, rank, 16)
        assert (found.main_process_ip, found.main_process_port) == ("n1", 20007)
        assert "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in train
        words = " ".join(found.training_script_args)
        assert "--vllm_server_base_url http://n3:10007" in words and "--learning_rate 1e-6" in words
