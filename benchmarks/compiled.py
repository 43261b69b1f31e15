"""Install a compiled laxity in its own folder, to measure or test it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def can_compile() -> bool:
    """Whether a C compiler and Python's headers are installed."""
    return bool(shutil.which("cc")) and Path(sysconfig.get_path("include"), "Python.h").is_file()


def install(folder: Path, *options: str, **asked: str) -> subprocess.CompletedProcess[str]:
    """Install this checkout compiled, with more pip options and environment variables."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *options]
    command += ["--disable-pip-version-check", "--target", str(folder), str(ROOT)]
    env = os.environ | {"LAXITY_COMPILED": "1"} | asked
    return subprocess.run(command, env=env, capture_output=True, text=True)
