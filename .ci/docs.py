"""Build the documentation with mkdocs: `python .ci/docs.py FOLDER`. A dead link, or one to no
heading, is an error.

mkdocs works in a copy of the checkout, so that the links between its files hold as they are. Two
kinds of pages are added: the `--help` of every command, and a reference for each folder of the
package.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LEGEND = re.compile(r"^# ", re.MULTILINE)  # of shapes, in the docstring of a module: no heading
FOLDER_LINK = re.compile(r"\]\(((?![a-z]+:|#)[^)\s]*?)/?\)")


def commands() -> str:
    """Return the page with the `--help` of every command."""
    from trl_miner.cli import main

    def printed(*words: str) -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        return shown.getvalue()

    os.environ["COLUMNS"] = "100"
    names = re.findall(r"^    (\w+) ", printed(), re.MULTILINE)
    texts = [f"## trl-miner {name}\n\n```text\n{printed(name)}```\n" for name in names]
    return "\n".join(["# Commands\n\n`trl-miner COMMAND --help` prints the same.\n", *texts])


def copy_checkout(copy: Path) -> None:
    """Copy all that git tracks; a link to a folder becomes one to its README.md, or to nothing
    where it has none."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    for page in copy.rglob("*.md"):

        def file_of(link: re.Match[str], folder: Path = page.parent) -> str:
            if not (folder / link[1]).is_dir():
                return link[0]
            return (
                f"]({link[1]}/README.md)" if (folder / link[1] / "README.md").is_file() else "](#)"
            )

        page.write_text(
            FOLDER_LINK.sub(file_of, page.read_text(encoding="utf-8")), encoding="utf-8"
        )
    for module in copy.glob("trl_miner/**/*.py"):
        opening, docstring, code = module.read_text(encoding="utf-8").split('"""', 2)
        module.write_text(
            '"""'.join([opening, LEGEND.sub("    ", docstring), code]), encoding="utf-8"
        )


def reference(name: str, copy: Path) -> str:
    """Return the page of a folder of the package, or of the modules beside the folders."""
    if name != "trl_miner":
        return f"::: trl_miner.{name}\n"
    modules = sorted(path.stem for path in copy.glob("trl_miner/*.py") if path.stem != "__init__")
    alone = "    options:\n      show_submodules: false\n"
    return f"# trl_miner\n\n::: trl_miner\n{alone}" + "".join(
        f"\n::: trl_miner.{module}\n" for module in modules
    )


def build(output: Path) -> None:
    """Write the whole site; it starts at `index.html`."""
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work, "docs")
        copy_checkout(copy)
        (copy / "commands.md").write_text(commands(), encoding="utf-8")
        (copy / "reference").mkdir()
        for name in sorted(
            {*(path.parent.name for path in copy.glob("trl_miner/*/__init__.py")), "trl_miner"}
        ):
            (copy / "reference" / f"{name}.md").write_text(reference(name, copy), encoding="utf-8")
        lists = {
            "Guides": copy.glob("trl_miner/*/*.md"),
            "Notebooks": copy.glob("notebooks/*.ipynb"),
            "Recipes": [copy / "recipes/README.md", *copy.glob("recipes/*/*.md")],
            "Reference": copy.glob("reference/*.md"),
            "Benchmarks": copy.glob("tests/bench/results/*.md"),
        }
        settings = yaml.safe_load((ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8"))
        for entry in settings["nav"]:
            for title in entry.keys() & lists.keys():
                pages = [path.relative_to(copy).as_posix() for path in sorted(lists[title])]
                entry[title] = [
                    {Path(page).stem: page} if title == "Reference" else page for page in pages
                ]
        (copy.parent / "mkdocs.yml").write_text(
            yaml.safe_dump({**settings, "site_dir": str(output.resolve())})
        )
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        subprocess.run(command, cwd=work, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
