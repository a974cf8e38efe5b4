"""Build the wheel and the source archive of a release, and check them:
`python .ci/release.py FOLDER [ADDRESS]`.

A package index shows README.md without the files beside it. In a copy of the checkout, links and
pictures get the ADDRESS of the repository, such as https://github.com/OWNER/NAME. Without it,
pictures are left out, and of links the text stays.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
# to a file beside the README
LINK = re.compile(r"(!?)\[((?:[^][]|!\[[^]]*]\([^)]*\))*)]\((?!https?:|#)([^)\s]+)\)")

BUILD = "from setuptools import build_meta as b; b.build_sdist({0!r}); b.build_wheel({0!r})"


def readme_of_a_release(text: str, address: str = "") -> str:
    """Return the text of README.md as a package index shows it."""

    def replace(link: re.Match[str]) -> str:
        mark, shown, path = link.groups()
        shown = LINK.sub(replace, shown)  # a picture in a link
        if not address:
            return "" if mark else shown
        return f"{mark}[{shown}]({address}/{'raw' if mark else 'blob'}/main/{path})"

    return LINK.sub(replace, text)


def build(folder: Path, address: str = "") -> None:
    """Write the source archive and the wheel into a folder."""
    with tempfile.TemporaryDirectory() as work:
        for name in ("trl_miner", "recipes"):
            shutil.copytree(
                ROOT / name, Path(work, name), ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("README.md", "LICENSE", "setup.cfg", "pyproject.toml"):
            text = (ROOT / name).read_text(encoding="utf-8")
            text = readme_of_a_release(text, address) if name == "README.md" else text
            urls = [
                f"Source = {address}",
                f"Changelog = {address}/blob/main/CHANGELOG.md",
                f"Issues = {address}/issues",
            ]
            if name == "setup.cfg" and address:
                text = text.replace("project_urls =", "\n    ".join(["project_urls =", *urls]))
            Path(work, name).write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", BUILD.format(str(folder.resolve()))]
        subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL)


def check(folder: Path) -> None:
    """Check that the source archive makes the same wheel, that the wheel reads a recipe of its own
    in an empty folder, and that the changelog names its version.

    Raises:
        ValueError: The archive's wheel has other files, or the changelog another version.
        CalledProcessError: The wheel does not run.
    """
    [wheel], [archive] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    if f"\n## {version}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise ValueError(f"CHANGELOG.md has no entry for {version}.")
    with tempfile.TemporaryDirectory() as work:
        shutil.unpack_archive(archive, work)
        again = Path(work, "again")
        command = [sys.executable, "-c", BUILD.format(str(again))]
        source = Path(work, archive.name.removesuffix(".tar.gz"))
        subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
        files, those = (set(ZipFile(path).namelist()) for path in (wheel, again / wheel.name))
        if files != those:
            raise ValueError(f"Only one of wheel and source archive has {sorted(files ^ those)}.")
        shutil.unpack_archive(wheel, Path(work, "wheel"), "zip")
        command = [sys.executable, "-m", "trl_miner.train", "arithmetic/quick", "--max_steps", "1"]
        subprocess.run([*command, "--held_out", "8"], cwd=Path(work, "wheel"), check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]), *(address.rstrip("/") for address in sys.argv[2:]))
    check(Path(sys.argv[1]))
