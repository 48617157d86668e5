"""The folders' arrows point one way, and the fast path stays free of slow imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ds_advise
import pytest

PACKAGE = Path(ds_advise.__file__).parent
MAY_IMPORT = {
    "estimators": set(),
    "ds_configs": {"estimators"},
    "probes": {"estimators", "ds_configs"},
    "validate": {"estimators", "ds_configs", "probes"},
    "advisor": {"estimators", "ds_configs", "probes", "validate"},
}
SLOW = ("torch", "deepspeed", "transformers", "accelerate", "pydantic", "numpy", "huggingface_hub", "psutil")


def _modules() -> list[Path]:
    return [path for folder in MAY_IMPORT for path in sorted((PACKAGE / folder).rglob("*.py"))]


def _imported_folders(path: Path) -> set[str]:
    """Top-level folders of ours that a module imports, at any depth of its code."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    package = parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = (*base, *(node.module or "").split(".")) if node.level else tuple((node.module or "").split("."))
            if not node.level and target[0] != "ds_advise":
                continue
            target = target if node.level else target[1:]
            names = [target] if target and target[0] else [(alias.name,) for alias in node.names]
            found |= {name[0] for name in names if name and name[0] in MAY_IMPORT}
    return found


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_imports_only_what_stands_below_it(path: Path) -> None:
    """estimators <- ds_configs <- probes <- validate <- advisor, and never back up."""
    folder = path.relative_to(PACKAGE).parts[0]
    assert _imported_folders(path) <= MAY_IMPORT[folder] | {folder}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["Qwen2.5-14B", "--gpus", "2x32GB", "--no-write", "--no-deepspeed-estimate"],
        ["gpt2-xl", "--gpus", "A40", "--no-write", "--no-deepspeed-estimate", "--json"],
    ],
    ids=["help", "answer", "json"],
)
def test_the_analytic_answer_loads_no_slow_library(arguments: list[str]) -> None:
    """The answer comes at once: nothing of torch, DeepSpeed or pydantic is imported on the way to it."""
    program = (
        "import sys\n"
        "from ds_advise.advisor.cli import run\n"
        f"code = run({arguments!r})\n"
        f"loaded = [name for name in {SLOW!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
