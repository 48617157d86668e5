"""From the command line of `ds-advise launch` to a `LaunchRequest`."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...ds_configs.read import has_auto, precision_in
from ...estimators.errors import ConfigFileError, DsAdviseError
from ...estimators.workload import NEXT_TOKEN, Framework, Workload
from ...probes.run import Run, check_device
from ..importers.imported_run import ImportedRun
from ..importers.script_arguments import ScriptArguments
from ..importers.source import Source
from ..importers.trainer_tables import TRAINING_ARGUMENTS, TRL
from ..question.run import read_ds_config, read_run
from .check import predict_run
from .place import launcher_for, resolve_place
from .request import LaunchRequest
from .script_source import Script, ScriptSource, called


def launch_question(
    options: dict[str, Any],
    words: tuple[str, ...],
    *,
    passed: Collection[str],
    is_module: bool,
    launcher: Launcher | None,
    pass_config: bool | None,
    log_dir: Path | None,
    stall_s: float | None,
    **place_options: Any,
) -> tuple[LaunchRequest, list[str]]:
    """(the request, remarks on choices and assumptions).

    options: the arguments of `read_run` except the cluster. The options that the user `passed` precede the script's
        arguments, and these the literal arguments in the script's text.
    words: the script and its arguments.
    place_options: the options of `resolve_place`.

    Raises DsAdviseError for a training that cannot be launched.
    """
    config_file = options["config_file"]
    config = read_ds_config(config_file)
    script = Script(target=words[0], arguments=words[1:], is_module=is_module)
    source, arguments = script.source, script.described
    cluster, rendezvous = resolve_place(**place_options)
    framework = options["framework"] if "framework" in passed else detect_framework(config, source)
    remarks: list[str] = []
    launcher = launcher_for(rendezvous, launcher)
    takes_from, _ = default_launcher(framework, source)
    if launcher is None:
        launcher, why = default_launcher(framework, source, rendezvous)
        remarks.append(f"using {launcher}: {why}" if why else f"using {launcher}")
    passes, remark = config_passing(pass_config, config_file, config, framework=framework, script=script)
    remarks += [remark] * bool(remark)
    late, zero = source.late_arguments, config.get("zero_optimization")
    if late is not None and isinstance(zero, dict) and zero.get("stage") == 3:
        remarks.append(
            f"{script.target} loads the model in line {late[0]}, before its training arguments in line {late[1]}: "
            "under ZeRO-3 every rank then holds the whole model in host memory; make the training arguments first"
        )
    objective = source.objective or NEXT_TOKEN
    # The readers of `from` have the defaults of the Trainer and of TRL.
    form = TRL if framework == "trl" else TRAINING_ARGUMENTS
    described = Source(path=Path(script.target), text="", kind="yaml", values=arguments.by_name)
    written = form.read(described, objective)
    has_trainer = framework == "trl" or bool(source.trainer) or arguments.are_training_arguments
    from_script, assumptions = _from_script(passed, written, framework, has_trainer=has_trainer)
    chosen = options | from_script | {"cluster": cluster, "framework": framework, "objective": objective}
    chosen["model"] = options["model"] or written.model
    if source.objective is not None and framework != "deepspeed":
        keeps = source.metrics_get_logits and objective == NEXT_TOKEN
        evaluation = arguments.evaluation(metrics_get_logits=keeps)
        chosen |= {name: value for name, value in evaluation.items() if name not in passed}
    method = [] if "method" in passed else [_method_remark(chosen, arguments, source)]
    del chosen["config_file"]
    run = None
    if chosen["model"] is not None:
        try:
            run = read_run(config, **chosen)
            if run.shape is not None and "seq_len" not in {*passed, *from_script}:
                assumptions.append(f"assumed samples of {run.workload.seq_len:,} tokens: pass --seq-len")
            remarks += [*assumptions, *method]
        except DsAdviseError as error:
            if options["model"] or script.options.model:
                raise
            remarks.append(f"the script's model {chosen['model']} is not read ({error.what}): pass --model")
    if run is None:
        # A launch without a model is not checked, but `check_device` needs its precision.
        precision = precision_in(config)
        is_fp16 = precision == "fp16" or (chosen["precision"] == "fp16" and precision != "bf16")
        workload = Workload(framework=framework, precision="fp16" if is_fp16 else "bf16")
        run = Run(config=config, model="", cluster=cluster, workload=workload)
    device, master, node_rank = (place_options[name] for name in ("device", "master", "node_rank"))
    check_device(run, device)
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        run=run,
        config_path=config_file,
        launcher=launcher,
        folder=folder if master is None else folder / f"node{node_rank}",  # the nodes may share a file system
        device=device,
        rendezvous=rendezvous,
        passes_config=passes,
        by_variables=passes and takes_from == "accelerate" and launcher != "accelerate",
        prediction=None if source.objective is None else predict_run(run),
        other_loss=source.trainer if source.objective is None else None,
        total_steps=arguments.number("max_steps"),
        stall_s=stall_s,
    )
    return request, remarks


def detect_framework(config: Mapping[str, Any], source: ScriptSource) -> Framework:
    """The framework: "trl" if the script uses a trainer of TRL; "hf" if it uses the Trainer or accelerate, or if the
    configuration has an `auto`, which plain DeepSpeed does not fill; else "deepspeed"."""
    if source.is_trl:
        return "trl"
    return "hf" if has_auto(config) or source.names_trainer or source.makes_accelerator else "deepspeed"


def default_launcher(
    framework: Framework, source: ScriptSource, rendezvous: Rendezvous | None = None
) -> tuple[Launcher, str]:
    """(the launcher, the reason; "" for the usual launcher): accelerate if the script takes the configuration from it;
    deepspeed if a plain script may read `--local_rank`, which no other launcher passes; otherwise torchrun."""
    if source.makes_accelerator and not source.names_trainer:
        return "accelerate", "the script uses Accelerator, which reads the configuration from its launcher"
    if framework != "deepspeed" and not source.takes_config:
        return "accelerate", "the script reads no arguments, so its Trainer takes the configuration from the launcher"
    if framework != "deepspeed":
        return "torchrun", ""
    if rendezvous is None:
        return "deepspeed", "the script may read --local_rank, which only this launcher passes"
    return "torchrun", "the nodes are started one by one; the script must read LOCAL_RANK, not --local_rank"


_UNUSED = ("framework", "objective", "kernels", "quantization")
"""Options of a written training that `launch` decides itself or cannot check."""


def _from_script(
    passed: Collection[str], written: ImportedRun, framework: Framework, *, has_trainer: bool
) -> tuple[dict[str, Any], list[str]]:
    """(values for the options that the user left open, a remark on the defaults). The values are from the script's
    arguments, else the defaults of its Trainer."""
    found = {name: value for name, value in written.training.items() if name not in _UNUSED}
    found |= {
        "micro_batch": written.micro_batch_size,
        "accumulation": written.gradient_accumulation_steps,
        "gradient_checkpointing": written.gradient_checkpointing,
    }
    if found.get("method") == "qlora":
        found["method"] = "lora"
    if framework == "deepspeed" or not has_trainer:  # a loop of its own, or with accelerate alone
        left_open = [name for name in written.assumed if framework == "deepspeed" or name == "precision"]
        found = {name: value for name, value in found.items() if name not in left_open}
    found = {name: value for name, value in found.items() if name not in passed}
    titles = {"gradient_checkpointing": ("no checkpointing", "checkpointing")}
    shown = [
        titles[name][bool(found[name])] if name in titles else f"{name.replace('_', ' ')} {found[name]}"
        for name in written.assumed
        if name in found
    ]
    if not shown:
        return found, []
    remark = (
        f"assumed {', '.join(shown)}, the defaults of {'TRL' if framework == 'trl' else 'the Trainer'}: if the "
        "script sets others, pass --micro-batch, --accumulation, --gradient-checkpointing, --precision"
    )
    return found, [remark]


def _method_remark(chosen: Mapping[str, Any], arguments: ScriptArguments, source: ScriptSource) -> str:
    if chosen["method"] == "lora":
        targets = chosen["lora_targets"] or "all linear layers"
        bits = "; its 4-bit weights are counted as 16-bit ones" if arguments.loads_in_4_bits else ""
        where = "the script's arguments" if source.adapters is None else "its LoraConfig"
        return f"counted as LoRA of rank {chosen['lora_rank']} on {targets}, by {where}{bits}"
    if source.names_adapters:
        return "counted as full fine-tuning, although the script names adapters: if it trains them, pass --method lora"
    return "counted as full fine-tuning: for adapters pass --method lora"


_INITIALIZE_KEYWORDS, _INITIALIZE_POSITION = ("config", "config_params"), 10
"""Parameters of `deepspeed.initialize` that take the configuration (0.19.8 `deepspeed/__init__.py`)."""


def config_passing(
    requested: bool | None, config_file: Path, config: Mapping[str, Any], *, framework: Framework, script: Script
) -> tuple[bool, str]:
    """(whether to pass the file to the script, a remark on it).

    The script may have a configuration of its own, in its text or its arguments; checking another file would then be
    wrong.

    requested: the user's choice; None lets the script decide. Raises ConfigFileError if the script's arguments or text
    name another configuration than the one that is checked.
    """
    arguments, source = script.options, script.source
    _check_arguments(config_file, config, arguments)
    if requested is not None or arguments.passes_a_config:
        return requested is not False and not arguments.passes_a_config, ""
    own = next((value for call in source.calls if (value := _given_config(call, framework)) is not None), None)
    # A script that contains `args.NAME` or the text NAME, the parser's name of the file, may read it.
    if own is None or ("deepspeed_config" if framework == "deepspeed" else "deepspeed") in source.names:
        return True, ""
    where = f"{script.target}, line {own.lineno},"
    if isinstance(own, ast.Constant) and isinstance(own.value, str):
        if Path(own.value).resolve() == config_file.resolve():
            return False, ""
        raise ConfigFileError(
            f"{where} names {own.value}, but {config_file} would be checked",
            why="the checked configuration and the training's configuration must be the same",
            fix=f"launch {own.value}, or pass --pass-config where the script takes the file from its arguments",
        )
    remark = (
        f"{where} gives DeepSpeed a configuration of its own: {config_file} is checked but not passed, so they "
        "must be equal (--pass-config passes it)"
    )
    return False, remark


def _check_arguments(config_file: Path, config: Mapping[str, Any], arguments: ScriptArguments) -> None:
    for name, text in arguments.configs.items():
        try:
            other = json.loads(text) if text.lstrip().startswith("{") else read_ds_config(Path(text))
        except (ConfigFileError, ValueError):
            other = None
        if other != config:
            raise ConfigFileError(
                f"the script gets --{name} {text[:80]}, which differs from {config_file}",
                why="the checked configuration and the training's configuration must be the same",
                fix=f"leave --{name} out, or launch with the script's own file",
            )


def _given_config(call: ast.Call, framework: Framework) -> ast.expr | None:
    name = called(call)
    values: list[ast.expr] = []
    if framework == "deepspeed" and name == "initialize":
        values = [keyword.value for keyword in call.keywords if keyword.arg in _INITIALIZE_KEYWORDS]
        values += call.args[_INITIALIZE_POSITION : _INITIALIZE_POSITION + 1]
    elif framework != "deepspeed" and name.endswith(("TrainingArguments", "Config")):
        values = [keyword.value for keyword in call.keywords if keyword.arg == "deepspeed"]
    return next((value for value in values if not (isinstance(value, ast.Constant) and value.value is None)), None)
