"""Wheels of scripts/package have the library and the program for several kinds of CPU: which one this CPU is.

packaging/levels is their table, and packaging/launcher.c the program's choice.
"""

from __future__ import annotations

import os
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent


def choose(levels: str, cpuinfo: str) -> str | None:
    """The last line of the table whose flags the CPU has; None if there is none."""
    lines = [line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    flags = set(lines[0].split()) if lines else set()
    level = None
    for line in levels.splitlines():
        name, _, needed = line.partition("|")
        if not line.startswith("#") and set(needed.rpartition("|")[2].split()) <= flags:
            level = name.strip()
    return level


def library_path() -> str | None:
    """The library for this CPU, or None if the package was built for one CPU."""
    folder = _FOLDER / "lib" / "lowkey"
    if not (folder / "levels").exists():
        return None
    level = os.environ.get("LOWKEY_CPU")
    if not level:
        cpuinfo = pathlib.Path("/proc/cpuinfo").read_text("utf-8", "replace")
        level = choose((folder / "levels").read_text("utf-8"), cpuinfo)
    if not level:
        raise ImportError("this CPU has no AVX2: build lowkey from its sources")
    return str(folder / level / "liblowkey.so")


def run_program() -> None:
    """The command `lowkey` of a wheel."""
    program = str(_FOLDER / "bin" / "lowkey")
    os.execv(program, [program, *sys.argv[1:]])
