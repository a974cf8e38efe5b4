"""The vLLM server dies, or stops, in step 2 of a real run: the run ends in time and says what it
was."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import wait_until, write_recipe

from trl_miner.launching.watchdog import EXIT_CODE

HERE = Path(__file__).parent
WATCHDOG_SECONDS = 10
# of a loaded machine, beyond what the watchdog promises
MARGIN_SECONDS = 30


@pytest.mark.parametrize(
    ("fault", "num_processes"),
    [(signal.SIGKILL, 1), (signal.SIGSTOP, 2)],
    ids=["SIGKILL-1", "SIGSTOP-2"],
)
def test_a_server_that_fails_ends_the_run_by_name(
    fault, num_processes, policies, serve, vllm_environment, tmp_path, capsys
):
    """Step 1 is scored behind a gate; meanwhile the server fails, so that step 2 cannot send it its
    weights."""
    gate = tmp_path / "gate"
    gate.touch()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    environment = vllm_environment | {"GATE": str(gate)}
    environment["PYTHONPATH"] = f"{HERE}:{environment['PYTHONPATH']}"
    log = tmp_path / "train.log"
    with serve(policies["tied"], tmp_path) as (url, server), open(log, "w") as out:
        command = [
            sys.executable,
            *(launcher if num_processes > 1 else []),
            "-m",
            "trl_miner.train",
        ]
        settings = dict(
            model_name_or_path=policies["tied"], output_dir=tmp_path / "out", max_steps=1000
        )
        settings |= dict(
            reward_funcs=["rewards_at_a_gate.reward"], use_vllm=True, vllm_mode="server"
        )
        settings |= dict(
            num_generations=8, vllm_server_base_url=url, watchdog_seconds=WATCHDOG_SECONDS
        )
        command += ["--config", write_recipe(tmp_path / "recipe.yaml", **settings)]
        train = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=tmp_path)
        try:
            marks = [gate.with_suffix(f".{rank}") for rank in range(num_processes)]
            wait_until(lambda: all(mark.exists() for mark in marks), train, 240)
            server.send_signal(fault)
            gate.unlink()
            started = time.monotonic()
            code = train.wait(timeout=WATCHDOG_SECONDS + 10 * MARGIN_SECONDS)
            seconds = time.monotonic() - started
        finally:
            train.kill()
            train.wait()
    with capsys.disabled():
        print(
            f"\n{fault.name} of the server, {num_processes} process(es): {seconds:.1f} s to the"
            " error"
        )
    said = [line for line in log.read_text().splitlines() if line.startswith("trl_miner: ")]
    assert said, (
        f"the run ended without a word of the watchdog, by code {code}: {log.read_text()[-3000:]}"
    )
    assert all("step 2" in line for line in said) and any(
        "The vLLM server at" in line for line in said
    )
    assert code == (EXIT_CODE if num_processes == 1 else 1)  # torchrun has a code of its own
    assert seconds < WATCHDOG_SECONDS + MARGIN_SECONDS
