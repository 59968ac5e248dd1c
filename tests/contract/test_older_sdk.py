"""The checks of this package once more, with the major version of the SDK before the current one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.contract.conftest import KEY, LIVE_BASE, SDK_VERSION, SLOW_BASE
from tests.stack import Stack
from tests.support_models import cache_dir

VERSION = "2.54.0"
CHECKS = [
    "tests/contract/test_sdk_answers.py",
    "tests/contract/test_sdk_files.py",
    "tests/contract/test_sdk_errors.py",
    "tests/contract/test_sdk_responses.py",
    "tests/contract/test_sdk_responses_events.py",
    "tests/contract/test_sdk_structured.py",
]
ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 240.0


def installed_sdk() -> Path:
    """A directory with that version and what it needs. Made once; whole or not there at all."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    final = cache_dir() / f"openai-{VERSION}-{python}"
    if final.is_dir():
        return final
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.fail(f"openai=={VERSION} is to be installed with uv, which is not on the PATH; set UV to its path")
    partial = tempfile.mkdtemp(prefix="openai-", dir=cache_dir())
    command = [uv, "pip", "install", "--python", sys.executable, "--target", partial, f"openai=={VERSION}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode != 0:
        shutil.rmtree(partial)
        pytest.fail(f"openai=={VERSION} cannot be installed from the package index:\n{done.stderr[-2000:]}")
    try:
        Path(partial).rename(final)
    except OSError:  # another run was faster
        shutil.rmtree(partial)
    return final


def test_checks_pass_with_the_major_version_before(live: Stack, slow_live: Stack) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIS_")}
    env |= {"PYTHONPATH": str(installed_sdk()), LIVE_BASE: live.base, SLOW_BASE: slow_live.base}
    env |= {KEY: live.key, SDK_VERSION: VERSION}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *CHECKS], check=False, cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
