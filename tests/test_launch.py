"""What `trl-miner launch` would start: commands, GPUs, addresses, and accelerate's files. Nothing
is started here."""

import dataclasses
import json
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from harness import in_a_fork
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from trl.scripts import vllm_serve

from trl_miner import cli
from trl_miner.launching.local import STARTER, find_file, launch, launcher_arguments
from trl_miner.launching.plan import make_plan
from trl_miner.launching.server import check_port, free_port
from trl_miner.launching.supervise import supervise

ROOT = Path(__file__).parent.parent
ACCELERATE = ROOT / "recipes" / "accelerate"
SERVED = {"use_vllm": True, "vllm_mode": "server", "vllm_tensor_parallel_size": 2}
LOOPBACK = "http://127.0.0.1:8000"
CPUS, NODES = (str(ACCELERATE / f"{name}.yaml") for name in ("cpu_2_processes", "multi_node"))


@pytest.fixture(autouse=True)
def no_gpus_of_the_environment(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)


@pytest.fixture
def recipe(tmp_path):
    def write(**settings):
        path = tmp_path / "recipes" / "recipe.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps({"model_name_or_path": "org/model", "output_dir": str(tmp_path)} | settings)
        )
        return path

    return write


def value(command, option):
    return command[command.index(option) + 1]


@pytest.mark.parametrize(
    ("settings", "trls"),
    [
        # TRL merges the adapter: the server has the base model
        ({"use_peft": True}, {"dtype": "bfloat16"}),
        (
            {"bf16": False, "vllm_gpu_memory_utilization": 0.8},
            {"dtype": "float32", "gpu_memory_utilization": 0.8},
        ),
        ({"fp16": True, "vllm_server_port": 8123}, {"dtype": "float16", "port": 8123}),
        (
            {"vllm_max_model_length": 9216, "model_revision": "v2"},
            {"max_model_len": 9216, "revision": "v2"},
        ),
        (
            {"vllm_model_impl": "transformers", "trust_remote_code": True},
            {"vllm_model_impl": "transformers", "trust_remote_code": True},
        ),
    ],
)
def test_the_server_gets_what_trl_itself_would_pass(recipe, settings, trls):
    """Every word, in order. Two of TRL's own arguments differ from its defaults: the host and the
    log's level."""
    arguments = dict(
        model="org/model",
        tensor_parallel_size=2,
        host="127.0.0.1",
        dtype="bfloat16",
        log_level="warning",
    )
    trls_command = vllm_serve.build_command(vllm_serve.ScriptArguments(**{**arguments, **trls}))
    plan = make_plan(
        recipe(**SERVED, **settings), num_gpus=4, server_args="--enforce-eager --seed 1"
    )
    assert plan.server == [*trls_command, "--enforce-eager", "--seed", "1"]


def test_server_and_training_share_the_gpus(recipe):
    """8 GPUs, tensor parallel 2: the server has 0 and 1, six processes the others."""
    plan = make_plan(recipe(**SERVED, accelerate_config="zero3"), ["--seed", "3"], num_gpus=8)
    assert (plan.server_gpus, plan.train_gpus, plan.num_processes) == (
        (0, 1),
        (2, 3, 4, 5, 6, 7),
        6,
    )
    near = {"VLLM_HOST_IP": "127.0.0.1"}
    assert plan.server_env == near | {"VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert plan.train_env == near | {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7"}
    assert plan.accelerate["deepspeed_config"]["zero_stage"] == 3
    assert plan.train == [*STARTER, "--config", plan.train[5], "--seed", "3", "--vllm_server_base_url", LOOPBACK,
                          "--num_processes", "6"]  # fmt: skip
    assert plan.server_url == LOOPBACK and not plan.notes


def test_the_users_own_gpus_are_passed_on(recipe, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8f6e, 7,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    plan = make_plan(recipe(**SERVED))
    assert (
        plan.server_env["CUDA_VISIBLE_DEVICES"] == "5,GPU-8f6e"
        and plan.train_env["CUDA_VISIBLE_DEVICES"] == "7,3"
    )
    colocated = make_plan(recipe(use_vllm=True, vllm_mode="colocate"))
    assert colocated.server is None and colocated.server_url is None
    assert colocated.train_env == {} and colocated.num_processes == 4  # all, as the user set them
    with pytest.raises(ValueError, match="must divide the processes of the training.*got 3 and 4"):
        make_plan(recipe(use_vllm=True, vllm_mode="colocate", vllm_tensor_parallel_size=3))


@pytest.mark.parametrize(
    ("settings", "num_gpus", "visible", "processes"),
    [
        # not spread over all
        (SERVED | {"accelerate_config": str(ACCELERATE / "single_gpu.yaml")}, 4, "2", 1),
        # 48 rollouts in a step, 4 on each GPU: not on 5
        ({"optimizer_batch_size": 48, "per_device_train_batch_size": 4}, 5, "0,1,2,3", 4),
        ({"use_cpu": True, "accelerate_config": CPUS}, 8, None, 2),
        ({"use_cpu": True}, 8, None, 1),
    ],
)
def test_a_training_sees_the_gpus_that_it_uses(recipe, settings, num_gpus, visible, processes):
    plan = make_plan(recipe(**settings), num_gpus=num_gpus)
    assert (plan.num_processes, plan.train_env.get("CUDA_VISIBLE_DEVICES")) == (processes, visible)
    assert bool(plan.notes) == (visible is not None)  # GPUs stay unused


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        (
            SERVED,
            dict(num_gpus=2),
            "needs at least 3 GPUs, 2 for the vLLM server .* and 1 to train; there are 2. To preview",
        ),
        (
            SERVED,
            dict(num_gpus=1, only="server"),
            "needs at least 2 GPUs, 2 for the vLLM server .*; there are 1",
        ),
        ({}, dict(num_gpus=2, only="server"), "--only server needs a recipe with use_vllm: true"),
        (
            {"accelerate_config": "zero3"},
            dict(num_gpus=0),
            r"for GPUs \(distributed_type: DEEPSPEED\): got",
        ),
        (
            {"accelerate_config": "zero9"},
            dict(num_gpus=2),
            "No configuration named 'zero9' for accelerate_config. Did you mean 'zero3'",
        ),
        (
            {"accelerate_config": CPUS},
            dict(num_gpus=2),
            "is for a CPU: got use_cpu=False and 2 visible GPUs",
        ),
        (
            {"accelerate_config": NODES},
            dict(num_gpus=8),
            "launch trains on one machine: .* num_machines: 2",
        ),
        (
            SERVED | {"vllm_server_base_url": "node:8000"},
            dict(num_gpus=8),
            "must be an address with http:// in front",
        ),
        (
            SERVED | {"vllm_server_base_url": "http://n:x"},
            dict(num_gpus=8),
            "address with http://.*: got http://n:x",
        ),
        (SERVED | {"vllm_server_port": 99999}, dict(num_gpus=8), "between 1 and 65535: got 99999"),
        (
            SERVED | {"vllm_tensor_parallel_size": 0},
            dict(num_gpus=8),
            "vllm_tensor_parallel_size must be at least 1",
        ),
        (
            SERVED,
            dict(num_gpus=8, server_args="--x 'y"),
            "--server-args must be flags .* got --x 'y",
        ),
    ],
)
def test_what_cannot_be_started_is_refused(recipe, settings, options, named):
    with pytest.raises(ValueError, match=named):
        make_plan(recipe(**settings), **options)


def test_gpus_that_accelerates_file_names_are_refused(recipe, tmp_path):
    """accelerate sets CUDA_VISIBLE_DEVICES to them, and the training would see the server's
    GPUs."""
    (tmp_path / "ddp.yaml").write_text(
        (ACCELERATE / "ddp.yaml").read_text().replace("gpu_ids: all", "gpu_ids: 0,1")
    )
    with pytest.raises(ValueError, match="which has gpu_ids: 0,1. Set CUDA_VISIBLE_DEVICES"):
        make_plan(recipe(**SERVED, accelerate_config=str(tmp_path / "ddp.yaml")), num_gpus=8)


def test_a_training_sees_no_more_gpus_than_it_was_given(recipe, monkeypatch, capsys):
    """With 8 visible and one process, TRL would refuse to spread the model over all of them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert make_plan(recipe(), num_gpus=1).train_env == {"CUDA_VISIBLE_DEVICES": "0"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        "trl_miner.launching.supervise.supervise", lambda plan, logs, **_: pytest.fail("started")
    )
    assert cli.main(["launch", str(recipe()), "--num_gpus", "4"]) == 2
    assert "--num_gpus must be at most 2, the visible GPUs: got 4" in capsys.readouterr().err


def test_without_a_file_accelerate_is_left_nothing_to_guess(recipe):
    plan = make_plan(recipe(), num_gpus=2)
    args = launch_command_parser().parse_args(
        [*plan.train[plan.train.index("--multi_gpu") :], "script"]
    )
    assert (args.multi_gpu, args.num_processes, args.num_machines, args.dynamo_backend) == (
        True,
        2,
        1,
        "no",
    )
    assert "--multi_gpu" not in make_plan(recipe(), num_gpus=1).train


def test_the_server_of_several_nodes_is_started_alone(recipe):
    server = make_plan(
        recipe(**SERVED, accelerate_config=NODES), num_gpus=8, only="server", server_host="n3"
    )
    assert (
        server.train == [] and server.num_processes == 0 and value(server.server, "--host") == "n3"
    )
    assert "development endpoints, which need no password, are open" in server.notes[0]


@pytest.mark.parametrize(("parallel", "copies", "unused"), [(1, 8, 0), (2, 4, 0), (3, 2, 2)])
def test_a_server_alone_uses_the_whole_node(recipe, parallel, copies, unused):
    """8 GPUs: a copy of the model on each `vllm_tensor_parallel_size` of them."""
    path = recipe(**SERVED | {"vllm_tensor_parallel_size": parallel})
    plan = make_plan(path, num_gpus=8, only="server", server_args="--data-parallel-size 1")
    gpus = plan.server_env["CUDA_VISIBLE_DEVICES"].split(",")
    assert len(gpus) == len(plan.server_gpus) == copies * parallel == 8 - unused
    assert value(plan.server, "--tensor-parallel-size") == str(parallel)
    assert value(plan.server, "--data-parallel-size") == str(copies)
    # the user's own comes last, and vLLM takes the last
    assert plan.server[-2:] == ["--data-parallel-size", "1"]
    assert [f"{unused} of 8 GPUs stay unused" in note for note in plan.notes] == [True] * bool(
        unused
    )


@pytest.mark.parametrize(
    ("settings", "url", "starts"),
    [
        ({"vllm_server_base_url": "http://node7:9000/x"}, "http://node7:9000/x", False),
        ({"vllm_server_host": "node7", "vllm_server_port": 9000}, "http://node7:9000", False),
        ({"vllm_server_base_url": "http://localhost:9000"}, "http://127.0.0.1:9000", True),
        ({"vllm_server_host": "0.0.0.0"}, LOOPBACK, True),
    ],
)
def test_a_server_that_the_recipe_has_elsewhere_is_not_started(recipe, settings, url, starts):
    plan = make_plan(recipe(**SERVED, **settings), num_gpus=4)
    assert plan.server_url == url == value(plan.train, "--vllm_server_base_url")
    assert (plan.server is not None) is starts and len(plan.train_gpus) == (2 if starts else 4)
    assert any("names a vLLM server on node7" in note for note in plan.notes) is not starts


def test_a_server_that_others_can_reach_is_told_of_and_gets_its_weights_over_the_network(
    recipe, monkeypatch
):
    path = recipe(**SERVED)
    plan = make_plan(path, num_gpus=4, server_host="0.0.0.0")
    assert (
        value(plan.server, "--host") == "0.0.0.0"
        and plan.server_url == LOOPBACK
        and len(plan.notes) == 1
    )
    # a large model needs them
    assert "VLLM_HOST_IP" not in plan.train_env and plan.server_seconds == 1800
    assert make_plan(path, ["--vllm_server_timeout", "240"], num_gpus=4).server_seconds == 240
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    assert "VLLM_HOST_IP" not in make_plan(path, num_gpus=4).train_env


def test_accelerates_file_is_found_beside_the_recipe_then_here_then_in_trl(tmp_path, monkeypatch):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_file("zero2", recipes / "r.yaml").parent.name == "accelerate_configs"
    Path("zero2").write_text("{}")
    assert find_file("zero2", recipes / "r.yaml") == Path("zero2")
    (recipes / "zero2").write_text("{}")
    assert find_file("zero2", recipes / "r.yaml") == recipes / "zero2"


def as_accelerate_reads(arguments):
    return launch_command_parser().parse_args(launcher_arguments(arguments))


def test_train_takes_the_recipes_accelerate_config_and_device(recipe, monkeypatch):
    path = recipe(accelerate_config="zero2")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert Path(as_accelerate_reads(["--config", str(path)]).config_file).name == "zero2.yaml"
    arguments = ["--config", str(path), "--accelerate_config", "fsdp2", "--num_processes", "4"]
    launch = as_accelerate_reads(arguments)
    assert Path(launch.config_file).name == "fsdp2.yaml" and launch.num_processes == 4
    # the file says bf16
    assert as_accelerate_reads([*arguments, "--bf16", "false"]).mixed_precision == "no"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    arguments[3] = CPUS
    # a file for several on a CPU starts them
    assert as_accelerate_reads(arguments).num_processes == 4
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    launch = as_accelerate_reads(["--config", str(recipe(use_cpu=True))])
    assert launch.cpu and launch.num_processes == 1


def test_on_one_gpu_accelerate_is_told_what_it_would_guess(recipe, monkeypatch, caplog):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", "nowhere")
    path = str(recipe())
    launch = as_accelerate_reads(["--config", path])
    _validate_launch_command(launch)
    assert launch.num_processes == 1 and "were not passed" not in caplog.text
    for several in ("--num_processes", "--num_machines"):
        launch = as_accelerate_reads(["--config", path, several, "3"])
        # else it would start one alone
        assert getattr(launch, several.removeprefix("--")) == 3 and launch.multi_gpu
    for file in (["--accelerate_config", "zero2"], ["--config_file", CPUS]):  # which says itself
        assert as_accelerate_reads(["--config", path, *file]).num_processes is None


def test_options_for_accelerate_do_not_change_that_one_process_trains_on_a_cpu(recipe):
    path = str(recipe(use_cpu=True))
    launch = as_accelerate_reads(["--config", path, "--num_cpu_threads_per_process", "3"])
    assert (launch.cpu, launch.num_processes, launch.num_cpu_threads_per_process) == (True, 1, 3)
    for several in (["--num_processes=2"], ["--num-processes", "2"]):
        with pytest.raises(ValueError, match="accelerate would silently start one process"):
            launcher_arguments(["--config", path, *several])
    launch = as_accelerate_reads(["--config", path, "--config_file", CPUS, "--num_processes", "3"])
    assert launch.num_processes == 3 and not launch.cpu


def test_a_dry_run_prints_commands_that_can_be_pasted(recipe, capfd, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    path = recipe(**SERVED, hub_token="hf_in_the_recipe")
    options = ["--run_name", "it's $HOME", "--hub_token", "hf_on_the_line"]
    assert cli.main(["launch", str(path), "--num_gpus", "4", "--dry-run", *options]) == 0
    printed = capfd.readouterr()
    plan = make_plan(path, options, num_gpus=4)
    lines = [shlex.split(line) for line in printed.out.splitlines() if not line.startswith("#")]
    hidden = [word if word != "hf_on_the_line" else "***" for word in plan.train]
    assert lines == [
        [
            "VLLM_SERVER_DEV_MODE=1",
            "VLLM_HOST_IP=127.0.0.1",
            "CUDA_VISIBLE_DEVICES=0,1",
            *plan.server,
        ],
        ["VLLM_HOST_IP=127.0.0.1", "CUDA_VISIBLE_DEVICES=2,3", *hidden],
    ]
    assert "hf_" not in printed.out + printed.err
    assert not (path.parent.parent / "logs").exists()


@pytest.fixture
def installed(monkeypatch):
    """vLLM is, as far as the checks see, and starting anything is a mistake."""
    monkeypatch.setattr("trl_miner.doctor.checks.find_spec", lambda name: name)
    monkeypatch.setattr(
        "trl_miner.launching.supervise.supervise", lambda plan, logs, **_: pytest.fail("started")
    )


def test_no_server_is_started_for_a_finished_run_without_a_checkpoint(
    recipe, tmp_path, capsys, installed
):
    path = recipe(**SERVED, max_steps=5, resume_from_checkpoint="latest")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    assert cli.main(["launch", str(path), "--num_gpus", "4"]) == 2
    assert (
        "already contains a run, and no checkpoint. Choose another --output_dir"
        in capsys.readouterr().err
    )


def test_a_dry_run_plans_for_a_machine_that_is_described(capsys):
    words = ["launch", "Qwen3-4B-Base/miner", "--dry-run", "--machine"]
    assert cli.main([*words, "8x80GB"]) == 0
    assert "# the training: 4 processes" in capsys.readouterr().out
    assert cli.main([*words, "8x24GB"]) == 2
    assert "memory: the training must fit: got " in capsys.readouterr().err
    assert cli.main(["launch", "Qwen3-4B-Base/miner", "--machine", "8x80GB"]) == 2
    assert "Add --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        # 4 GPUs, 2 for the server: a micro-batch of 2 x 2
        (
            dict(optimizer_batch_size=5, per_device_train_batch_size=2),
            ["--dry-run"],
            "got 5 for 2 x 2",
        ),
        (dict(loss_type="nope"), [], "loss_type is 'nope'. It must be one of"),
        (dict(reward_funcs=["math_rewrd"]), [], "math_rewrd"),
        (
            dict(dataset_name="/nowhere/data", prompt_style="plain"),
            [],
            "Folder not found: /nowhere/data",
        ),
    ],
)
def test_no_server_is_started_for_a_training_that_would_fail(
    recipe, capsys, installed, settings, options, named
):
    assert cli.main(["launch", str(recipe(**SERVED | settings)), "--num_gpus", "4", *options]) == 2
    assert named in capsys.readouterr().err


def test_an_address_that_is_taken_or_not_here_is_refused(recipe, tmp_path):
    with pytest.raises(ValueError, match="cannot listen on 192.0.2.1:8000: Cannot assign"):
        check_port("192.0.2.1", 8000)  # of TEST-NET-1, which no machine has
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plan = make_plan(recipe(**SERVED, vllm_server_port=port), num_gpus=4)
        with pytest.raises(
            ValueError, match=f"127.0.0.1:{port}: Address already in use.*--vllm_server_port"
        ):
            supervise(plan, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_a_free_port_is_below_those_of_outgoing_connections_and_not_taken(monkeypatch):
    ports = [free_port() for _ in range(20)]
    assert len({*ports}) > 10 and all(20_000 <= port < 32_768 for port in ports)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", ports[0]))
        taken.listen()
        monkeypatch.setattr("random.SystemRandom.sample", lambda *_: ports)
        assert free_port() != ports[0]


@pytest.mark.parametrize("path", sorted(ACCELERATE.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_every_file(path):
    contents = yaml.safe_load(path.read_text())
    assert set(contents) <= {field.name for field in dataclasses.fields(ClusterConfig)}
    args, *_ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    )
    found = {"DEEPSPEED": args.use_deepspeed, "FSDP": args.use_fsdp, "MULTI_GPU": args.multi_gpu}
    assert found == {kind: kind == contents["distributed_type"] for kind in found}
    assert (args.num_processes, args.mixed_precision) == (
        contents["num_processes"],
        contents["mixed_precision"],
    )
    inner = {**contents.get("fsdp_config", {}), **contents.get("deepspeed_config", {})}
    assert {name: getattr(args, name) for name in inner} == inner


def test_the_launcher_ends_with_the_code_of_the_process_that_failed_first(monkeypatch, capsys):
    """tests/test_accelerate.py trains on two."""

    def fail(args):
        raise ChildFailedError(
            "script", {1: ProcessFailure(local_rank=1, pid=7, exitcode=7, error_file="")}
        )

    monkeypatch.setattr("accelerate.commands.launch.launch_command", fail)
    assert launch(["--config_file", CPUS, "script.py"]) == 7
    assert (
        capsys.readouterr().err == "Process 1 was the first to fail: it ended with exit code 7.\n"
    )


def test_one_process_trains_in_that_of_the_launcher_with_the_threads_it_names(
    tmp_path, monkeypatch
):
    (tmp_path / "child.py").write_text(
        "import os, sys, torch\nsaid = os.getpid(), __name__, sys.argv[1:],"
        " torch.get_num_threads(), os.environ['ACCELERATE_USE_CPU']\nprint(*said,"
        " file=sys.stderr)\nsys.exit(7)\n"
    )
    words = (
        "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no".split()
    )
    words += ["--num_cpu_threads_per_process", "3", "-m", "child", "--seed", "1"]
    monkeypatch.syspath_prepend(tmp_path)

    def run():
        os.environ["OMP_NUM_THREADS"] = "1"
        print(os.getpid(), file=sys.stderr)
        launch(words)

    code, said = in_a_fork(run)
    pid, line = said.splitlines()[-2:]
    assert code == 7 and line == f"{pid} __main__ ['--seed', '1'] 3 True"


def test_one_process_on_a_gpu_of_the_users_choice_is_another_one(tmp_path, monkeypatch):
    """This one may have asked CUDA for its GPUs, and CUDA looks once which are visible."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "child.py").write_text(
        "import os, sys\n"
        "open(sys.argv[1], 'w').write(f\"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\")\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "one.yaml").write_text(
        ACCELERATE.joinpath("single_gpu.yaml").read_text() + "gpu_ids: '3'\n"
    )
    out = tmp_path / "out"
    for options in (
        ["--num_processes", "1", "--gpu_ids", "3"],
        ["--config_file", str(tmp_path / "one.yaml")],
    ):
        assert launch([*options, "-m", "child", str(out)]) == 7
        pid, visible = out.read_text().split()
        assert visible == "3" and int(pid) != os.getpid()


def test_options_that_accelerate_refuses_cost_one_line(capsys):
    assert launch(["--multi_gpu", "--num_processes", "1", "-m", "child"]) == 2
    assert (
        capsys.readouterr().err
        == "trl-miner train: error: You need to use at least 2 processes to use `--multi_gpu`.\n"
    )
