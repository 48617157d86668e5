"""From the command line of `ds-advise launch` to a LaunchRequest."""

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
from ...probes.machine import search_path
from ...probes.run import Run, check_kernels
from ..question.run import configured_run, read_ds_config
from .check import prediction_of
from .config_passing import config_passing
from .place import Place, launcher_for
from .request import LaunchRequest, Script
from .script_arguments import ScriptArguments

_SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_TRAINER = re.compile(r"\b(TrainingArguments|HfArgumentParser|Seq2SeqTrainer|SFTTrainer|SFTConfig|Trainer)\b")
_ADAPTERS = re.compile(r"\b(LoraConfig|get_peft_model|PeftModel)\b")
_ACCELERATE = re.compile(r"\bAccelerator\s*\(")

_TRAINER_DEFAULTS = {"micro_batch": 8, "accumulation": 1, "gradient_checkpointing": False}
"""Defaults of TrainingArguments."""


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
    """(the request, remarks on what was chosen or assumed).

    options: the arguments of `read_run` but the cluster; those `given` by the user take precedence over the script's
    arguments. words: the script and its arguments. place_options: those of `Place`.

    Raises DsAdviseError for what cannot be launched.
    """
    config_file = options["config_file"]
    config = read_ds_config(config_file)
    script = Script(target=words[0], arguments=words[1:], is_module=is_module)
    arguments = ScriptArguments(script.arguments)
    source = script_source(script)
    place = Place(**place_options)
    check_kernels(config, place.device)
    cluster, rendezvous = place.resolve()
    framework = options["framework"] if "framework" in given else framework_of(config, source)
    remarks: list[str] = []
    launcher = launcher_for(rendezvous, launcher)
    if launcher is None:
        launcher, why = default_launcher(framework, source, rendezvous)
        remarks.append(f"launcher {launcher}: {why}")
    passing = config_passing(pass_config, config_file, config, framework=framework, script=script, source=source)
    remarks += passing.remarks
    model = options["model"] or arguments.model
    if model is None:
        run = Run(config=config, model="", cluster=cluster, workload=Workload(framework=framework))
    else:
        from_script, assumptions = _from_script(given, arguments, framework)
        adapters, method = _adapters(options, given, arguments, source)
        remarks += [*assumptions, *method]
        chosen = options | from_script | adapters | {"model": model, "cluster": cluster, "framework": framework}
        del chosen["config_file"]
        run = configured_run(config, **chosen)
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        run=run,
        config_path=config_file,
        launcher=launcher,
        folder=folder if place.master is None else folder / f"node{place.node_rank}",  # nodes may share a file system
        device=place.device,
        rendezvous=rendezvous,
        passes_config=passing.passes,
        config_flag=passing.with_flag,
        prediction=prediction_of(run),
        total_steps=arguments.number("max_steps"),
        stall_s=stall_s,
    )
    return request, remarks


def framework_of(config: Mapping[str, Any], source: str) -> Framework:
    """ "hf" where the configuration has an `auto`, which plain DeepSpeed does not fill, or the script uses the Trainer
    or accelerate; else "deepspeed"."""
    return "hf" if has_auto(config) or _TRAINER.search(source) or _ACCELERATE.search(source) else "deepspeed"


def default_launcher(framework: Framework, source: str, rendezvous: Rendezvous | None = None) -> tuple[Launcher, str]:
    """(the launcher, the reason): accelerate where the script takes the configuration from it, deepspeed where a plain
    script may read `--local_rank`, which no other launcher passes, torchrun otherwise."""
    if _ACCELERATE.search(source) and not _TRAINER.search(source):
        return "accelerate", "the script uses Accelerator, which takes the configuration from its launcher"
    if framework != "deepspeed":
        return "torchrun", "the Trainer needs no other"
    if rendezvous is None:
        return "deepspeed", "a script on deepspeed.initialize may read --local_rank, which only this launcher passes"
    return "torchrun", "the nodes are started one by one; a script that reads --local_rank must use LOCAL_RANK"


def script_source(script: Script) -> str:
    """The text of the script, "" where it cannot be read. Raises ConfigFileError where the script does not exist."""
    if script.is_module:
        try:
            spec = importlib.util.find_spec(script.target)
        except (ImportError, ValueError):
            spec = None
        path = Path(spec.origin) if spec is not None and spec.origin else None
    else:
        path = Path(script.target)
        if not path.is_file() or path.suffix in _SHELL_SUFFIXES:
            raise _not_a_script(path)
    try:
        return "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _not_a_script(path: Path) -> ConfigFileError:
    target = str(path)
    example = "ds-advise launch ds_config.json -- train.py ..."
    if target == "-m":
        return ConfigFileError("-m after -- is taken for the script", fix="write it before: -m -- package.train")
    if path.is_file() or shutil.which(target, path=search_path()) is not None:
        return ConfigFileError(
            f"{target} is a program and no training script",
            why="launch starts the ranks itself, with the launcher that the script needs (--launcher)",
            fix=f"write the Python script and its arguments alone: {example}",
        )
    return ConfigFileError(
        f"there is no script {target}",
        why="every rank would end at once",
        fix=f"give its path relative to this folder: {example}",
    )


def _from_script(
    given: Collection[str], arguments: ScriptArguments, framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """(options that the user left open, from the script's arguments or else TrainingArguments' defaults; a remark on
    the defaults)."""
    in_script = {
        "seq_len": arguments.seq_len,
        "micro_batch": arguments.number("per_device_train_batch_size"),
        "accumulation": arguments.number("gradient_accumulation_steps"),
        "gradient_checkpointing": arguments.gradient_checkpointing,
        "precision": next((name for name in ("bf16", "fp16") if arguments.flag(name)), None),
    }
    found = {name: value for name, value in in_script.items() if value is not None and name not in given}
    defaults = _TRAINER_DEFAULTS if framework == "hf" else {}
    assumed = {name: value for name, value in defaults.items() if name not in given and name not in found}
    if not assumed:
        return found, []
    titles = (
        "no checkpointing" if value is False else f"{name.replace('_', ' ')} {value}" for name, value in assumed.items()
    )
    remark = (
        f"assumed {', '.join(titles)}, the Trainer's defaults: where the script sets others, pass "
        "--micro-batch, --accumulation, --gradient-checkpointing on"
    )
    return found | assumed, [remark]


def _adapters(
    options: Mapping[str, Any], given: Collection[str], arguments: ScriptArguments, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(options of the training method in the script's arguments, a remark on the method)."""
    if "method" in given:
        return {}, []
    if arguments.adapts:
        found = {name: value for name, value in arguments.lora.items() if name not in given}
        chosen = {**options, **found}
        targets = chosen["lora_targets"] or "all linear layers"
        bits = "; its 4-bit weights are counted as 16-bit ones" if arguments.loads_in_4_bits else ""
        remark = f"counted as LoRA of rank {chosen['lora_rank']} on {targets}, by the script's arguments{bits}"
        return {"method": "lora", **found}, [remark]
    if _ADAPTERS.search(source):
        return {}, [
            "counted as full fine-tuning, although the script names adapters: where it trains them, pass --method lora"
        ]
    return {}, ["counted as full fine-tuning: for adapters pass --method lora"]
