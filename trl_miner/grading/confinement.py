"""What a worker may not do, should an answer get code into it all the same.

Its environment has no secrets and no home. On Linux it has no network, since 5.13 it can also
neither write, make nor remove a file nor start a program, and since 6.7 it cannot connect, even
where it may not have a network of its own. It may read files. A system that has none of this, or
does not allow it, grades without it.
"""

import ctypes
import os
import site
from collections.abc import Sequence

# What Python, numpy and the loader of libraries need; anything else may be a secret.
_NAMES = {"PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR"}
_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")
# Of Linux, the same on all machines; ctypes knows no names for them.
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_NO_NEW_PRIVILEGES = 38
# Bits of Landlock: all rights to files but to read a file (2) or a folder (3), by the versions
# that added some. They are bits 0 to 12, then one with versions 2, 3 and 5.
_READ = 1 << 2 | 1 << 3
_FILE_RIGHTS = (13, 14, 15, 15, 16)
_CONNECT_AND_BIND, _NETWORK_VERSION = 3, 4


def environment(paths: Sequence[str]) -> dict[str, str]:
    """Return the environment of a worker that imports from `paths` first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)),
        # Without a fixed seed sympy would iterate over its sets in another order in each process.
        "PYTHONHASHSEED": "0",
        # nothing can be made below it
        "HOME": os.devnull,
        # where packages of the user are, which Python looks for in the home
        "PYTHONUSERBASE": site.getuserbase(),
    }


def leave_network() -> None:
    """Move this process into a network without any device. It must have one thread."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None and unshare(_NEW_NETWORK):  # only root may do without a new user
        unshare(_NEW_NETWORK | _NEW_USER)


def forbid_changes() -> None:
    """Let this process no longer change the file system, start a program or connect."""
    if os.uname().sysname != "Linux":
        return
    system = ctypes.CDLL(None)
    version = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    files = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]) - 1 & ~_READ
    network = [_CONNECT_AND_BIND] if version >= _NETWORK_VERSION else []
    rights = (ctypes.c_uint64 * (1 + len(network)))(files, *network)
    size = ctypes.c_size_t(ctypes.sizeof(rights))
    ruleset = system.syscall(_CREATE_RULESET, rights, size, 0)
    if ruleset >= 0:
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        system.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
