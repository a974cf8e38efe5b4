import subprocess
import sys
from pathlib import Path

import pytest

import trl_miner

PACKAGE = Path(trl_miner.__file__).parent


def modules_after(statement):
    """Names in sys.modules after `statement` in a fresh interpreter."""
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "trl", "transformers", "datasets", "accelerate", "numpy", "matplotlib"}
    assert not heavy & modules_after("import trl_miner, trl_miner.cli, trl_miner.compare")


@pytest.mark.parametrize(
    "module", ["groups", "distributed", "miner", "advantages", "token_losses", "sampling", "evaluation.metrics"]
)
def test_the_mathematics_needs_torch_alone(module):
    assert not {"trl", "transformers", "datasets", "accelerate"} & modules_after(f"import trl_miner.{module}")


def test_judging_needs_neither_torch_nor_trl():
    """Each worker starts with these imports."""
    assert not {"torch", "trl", "transformers", "datasets"} & modules_after(
        "import trl_miner.rewards, trl_miner.grading.worker"
    )


@pytest.mark.parametrize(
    "module",
    [
        *("budgets", "completions", "credit", "curves", "effects", "explain", "held_out_report", "history", "inspect"),
        *("pass_curves", "report", "runs_file", "tables"),
    ],
)
def test_pictures_need_no_model(module):
    assert not {"torch", "trl", "transformers"} & modules_after(f"import trl_miner.viewing.{module}")


def test_public_names_are_there():
    for name in trl_miner.__all__:
        assert getattr(trl_miner, name) is not None
    assert set(trl_miner.__all__) <= set(dir(trl_miner))
    with pytest.raises(AttributeError, match="no attribute 'MinerTrainer'.*MinerGRPOTrainer"):
        trl_miner.MinerTrainer  # noqa: B018


def test_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
