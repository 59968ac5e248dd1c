"""What may be imported where; import-linter checks the rest (pyproject.toml)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT = """
import importlib, pkgutil, sys
for name in {forbidden!r}:
    sys.modules[name] = None
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.split(".")[0] in {heavy!r}))
"""


def import_all(package: str, forbidden: list[str], heavy: list[str]) -> str:
    code = WITHOUT.format(package=package, forbidden=forbidden, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_api_imports_on_a_host_without_llama_cpp_or_a_gpu() -> None:
    assert import_all("api", ["llama_cpp", "huggingface_hub"], ["numpy"]) == "[]"


def test_the_contracts_import_nothing_but_msgspec_and_the_standard_library() -> None:
    code = "import sys; before = set(sys.modules); import tasks.contracts; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert tops <= {"tasks", "msgspec", "typing_extensions"}  # the last is msgspec's, when it is installed


@pytest.mark.parametrize("module", ["quart", "hypercorn", "api"])
def test_a_worker_host_needs_no_web_server(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import tasks.engine_process, tasks.model_store, tasks.claims"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
