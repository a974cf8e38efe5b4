"""The README as a package index shows it: with whole addresses instead of paths. All else is in setup.cfg.

TRL_MINER_SOURCE is the address of the repository that a release is made from, such as https://github.com/OWNER/NAME.
"""

import configparser
import os
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
source = os.environ.get("TRL_MINER_SOURCE", "").rstrip("/")


def whole_address(found: re.Match[str]) -> str:
    """Return the end of a Markdown link or picture with the address of its file."""
    return f"]({source}/{'raw' if found[1].endswith('.png') else 'blob'}/main/{found[1]})"


if source:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(line.split(" = ") for line in settings["metadata"]["project_urls"].strip().splitlines())
    urls |= {"Source": source, "Changelog": f"{source}/blob/main/CHANGELOG.md", "Issues": f"{source}/issues"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(long_description=re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", whole_address, readme), project_urls=urls)
else:
    setup()
