"""Files of strangers: nothing that stands in a data set, a result folder, a run folder or a recipe
is executed, and a worker that runs code all the same can do little."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import write_recipe

from trl_miner import cli
from trl_miner.grading.confinement import environment
from trl_miner.grading.pool import Pool
from trl_miner.grading.worker import Job, TaskJob, grade
from trl_miner.rewards import task_reward

GOLDEN = Path(__file__).parent / "golden" / "run_folders"
QUESTION = "Multiply"


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.fixture
def witness(tmp_path):
    """A file that code in a file would make."""
    path = tmp_path / "witness"
    yield path
    assert not path.exists(), "a text of a file was executed"


def hostile_tasks(witness):
    """Problems whose answer, metadata or settings are code, for scorers that evaluate them, in
    JSON and as a literal of Python."""
    code = f"__import__('pathlib').Path('{witness}').touch()"
    hidden = f'eval("{code}")'
    fields = [
        ("number_sorting", {"answer": code}),
        ("bitwise_arithmetic", {"metadata": {"problem": code}}),
        ("polynomial_multiplication", {"answer": hidden}),
        ("simple_integration", {"metadata": {"integrand": hidden, "variable": "x"}}),
        ("intermediate_integration", {"metadata": {"integrand": hidden, "variable": "x"}}),
        # it would be the name of a variable in the answer that the family makes
        ("polynomial_multiplication", {"config": {"variables": [hidden, "y", "z"]}}),
        ("basic_arithmetic", {"config": {"operators": [f"+{code}+"]}}),
        ("composite", {"config": {"datasets": [{"name": code, "weight": 1, "config": {}}]}}),
    ]
    usual = {"config": {}, "seed": 0, "index": 0, "question": QUESTION}
    usual |= {"answer": "1", "metadata": {}}
    tasks = [usual | {"family": family} | changes for family, changes in fields]
    return [json.dumps(task) for task in tasks] + [repr(task) for task in tasks]


def test_a_reward_executes_nothing_of_a_task(witness):
    tasks = hostile_tasks(witness)
    assert task_reward(["<answer>[1]</answer>"] * len(tasks), tasks) == [None] * len(tasks)


def test_score_executes_nothing_of_a_result_folder(witness, tmp_path, capsys):
    folder = tmp_path / "result" / "own"
    folder.mkdir(parents=True)
    (folder.parent / "settings.json").write_text(json.dumps({"model": "m"}))
    about = {"title": "own", "grader": "task", "samples": 1, "fingerprint": "f", "source": {}}
    (folder / "benchmark.json").write_text(json.dumps(about))
    problems, samples = [], []
    for number, task in enumerate([*hostile_tasks(witness), None]):
        problems.append({"id": str(number), "question": QUESTION, "solution": "1", "task": task})
        text = {"text": "<answer>1</answer>", "tokens": 1, "truncated": False}
        samples.append({"problem": str(number), "sample": 0, **text})
    for name, lines in (("problems", problems), ("samples", samples)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert cli.main(["score", str(folder.parent)]) == 2
    assert "17 of 17 samples were not judged: 17 (task)" in capsys.readouterr().err


def test_doctor_executes_nothing_of_a_data_set(witness, tmp_path, policy, capsys):
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": "1 + 1", "answer": "1", "task": task} for task in hostile_tasks(witness)]
    data.write_text("\n".join(map(json.dumps, rows)))
    settings = {"model_name_or_path": policy, "output_dir": tmp_path / "out"}
    settings |= {"dataset_name": data, "reward_funcs": ["task_reward"]}
    assert cli.main(["doctor", write_recipe(tmp_path / "r.yaml", **settings)]) == 1
    assert "the installed reasoning-gym does not make" in capsys.readouterr().out


def test_grading_mathematics_executes_nothing(witness):
    """sympy evaluates what it reads as text; math-verify must not hand it any."""
    code = f"open('{witness}', 'w')"
    forms = (
        *("{}", r"\text{{{}}}", r"\operatorname{{{}}}", r"\{{{}, 1\}}", "({}, 2)", "[{}, 3)"),
        *(
            "x = {}",
            "f(x) = {}",
            r"{} \%",
            r"\frac{{{}}}{{2}}",
            "{} < x",
            r"x<1 \text{{ or }} x>{}",
        ),
        *(r"\gcd({}, 2)", r"\max({}, 2)", r"\sqrt{{{}}}", r"10_{{{}}}", "{}!", r"\pm {}"),
        r"\begin{{pmatrix}}{} & 1 \\ 2 & 3\end{{pmatrix}}",
    )
    for text in (form.format(code) for form in forms):
        for gold in (text, "1", "x < 1", "(1, 2)"):
            grade(Job((text,), "", gold, True))
            grade(Job((gold,), "", text, True))
            grade(Job((), f"The final answer is ${text}$. Answer: {text}", gold, True))


# Run folders, recipes and models


@pytest.fixture
def module(witness, tmp_path, monkeypatch):
    """The name of a module in the current folder that makes the witness when it is imported."""
    (tmp_path / "strange_module.py").write_text(f"open({str(witness)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    yield "strange_module"
    sys.modules.pop("strange_module", None)


def test_a_run_folder_executes_nothing(module, witness, tmp_path, capsys):
    """It names code in its records, holds pickles, and a template in its card's values."""
    run = shutil.copytree(GOLDEN / "run", tmp_path / "run")
    record = json.loads((run / "training.json").read_text())
    code = "{{ cycler.__init__.__globals__.os.mkdir('" + str(witness) + "') }}"
    record["settings"] |= {
        "advantage_estimator": f"{module}.f",
        "max_completion_length": code,
        "loss_type": code,
    }
    record["papers"] = {"miner": [code, code]}
    record |= {"methods": ["miner", f"{module}.f"], "base_model": {"name": code, "hub": True}}
    (run / "training.json").write_text(json.dumps(record))
    (run / "compared.json").write_text(
        json.dumps({"method": f"{module}.f", "recipe": {"reward_funcs": [f"{module}.f"]}})
    )
    evil = pickle.dumps(Evil(str(witness)))
    for folder in (run, run / "checkpoint-4"):
        for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "rollouts_0.pt"):
            (folder / name).write_bytes(evil)
    pushed = tmp_path / "pushed"
    commands = (
        ["report", str(run), "--output", str(tmp_path / "report")],
        ["inspect", str(run)],
        ["push", str(run), "--repo-id", "me/x", "--dry-run", str(pushed)],
    )
    for command in commands:
        assert cli.main(command) == 0, (command, capsys.readouterr())
    assert "cycler" in (pushed / "README.md").read_text()
    assert not any(path.read_bytes() == evil for path in pushed.rglob("*") if path.is_file())


@pytest.mark.parametrize("setting", ["task_config", "dataset_name", "model_init_kwargs"])
def test_tags_of_yaml_execute_nothing(setting, witness, tmp_path, capsys):
    tag = f"!!python/object/apply:os.mkdir ['{witness}']"
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"{setting}: {tag}\n")
    assert cli.main(["doctor", str(recipe)]) == 2
    recipe.write_text("dataset_name: reasoning_gym/chain_sum\n")
    assert cli.main(["doctor", str(recipe), "--task_config", tag]) in (1, 2)
    config = tmp_path / "accelerate.yaml"
    config.write_text(f"mixed_precision: {tag}\n")
    assert cli.main(["doctor", str(recipe), "--accelerate_config", str(config)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_doctor_says_which_code_it_imports(tmp_path, monkeypatch, policy, capsys):
    (tmp_path / "my_rewards.py").write_text("print('here')\ndef f(completions, **kw): return []")
    monkeypatch.chdir(tmp_path)
    settings = {"model_name_or_path": policy, "output_dir": tmp_path / "out"}
    settings |= {"reward_funcs": ["math_reward", "my_rewards.f"]}
    cli.main(["doctor", write_recipe(tmp_path / "r.yaml", **settings)])
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("names code, which doctor imports now: reward_funcs my_rewards.f.")
    assert second == "here"


def test_a_model_executes_nothing(module, witness, tmp_path, policy, capsys):
    """Its configuration names code, its chat template calls it, and pickles lie beside it."""
    model = shutil.copytree(policy, tmp_path / "model")
    for name, key in (("config.json", "AutoModelForCausalLM"), ("config.json", "AutoConfig")):
        config = json.loads((model / name).read_text())
        config.setdefault("auto_map", {})[key] = f"{module}.Model"
        (model / name).write_text(json.dumps(config))
    shutil.copy(tmp_path / f"{module}.py", model)
    (model / "chat_template.jinja").write_text(
        f"{{{{ cycler.__init__.__globals__.os.mkdir('{witness}') }}}}"
    )
    (model / "training_args.bin").write_bytes(pickle.dumps(Evil(str(witness))))
    command = ["eval", "--model", str(model), "--benchmarks", "arithmetic:2", "--samples", "1"]
    command += ["--max-tokens", "4", "--backend", "transformers", "--output"]
    assert cli.main([*command, str(tmp_path / "chat"), "--style", "chat"]) == 2
    assert "cannot be used (access to attribute" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "plain"), "--style", "plain"]) == 0
    os.remove(model / "model.safetensors")
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(str(witness))))
    with pytest.raises(pickle.UnpicklingError):
        cli.main([*command, str(tmp_path / "pickle"), "--style", "plain"])


# Numbers


HUGE = {
    "run/held_out.json": (
        ("num_samples", 10**15),
        "held_out.json: .* less than or equal to 1000000",
    ),
    "run/trainer_state.json": (("step_time", 1e308), None),
    "eval/arithmetic/benchmark.json": (("samples", 10**15), "benchmark.json: samples: .*1000000"),
    "eval/scores.json": (("k", 10**15), "scores.json: .*1000000"),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_number_in_a_record_ends_in_one_line(name, tmp_path, capsys):
    (key, value), words = HUGE[name]
    folder = shutil.copytree(GOLDEN / Path(name).parts[0], tmp_path / "x")
    path = folder / Path(*Path(name).parts[1:])

    def changed(content):
        if isinstance(content, dict):
            inner = {k: value if k == key else changed(v) for k, v in content.items()}
            rewards = {k: value for k in content if "reward" in k and words is None}
            return inner | rewards
        return [changed(item) for item in content] if isinstance(content, list) else content

    path.write_text(json.dumps(changed(json.loads(path.read_text()))))
    command = "score" if "benchmark" in name else "report"
    output = [] if command == "score" else ["--output", str(tmp_path / "report")]
    code = cli.main([command, str(folder), *output])
    shown = capsys.readouterr().err
    assert code == (2 if words else 0) and "Traceback" not in shown
    assert words is None or re.search(words, shown)


# Workers


@pytest.fixture(scope="module")
def pool():
    pool = Pool(workers=1)
    assert pool.run([Job(("17.0",), "", "17", False)])[0].is_correct
    yield pool
    pool.close()


def test_a_worker_has_no_secrets_and_no_home(monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_COMPANYS_SECRET", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "secret")
    pool = Pool(workers=1)
    assert pool.run([Job(("17.0",), "", "17", False)])[0].is_correct
    process = Path(f"/proc/{pool.pids()[0]}")
    variables = process.joinpath("environ").read_bytes().split(b"\0")
    assert b"HOME=/dev/null" in variables and b"secret" not in b"".join(variables)
    assert process.joinpath("cwd").resolve() == Path("/")
    pool.close()


def allows(system_call):
    """Whether this kernel lets a process of ours do this, which says itself that it worked."""
    code = f"import ctypes, os; system = ctypes.CDLL(None); os._exit({system_call} < 0)"
    return subprocess.run([sys.executable, "-c", code], env=environment([])).returncode == 0


@pytest.mark.skipif(
    not allows("min(0, max(system.unshare(0x40000000), system.unshare(0x50000000)))"),
    reason="this kernel gives a process no network of its own",
)
def test_a_worker_has_no_network(pool):
    networks = [Path(f"/proc/{pid}/ns/net").readlink() for pid in (os.getpid(), *pool.pids())]
    assert networks[0] != networks[1]


@pytest.mark.skipif(
    not allows("system.syscall(444, None, ctypes.c_size_t(0), 1)"),
    reason="this kernel has no Landlock",
)
def test_a_confined_process_changes_no_file_and_starts_no_program(tmp_path):
    (tmp_path / "old").write_text("old")
    code = """
        import os, subprocess, sys
        from trl_miner.grading import confinement
        confinement.forbid_changes()
        for change in (
            lambda: open("new", "w"),
            lambda: open("old", "a"),
            lambda: os.truncate("old", 0),
            lambda: os.remove("old"),
            lambda: os.rename("old", "new"),
            lambda: os.mkdir("new"),
            lambda: subprocess.run(["true"]),
            lambda: os.makedirs(os.path.expanduser("~/.config")),
        ):
            try:
                print(change())
            except OSError:
                pass
        print(open("old").read())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path, env=environment(sys.path), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("old\n", "") and [*tmp_path.iterdir()] == [
        tmp_path / "old"
    ]


def test_workers_confine_themselves(pool):
    status = Path(f"/proc/{pool.pids()[0]}/status").read_text()
    assert "NoNewPrivs:\t1" in status or not allows(
        "system.syscall(444, None, ctypes.c_size_t(0), 1)"
    )


def test_what_a_worker_sends_is_no_code(witness, tmp_path, monkeypatch):
    """A worker that an answer has taken over sends a pickle."""
    executable = tmp_path / "python"
    executable.write_text(f"""#!{sys.executable}
import re, sys
from multiprocessing.connection import Connection
connection = Connection(int(re.search(r"main.(\\d+)", sys.argv[-1])[1]))
connection.send_bytes(b"ready")
connection.recv_bytes()
connection.send_bytes({pickle.dumps(Evil(str(witness)))!r})
""")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    (verdict,) = Pool(workers=1).run([TaskJob("", "", True, False)])
    assert verdict.reason == "died"
