"""Puts the packages that were carried behind those of the machine: Python runs this at its start, as
this folder is on the path of the parts of kit.py."""

import os
import sys

if folder := os.environ.get("TRL_MINER_KIT_PACKAGES"):
    sys.path.append(folder)
