"""The README as a package index shows it, which has no files beside it. All else is in setup.cfg.

TRL_MINER_SOURCE is the address of the repository that a release is made from, such as https://github.com/OWNER/NAME.
Links and pictures get it. Without it, pictures are left out, and of links the text stays.
"""

import configparser
import os
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[((?:[^][]|!\[[^]]*]\([^)]*\))*)]\((?!https?:|#)([^)\s]+)\)")  # to a file beside the README
source = os.environ.get("TRL_MINER_SOURCE", "").rstrip("/")


def elsewhere(found: re.Match[str]) -> str:
    """Return what stands for a link or a picture where its file is not."""
    mark, text, path = found.groups()
    if not source:
        return "" if mark else text
    return f"{mark}[{text}]({source}/{'raw' if mark else 'blob'}/main/{path})"


settings = configparser.ConfigParser()
settings.read(ROOT / "setup.cfg", encoding="utf-8")
urls = dict(line.split(" = ") for line in settings["metadata"]["project_urls"].strip().splitlines())
if source:
    urls |= {"Source": source, "Changelog": f"{source}/blob/main/CHANGELOG.md", "Issues": f"{source}/issues"}
readme = (ROOT / "README.md").read_text(encoding="utf-8")
setup(long_description=LINK.sub(elsewhere, readme), project_urls=urls)
