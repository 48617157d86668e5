"""What the script needs: the framework that fills its configuration, and the launcher that it expects."""

from __future__ import annotations

import importlib.util
import re
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...ds_configs.read import has_auto
from ...estimators.errors import ConfigFileError
from ...estimators.workload import Framework, Workload
from ...probes.real_run.kernels import check_kernels
from ...probes.run import Run
from ...probes.search_path import search_path
from ..question.run import configured_run, read_ds_config
from .check import prediction_of
from .config_passing import handing_over
from .place import Place, launcher_for
from .request import LaunchRequest, Script
from .script_arguments import ScriptArguments

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


_TRAINER_MICRO_BATCH = 8
"""TrainingArguments' default for per_device_train_batch_size."""


def launch_question(
    options: dict[str, Any],
    words: tuple[str, ...],
    *,
    given: Collection[str],
    is_module: bool,
    launcher: Launcher | None,
    pass_config: bool | None,
    log_dir: Path | None,
    stall_s: float | None,
    **place_options: Any,
) -> tuple[LaunchRequest, list[str]]:
    """(what is launched, sentences that say what was chosen or assumed, and why).

    options: the arguments of `read_run` but the cluster; those that are `given` by the user count more than what the
    script's arguments say. words: the script and its arguments. place_options: those of `Place`.

    Raises DsAdviseError for what cannot be launched.
    """
    config_file, config = options["config_file"], read_ds_config(options["config_file"])
    script, arguments = Script(target=words[0], arguments=words[1:], is_module=is_module), ScriptArguments(words[1:])
    source = source_of(script)
    place = Place(**place_options)
    check_kernels(config, place.device)
    cluster, rendezvous = place.resolve()
    framework = options["framework"] if "framework" in given else framework_of(config, source)
    launcher, remarks = _launcher(launcher_for(rendezvous, launcher), framework, source, rendezvous)
    handing = handing_over(pass_config, config_file, config, framework=framework, script=script, source=source)
    remarks += handing.remarks
    model = options["model"] or arguments.model
    if model is None:
        run = Run(config=config, model="", cluster=cluster, workload=Workload(framework=framework))
    else:
        filled, assumed = _filled(options, given, arguments, framework)
        adapted, method = _adapted(filled, given, arguments, source)
        del adapted["config_file"]
        run = configured_run(config, **{**adapted, "model": model, "cluster": cluster, "framework": framework})
        remarks += [*assumed, *method]
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        run=run,
        config_path=config_file,
        launcher=launcher,
        folder=folder if place.master is None else folder / f"node{place.node_rank}",  # nodes may share a file system
        device=place.device,
        rendezvous=rendezvous,
        passes_config=handing.passes,
        config_flag=handing.with_flag,
        prediction=prediction_of(run),
        total_steps=arguments.number("max_steps"),
        stall_s=stall_s,
    )
    return request, remarks


def _launcher(
    needed: Launcher | None, framework: Framework, source: str, rendezvous: Rendezvous | None
) -> tuple[Launcher, list[str]]:
    """(the launcher, why it was chosen where it was)."""
    if needed is not None:
        return needed, []
    launcher, why = launcher_of(framework, source)
    if rendezvous is not None and launcher == "deepspeed":
        launcher = "torchrun"
        why = "the nodes are started one by one; a script that reads --local_rank must use LOCAL_RANK"
    return launcher, [f"launcher {launcher}: {why}"]


def _filled(
    options: dict[str, Any], given: Collection[str], arguments: ScriptArguments, framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """(the options with what the user left open, from the script's arguments or else TrainingArguments' defaults; a
    sentence about the latter)."""
    in_script = {
        "seq_len": arguments.seq_len,
        "micro_batch": arguments.number("per_device_train_batch_size"),
        "accumulation": arguments.number("gradient_accumulation_steps"),
        "gradient_checkpointing": arguments.gradient_checkpointing,
        "precision": next((name for name in ("bf16", "fp16") if arguments.flag(name)), None),
    }
    defaults = {"micro_batch": _TRAINER_MICRO_BATCH, "accumulation": 1, "gradient_checkpointing": False}
    in_script = {name: value for name, value in in_script.items() if value is not None and name not in given}
    assumed = {
        name: value
        for name, value in defaults.items()
        if framework == "hf" and name not in given and name not in in_script
    }
    filled = {**options, **in_script, **assumed}
    if not assumed:
        return filled, []
    titles = (
        "no checkpointing" if value is False else f"{name.replace('_', ' ')} {value}" for name, value in assumed.items()
    )
    return filled, [
        f"counted with {', '.join(titles)}, the Trainer's defaults: where the script says otherwise, pass "
        "--micro-batch, --accumulation, --gradient-checkpointing on"
    ]


def _adapted(
    options: dict[str, Any], given: Collection[str], arguments: ScriptArguments, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(the options with the training method that the script's arguments say, a sentence about what is taken)."""
    if "method" in given:
        return options, []
    if arguments.adapts:
        said = {name: value for name, value in arguments.lora.items() if name not in given}
        options = {**options, "method": "lora", **said}
        targets = options["lora_targets"] or "all linear layers"
        bits = "; its 4-bit weights are counted as 16-bit ones" if arguments.loads_in_4_bits else ""
        return options, [
            f"counted as LoRA of rank {options['lora_rank']} on {targets}, by the script's arguments{bits}"
        ]
    if names_adapters(source):
        return options, [
            "counted as full fine-tuning, although the script names adapters: where it trains them, pass --method lora"
        ]
    return options, ["counted as full fine-tuning: for adapters pass --method lora"]
