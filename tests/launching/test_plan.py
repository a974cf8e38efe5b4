"""What `trl-miner launch` would start for a recipe. Nothing is started here."""

import json
import shlex
from types import SimpleNamespace

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from trl import TrlParser
from trl.scripts.vllm_serve import ScriptArguments, build_command

from trl_miner import cli
from trl_miner.launching.plan import make_plan
from trl_miner.recipe.files import shipped, shipped_folder
from trl_miner.recipe.reading import read_plain

ACCELERATE = shipped_folder() / "accelerate"
SERVED = {"use_vllm": True, "vllm_mode": "server", "vllm_tensor_parallel_size": 2}
EIGHT = [str(number) for number in range(8)]


@pytest.fixture
def plan_of(tmp_path):
    """Plan a recipe with these settings."""

    def plan(gpus=EIGHT, options=None, **settings):
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({"model_name_or_path": "org/model"} | settings))
        found, read = read_plain([str(path)])
        return make_plan(found, SimpleNamespace(**read), [str(path)], gpus, **(options or {}))

    return plan


def seen(process):
    return process[0]["CUDA_VISIBLE_DEVICES"]


def accelerates(process):
    """The options that accelerate's launcher reads in a command."""
    words = process[1]
    start = words.index("trl_miner.launching.start")
    args = launch_command_parser().parse_args(words[start + 1 :])
    return _validate_launch_command(args)[0]


def test_server_and_training_share_the_gpus(plan_of):
    """8 GPUs, tensor parallel 2: the server has 0 and 1, six processes the others."""
    plan = plan_of(**SERVED, accelerate_config=str(ACCELERATE / "zero3.yaml"))
    server, train = plan.commands
    assert (seen(server), seen(train)) == ("0,1", "2,3,4,5,6,7")
    assert (plan.server_gpus, plan.processes) == (2, 6)
    # the weights, too, go over loopback, where no other machine is
    assert plan.listens == ("127.0.0.1", 8000)
    assert server[0]["VLLM_HOST_IP"] == train[0]["VLLM_HOST_IP"] == "127.0.0.1"
    assert train[1][-6:] == ["--vllm_server_base_url", "http://127.0.0.1:8000",
                             "--vllm_server_timeout", "1800", "--vllm_group_port", "8001"]  # fmt: skip
    assert plan.accelerate["deepspeed_config"]["zero_stage"] == 3
    args = accelerates(train)
    assert (
        args.use_deepspeed and args.num_processes == 6 and args.training_script == "trl_miner.train"
    )


@pytest.mark.parametrize(
    ("settings", "trls"),
    [
        ({"use_peft": True}, {"dtype": "bfloat16"}),  # TRL merges the adapter: the base model
        ({"bf16": False}, {"dtype": "float32"}),
        ({"fp16": True, "vllm_server_port": 8123}, {"dtype": "float16", "port": 8123}),
        ({"vllm_max_model_length": 9216}, {"dtype": "bfloat16", "max_model_len": 9216}),
        ({"vllm_model_impl": "transformers"}, {"dtype": "bfloat16", "vllm_model_impl": "transformers"}),
    ],
)  # fmt: skip
def test_the_server_gets_what_trl_itself_would_pass(plan_of, settings, trls):
    """TRL's own parser makes of our words vLLM's command, with the user's flags behind."""
    options = {"server_args": "--seed 1"}
    plan = plan_of(options=options, **SERVED, vllm_gpu_memory_utilization=0.8, **settings)
    words = plan.commands[0][1]
    parser = TrlParser(ScriptArguments)
    script, more = parser.parse_args_and_config(
        words[words.index("trl.scripts.vllm_serve") + 1 :], return_remaining_strings=True
    )
    usual = {"tensor_parallel_size": 2, "host": "127.0.0.1", "gpu_memory_utilization": 0.8}
    wanted = ScriptArguments("org/model", revision="main", log_level="warning", **usual | trls)
    assert build_command(script, more) == build_command(wanted, ["--seed", "1"])


@pytest.mark.parametrize(
    ("settings", "gpus", "visible", "processes"),
    [
        # 48 completions in a step, 4 on each GPU at once: not on 5
        ({"optimizer_batch_size": 48, "per_device_train_batch_size": 4}, "01234", "0,1,2,3", 4),
        ({"use_cpu": True, "accelerate_config": "cpu_2_processes.yaml"}, EIGHT, "", 2),
        ({"use_cpu": True}, EIGHT, "", 1),
        ({}, "3", "3", 1),
        # the user's own names
        ({}, ["5", "GPU-8f6e"], "5,GPU-8f6e", 2),
    ],
)
def test_a_training_sees_the_gpus_that_it_uses(plan_of, settings, gpus, visible, processes):
    if "accelerate_config" in settings:
        settings = settings | {"accelerate_config": str(ACCELERATE / settings["accelerate_config"])}
    plan = plan_of(gpus, **settings)
    (train,) = plan.commands
    assert (seen(train), plan.processes) == (visible, processes)
    if processes == 1:  # without a launcher between: its exit code is the training's
        assert "trl_miner.launching.start" not in train[1]
    else:
        args = accelerates(train)
        assert (args.multi_gpu, args.num_processes, args.gpu_ids) == (True, processes, "all")


def test_gpus_that_accelerates_file_names_do_not_take_the_servers(plan_of, tmp_path):
    """accelerate would set CUDA_VISIBLE_DEVICES to them."""
    text = (ACCELERATE / "ddp.yaml").read_text().replace("gpu_ids: all", "gpu_ids: 0,1")
    (tmp_path / "own.yaml").write_text(text)
    plan = plan_of(**SERVED, accelerate_config="own.yaml")  # seen from the recipe's folder
    assert accelerates(plan.commands[1]).gpu_ids == "all"


@pytest.mark.parametrize(("settings", "gpus", "named"), [
    (SERVED, "01", "needs 3 or more GPUs: there are 2"),
    ({}, "", "needs 1 or more GPUs: there are 0. To plan .* --machine 8x80GB"),
])  # fmt: skip
def test_too_few_gpus_are_refused_with_what_to_do(plan_of, settings, gpus, named):
    with pytest.raises(ValueError, match=named):
        plan_of(gpus, **settings)


def test_a_file_of_accelerate_that_is_missing_is_named(plan_of):
    with pytest.raises(OSError, match="zero9.yaml"):
        plan_of(accelerate_config="zero9.yaml")


@pytest.mark.parametrize(("parallel", "copies"), [(1, 8), (2, 4), (3, 2)])
def test_a_server_alone_uses_the_whole_machine(plan_of, parallel, copies):
    """8 GPUs: a copy of the model on each `vllm_tensor_parallel_size` of them."""
    options = {"trains": False, "host": "n3"}
    plan = plan_of(options=options, **SERVED | {"vllm_tensor_parallel_size": parallel})
    (server,) = plan.commands
    assert seen(server) == ",".join(EIGHT) and f"--data_parallel_size={copies}" in server[1]
    assert "--host=n3" in server[1] and plan.listens == ("n3", 8000)
    assert "VLLM_HOST_IP" not in server[0]  # other machines send it weights


def test_a_server_that_runs_elsewhere_is_not_started(plan_of):
    plan = plan_of(**SERVED, vllm_server_base_url="http://n3:8000")
    (train,) = plan.commands
    assert plan.listens is None and plan.server_gpus == 0 and plan.processes == 8
    assert "--vllm_server_base_url" not in train[1]  # the recipe says it


def test_one_of_several_machines(plan_of):
    more = "--num_machines 2 --num_processes 16 --machine_rank 1 --main_process_ip n1"
    options = {"accelerate_args": f"{more} --main_process_port 29500"}
    away = {"vllm_server_base_url": "http://n3:8000"}
    for file in ({}, {"accelerate_config": str(ACCELERATE / "multi_node.yaml")}):
        plan = plan_of(options=options, **SERVED, **away, **file)
        args = accelerates(plan.commands[-1])
        assert (args.num_machines, args.num_processes, args.machine_rank) == (2, 16, 1)
        assert (args.main_process_ip, args.main_process_port) == ("n1", 29500)


def test_every_shipped_recipe_can_be_planned_for_eight_gpus():
    for name, path in shipped().items():
        if path.parent.name in ("accelerate", "slurm"):
            continue
        found, settings = read_plain([name])
        given = SimpleNamespace(**settings)
        plan = make_plan(found, given, [name], EIGHT)
        assert plan.commands, name
        if given.optimizer_batch_size:
            rows = given.per_device_train_batch_size * plan.processes
            assert given.optimizer_batch_size % rows == 0, name


# The command.


def test_a_dry_run_prints_what_can_be_pasted_and_hides_secrets(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_123")
    words = [
        "Qwen3-4B-Base/miner",
        "--dry_run",
        "--machine",
        "8x80GB",
        "--hub_token",
        "hf_planted_123",
    ]
    assert cli.main(["launch", *words]) == 0
    said = capsys.readouterr().out
    server, train, here, colocated = said.splitlines()
    assert "hf_planted" not in said and "***" in train
    names = [word for word in shlex.split(server) if word.startswith("CUDA_VISIBLE_DEVICES=")]
    assert shlex.split(server)[0] == "env" and names == ["CUDA_VISIBLE_DEVICES=0,1"]
    # by the arithmetic of doctor, which is tested there
    assert "s a step" in here and "with --vllm_mode colocate" in colocated


@pytest.mark.parametrize(("words", "said"), [
    (["arithmetic/quick", "--machine", "8x80GB"], "--machine 8x80GB is for --dry_run"),
    (["arithmetic/quick", "--dry_run", "--machine", "80GB"], "--machine must be like 8x80GB: got '80GB'"),
    (["one-gpu/gsm8k"], "needs 1 or more GPUs: there are 0"),
    (["arithmetic/quick", "--lerning_rate", "1"], "no setting 'lerning_rate'. Did you mean 'learning_rate'"),
])  # fmt: skip
def test_a_mistake_costs_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["launch", *words])
    error = capsys.readouterr().err
    assert end.value.code == 2 and said in error and error.count("\n") == 1
