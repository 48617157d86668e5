"""What the script needs: the framework that fills its configuration, and the launcher that it expects."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import Launcher
from ...ds_configs.read import has_auto
from ...estimators.errors import ConfigFileError
from ...estimators.workload import Framework
from ...probes.search_path import search_path
from .request import Script

_SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_TRAINER = re.compile(r"\b(TrainingArguments|HfArgumentParser|Seq2SeqTrainer|SFTTrainer|SFTConfig|Trainer)\b")
_ADAPTERS = re.compile(r"\b(LoraConfig|get_peft_model|PeftModel)\b")
_ACCELERATE = re.compile(r"\bAccelerator\s*\(")


def framework_of(config: Mapping[str, Any], source: str) -> Framework:
    """ "hf" where the configuration has an `auto`, which plain DeepSpeed does not fill, or the script uses the Trainer
    or accelerate; else "deepspeed"."""
    if has_auto(config) or uses_trainer(source) or _ACCELERATE.search(source):
        return "hf"
    return "deepspeed"


def launcher_of(framework: Framework, source: str) -> tuple[Launcher, str]:
    """(the launcher, why): accelerate where the script leaves the configuration to it, deepspeed where a plain script
    may read `--local_rank`, which no other launcher passes, torchrun otherwise."""
    if _ACCELERATE.search(source) and not uses_trainer(source):
        return "accelerate", "the script uses Accelerator, which takes the configuration from its launcher"
    if framework == "deepspeed":
        return "deepspeed", "a script on deepspeed.initialize may read --local_rank, which only this launcher passes"
    return "torchrun", "the Trainer needs no more"


def uses_trainer(source: str) -> bool:
    """Whether the script's text names the Trainer or its arguments."""
    return _TRAINER.search(source) is not None


def names_adapters(source: str) -> bool:
    """Whether the script's text names peft's adapters."""
    return _ADAPTERS.search(source) is not None


def source_of(script: Script) -> str:
    """The text of the script, "" where it cannot be read. Raises ConfigFileError where there is no such script."""
    if script.is_module:
        try:
            spec = importlib.util.find_spec(script.target)
        except (ImportError, ValueError):
            spec = None
        path = Path(spec.origin) if spec is not None and spec.origin else None
    else:
        path = Path(script.target)
        if not path.is_file() or path.suffix in _SHELL_SUFFIXES:
            raise _no_script(path)
    try:
        return "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _no_script(path: Path) -> ConfigFileError:
    """What to write where the first word behind `--` is no Python script."""
    target = str(path)
    example = "ds-advise launch ds_config.json -- train.py ..."
    if target == "-m":
        return ConfigFileError(
            "-m stands behind --, as if it were the script", fix="write it before: -m -- package.train"
        )
    if path.is_file() or shutil.which(target, path=search_path()) is not None:
        return ConfigFileError(
            f"{target} is a program and no training script",
            why="launch starts the ranks itself, by the launcher that the script needs (--launcher)",
            fix=f"write the Python script and its arguments alone: {example}",
        )
    return ConfigFileError(
        f"there is no script {target}",
        why="every rank would end at once",
        fix=f"give its path as seen from this folder: {example}",
    )
