"""Find recipes, accelerate's configurations and the Slurm script: the user's own, or those that
come with the package."""

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

from ..common.importing import did_you_mean
from ..common.redaction import redact
from ..common.shipped import HOME, shipped_folder
from ..runs.files import read_yaml

NO_RECIPES = ("accelerate", "slurm", "sweeps")
STARTERS = """
    arithmetic/quick forks/miner SmolLM2-135M-Instruct/miner calculator/grpo one-gpu/gsm8k
    Qwen3-4B-Base/miner
    """.split()
FOLDERS = {  # what is in each, from what runs anywhere to what needs a cluster
    "arithmetic": "All methods, on a tiny embedded model that adds in words. A CPU, minutes.",
    "calculator": "A small model learns to call a tool. A CPU, a minute.",
    "SmolLM2-135M-Instruct": "A real model on families of reasoning-gym. A CPU, half an hour.",
    "forks": "A study: does it help to make rare right answers likelier? A CPU, minutes a run.",
    "study": "An earlier study: what each method changes. A CPU, minutes a run.",
    "two-procedures": "A study of SmolLM2-135M-Instruct. A CPU, ten minutes a run.",
    "one-gpu": "Qwen3-0.6B-Base and 1.7B-Base on GSM8K. One GPU of 24 or 80 GB.",
    "asynchronous": "The asynchronous trainer. A CPU, or 8 GPUs of 80 GB.",
    "Qwen3-4B-Base": "All methods of the paper. 4 GPUs of 80 GB; lora: 2 of 48 GB.",
    "Qwen3-8B-Base": "The paper's runs. 8 GPUs of 80 GB; lora: 2 of 48 GB.",
    "Qwen3-14B-Base": "The paper's runs. 8 GPUs of 80 GB; lora: 2 of 80 GB.",
    "OctoThinker-8B-Hybrid-Base": "The paper's runs. 8 GPUs of 80 GB; lora: 2 of 48 GB.",
    "Llama-3.1-8B-Instruct": "The paper's medical runs. 8 GPUs of 80 GB; lora: 2 of 48 GB.",
    "accelerate": "Configurations of accelerate, which recipes name as accelerate_config.",
    "slurm": "A script for several nodes.",
    "sweeps": "A sweep with W&B.",
}


def shipped() -> dict[str, Path]:
    """Return the files that come with the package by name, such as `arithmetic/miner` or
    `accelerate/zero3`."""
    folder = shipped_folder()
    paths = sorted(
        (path.parent, path) for path in folder.rglob("*") if path.suffix in (".yaml", ".slurm")
    )
    return {path.relative_to(folder).with_suffix("").as_posix(): path for _, path in paths}


def is_recipe(name: str | Path) -> bool:
    """Return whether a name of `shipped`, or a file made from it, is a recipe's."""
    return PurePosixPath(name).parent.name not in NO_RECIPES


def find_recipe(name: str | Path) -> Path:
    """Return the recipe of a name: a file, NAME.yaml or recipes/NAME.yaml in the current folder,
    else a shipped one.

    Raises ValueError with similar names if there is none.
    """
    by_name = {key: path for key, path in shipped().items() if is_recipe(key)}
    for path in (
        Path(name),
        Path(f"{name}.yaml"),
        Path(HOME, f"{name}.yaml"),
        by_name.get(key_of(name), Path()),
    ):
        if path.is_file():
            return path
    hint = did_you_mean(key_of(name), by_name) or " Try arithmetic/quick."
    raise ValueError(
        f"No recipe or file named {redact(str(name))!r}.{hint} `trl-miner recipes` shows all"
        " recipes."
    )


def with_recipe_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a training with the file of the recipe in place of its name behind
    `--config`.

    It becomes a word of its own behind `--config=`, too. `--model` is `--model_name_or_path`.
    """
    words = [
        part
        for word in arguments
        for part in (word.split("=", 1) if word.startswith(("--config=", "--model=")) else [word])
    ]
    words = ["--model_name_or_path" if word == "--model" else word for word in words]
    if "--config" in words[:-1]:
        place = words.index("--config") + 1
        words[place] = str(find_recipe(words[place]))
    return words


def select(names: Sequence[str]) -> list[str]:
    """Return the names of the shipped files that are meant, by name or by folder; all without a
    name."""
    by_name, selected = shipped(), []
    for name in names:
        key = key_of(name)
        matched = [other for other in by_name if other == key or other.startswith(f"{key}/")]
        if not matched:
            raise ValueError(
                f"No recipe or folder named {name!r}.{did_you_mean(key, [*by_name, *FOLDERS])}"
                " `trl-miner recipes` shows all folders."
            )
        selected += matched
    return list(dict.fromkeys(selected)) if names else list(by_name)


def shown(name: str) -> str:
    """Return the text of a shipped file."""
    return shipped()[name].read_text(encoding="utf-8").rstrip()


def overview() -> str:
    """Return the recipes to start with, and the folders."""
    return "\n".join(
        [
            "Start with one of these:",
            *_described(STARTERS),
            "",
            "Folders (`trl-miner recipes FOLDER` lists one):",
            *_aligned(FOLDERS),
        ]
    )


def listing(names: Sequence[str]) -> str:
    """Return a line for each shipped file, by folder: its name, and the first comment in it."""
    lines: list[str] = []
    for folder, inside in groupby(names, key=lambda name: name.rpartition("/")[0]):
        lines += ["", folder, *_described([*inside])]
    return "\n".join(lines[1:])


def _described(names: Sequence[str]) -> list[str]:
    comments = {
        name: (line for line in shown(name).splitlines() if line.startswith("# ")) for name in names
    }
    return _aligned({name: next(lines, "").removeprefix("# ") for name, lines in comments.items()})


def _aligned(texts: Mapping[str, str]) -> list[str]:
    width = max(map(len, texts))
    return [f"  {name:<{width}}  {text}" for name, text in texts.items()]


def copy_out(names: Sequence[str], to: Path) -> list[Path]:
    """Copy shipped files into a folder, each with the accelerate configuration that it names, and
    with the scripts and the README of its folder. Return the copies.

    Raises:
        ValueError: A file there has other contents. Then nothing is written.
    """
    sources = set()
    for path in (shipped()[name] for name in names):
        sources |= {path, *path.parent.glob("*.py"), *path.parent.glob("README.md")}
        if path.suffix == ".yaml" and (config := read_yaml(path).get("accelerate_config")):
            sources.add(Path(os.path.normpath(path.parent / config)))
    folder = shipped_folder()
    targets = {
        to / source.relative_to(folder): source.read_bytes()
        for source in sorted(sources)
        if source.is_file()
    }
    for path, content in targets.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise ValueError(
                f"{path} differs from the file that comes with trl_miner. Delete or rename it:"
                " nothing is overwritten, and nothing has been copied."
            )
    for path, content in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return list(targets)


def key_of(name: str | Path) -> str:
    """Return a name as `shipped` writes it: without `recipes/` and the suffix."""
    path = PurePosixPath(name).as_posix().removeprefix(f"{HOME}/")
    return path.removesuffix(".yaml").removesuffix(".slurm")
