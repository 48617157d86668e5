"""Options that several commands share, each defined once; what differs between commands is its help."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..text.output import Output
from .completion import complete_gpus, complete_model

Command = Callable[..., int]
Decorator = Callable[[Any], Any]


class _Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer versions of Click
    """A whole number of at least 1, in digits (`4096`)."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9 and int(text) > 0):
            self.fail(f"{text[:40]!r} is not a whole number from 1 to 999999999", param, ctx)
        return int(text)


COUNT = _Count()

DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
"""The program's error handler reads it from the arguments."""

IMPORT_FORMATS = ("accelerate", "axolotl", "llama-factory", "ms-swift", "training-arguments", "script")
"""The formats of `advisor.importers`, in the order in which they are looked for; its readers are imported when used."""

OFFLINE = click.option("--offline", is_flag=True, help="Do not use the network.")
RAM = click.option(
    "--ram",
    metavar="SIZE",
    help="Set the host RAM per node: 256GB as sold, 200GiB as usable; this machine's is detected.",
)
CPU_RANKS = click.option("--ranks", type=COUNT, help="Run so many ranks with --device cpu.  [default: 2]")


def _choice(name: str, words: str, text: str) -> Decorator:
    """An option that is one of a few words; the first is the default."""
    choices = words.split()
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=text)


def gpus(
    text: str = "Name the GPUs: 2x32GB, 8xA100-80GB, 4x8xH100 (nodes x GPUs x kind), RTX4090, or auto (this machine).",
) -> Decorator:
    return click.option(
        "--gpus", default="auto", metavar="SPEC", show_default=True, help=text, shell_complete=complete_gpus
    )


def device(text: str = "Train on GPUs, or with processes on this machine's CPU in their place.") -> Decorator:
    return _choice("--device", "cuda cpu", text)


def memory(text: str = "Limit what each rank takes with --device cpu, such as 2GB.") -> Decorator:
    return click.option("--memory", metavar="SIZE", help=text)


class _CountOrMax(_Count):
    """A count, or `max`."""

    name = "N|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "max" else super().convert(value, param, ctx)


COUNT_OR_MAX = _CountOrMax()


def _seq_len(default: str = "2048, or the model's positions if those are fewer", *, longest: bool = False) -> Decorator:
    """longest: the command can look for the longest that fits."""
    text = f"Set the tokens per sample{', max for the longest that fits' if longest else ''}; by default {default}."
    return click.option("--seq-len", type=COUNT_OR_MAX if longest else COUNT, help=text)


def _micro_batch(
    text: str = "Fix the samples per GPU and forward pass; by default the fastest number is searched.",
    *,
    largest: bool = False,
) -> Decorator:
    """largest: the command can look for the largest that fits."""
    if largest:
        text = text.replace(";", ", max for the most that fit;")
    return click.option("--micro-batch", type=COUNT_OR_MAX if largest else COUNT, help=text)


_MODEL_SIZE = click.option(
    "--model-size",
    type=click.Choice(["max"]),
    help="Take MODEL as a family, such as Qwen2.5, and of it the largest model that fits.",
)


def _precision(text: str = "Choose the precision; auto is bf16 where the GPU has it, else fp16.") -> Decorator:
    return _choice("--precision", "auto bf16 fp16 fp32", text)


def _optimizer(text: str = "Choose the optimizer: adamw, adamw_8bit, adafactor, lion, muon, sgd, ...") -> Decorator:
    return click.option("--optimizer", default="adamw", metavar="NAME", show_default=True, help=text)


_AS_BOOL = {"on": True, "off": False}


def _checkpointing(*choices: str) -> Decorator:
    """Without "auto" the command gets a bool, or "offload"."""
    as_bool = (lambda _context, _option, value: _AS_BOOL.get(value, value)) if "auto" not in choices else None
    return click.option(
        "--gradient-checkpointing",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        callback=as_bool,
        help="Recompute each layer in the backward pass, which saves memory; with offload its input waits in host RAM.",
    )


_SEQUENCE_PARALLEL = click.option(
    "--sequence-parallel-size",
    type=COUNT,
    help="Let so many GPUs share each sample (Ulysses); by default as many as its tokens need.",
)


def _framework(text: str) -> Decorator:
    return _choice("--framework", "hf deepspeed", text)


def _method(
    choices: str = "full lora qlora", text: str = "Train all weights, LoRA adapters, or LoRA on a quantized base."
) -> Decorator:
    return _choice("--method", choices, text)


_LORA = (
    click.option("--lora-rank", type=COUNT, default=8, show_default=True, help="Set the rank of the adapters."),
    click.option(
        "--lora-dropout",
        type=float,
        default=0.0,
        metavar="P",
        show_default=True,
        help="Drop inputs of each adapter with this probability, from 0 to below 1.",
    ),
    click.option(
        "--lora-targets",
        metavar="NAMES",
        help="Adapt these modules, such as q_proj,v_proj; by default all linear ones.",
    ),
    click.option(
        "--modules-to-save",
        metavar="NAMES",
        help="Train these embeddings and heads whole beside the adapters, such as embed_tokens,lm_head.",
    ),
)
_STATES = _choice(
    "--states",
    "fp32 bf16",
    "Choose the type of master weights and optimizer states; bf16 halves them and rounds small updates away.",
)
_COLLECTIVES = _choice(
    "--collectives",
    "exact quantized",
    "Choose how ZeRO-3 sends; quantized may take 8 bits for weights and, between nodes, 4 for gradients (ZeRO++).",
)
_EXPERTS = _choice(
    "--experts",
    "zero autoep",
    "Choose who divides a mixture's experts; with autoep each GPU may keep whole ones, which transformers 5.23 "
    "cannot do.",
)
_ATTENTION = click.option(
    "--attention",
    type=click.Choice(["flash", "sdpa", "eager", "triton"]),
    default="sdpa",
    show_default=True,
    help="Choose the attention implementation; triton is FlashAttention's of 2023, brought by the model's code.",
)
_LOSS = _choice(
    "--loss",
    "standard fused in-place chunked tiled",
    "Choose the loss; fused never holds all logits (Liger), in-place writes the gradient over them (unsloth), "
    "chunked upcasts a part at a time (litgpt), tiled never holds all logits (DeepSpeed).",
)
_MLP = _choice(
    "--mlp",
    "whole tiled",
    "Let the feed-forward work on all tokens at once, or on a tile at a time (DeepSpeed's TiledMLP).",
)
_SOFTWARE = (
    _choice(
        "--quantization",
        "nf4 int8 gptq",
        "Choose the format of weights with --method qlora: bitsandbytes' NF4 or int8, or a 4-bit GPTQ checkpoint.",
    ),
    _choice(
        "--kernels",
        "torch liger unsloth",
        "Choose the kernels of norms, rotary embedding and gated activation; Liger's and unsloth's are fused.",
    ),
    click.option(
        "--document-len",
        type=COUNT,
        help="Set the mean length of the documents packed into a sample; by default a sample is one.",
    ),
    click.option(
        "--software",
        metavar="NAME[=VALUE],...",
        help="Say what differs from today's software as the printed commands run it: transformers=4.45, "
        "deepspeed=0.18, torch=1.13, reentrant, autocast, fp32-adapters, fp32-norms, optimizer-step=fused, "
        "expandable-segments=no, pinned-inputs=no.",
    ),
)
_RISK = _choice(
    "--risk",
    "safe balanced bold",
    "Recommend what fits with 97.5 % (safe), 80 % (balanced) or 50 % (bold).",
)
_JOB = (
    click.option(
        "--data",
        metavar="FILE",
        help="Count the rows of this file as train would: duration and cost of training on it are told.",
    ),
    click.option("--samples", metavar="N", help="Set the samples of an epoch, such as 52k, in place of --data."),
    click.option("--tokens", metavar="N", help="Set the tokens trained in all, such as 1B, in place of --data."),
    click.option("--epochs", type=float, metavar="N", help="Train so many times on all samples.  [default: 3]"),
    click.option("--packing", is_flag=True, help="Fill each sample with several rows of --data."),
    click.option(
        "--eval-split",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="Hold out this share of the samples, and evaluate it at every checkpoint.",
    ),
)
_JOB_AND_PRICE = (
    *_JOB,
    click.option("--price", metavar="RATE", help="Set what the machines cost: 2.49/h for each GPU, or $20/node/h."),
)
_MACHINES = (
    RAM,
    click.option(
        "--nvme", metavar="PATH:SIZE", help="Name a folder on an NVMe drive and its free space, such as /nvme:2TB."
    ),
    click.option(
        "--interconnect", metavar="RATE", help="Set the speed between nodes, one way per node, such as 200Gb/s."
    ),
)


def _question(seq_len: Decorator, global_batch: str, micro_batch: Decorator | None = None) -> tuple[Decorator, ...]:
    return (gpus(), *_MACHINES, *_training(seq_len, global_batch, micro_batch))


def _training(seq_len: Decorator, global_batch: str, micro_batch: Decorator | None = None) -> tuple[Decorator, ...]:
    """What is asked whatever the machines."""
    return (
        _method(),
        *_LORA,
        seq_len,
        click.option("--global-batch", type=COUNT, help=global_batch),
        micro_batch or _micro_batch(),
        _precision(),
        _optimizer(),
        _checkpointing("auto", "on", "off", "offload"),
        _SEQUENCE_PARALLEL,
        _EXPERTS,
        _STATES,
        _COLLECTIVES,
        _ATTENTION,
        _LOSS,
        _MLP,
        _RISK,
    )


_TRAINING_QUESTION = (
    *_question(
        _seq_len("the longest sample of the data, within the model's limit"),
        "Set the samples per optimizer step; by default 32, fewer for little data.",
    ),
    OFFLINE,
)

ACCUMULATION = click.option(
    "--accumulation", type=COUNT, help="Fill an `auto` gradient_accumulation_steps.  [default: 1]"
)


def _run(model: Decorator) -> tuple[Decorator, ...]:
    return (
        click.argument("config_file", metavar="DS_CONFIG", type=click.Path(path_type=Path)),
        model,
        _seq_len(),
        _micro_batch("Fill an `auto` micro batch.  [default: 1]"),
        ACCUMULATION,
        _method("full lora", "Train all weights, or LoRA adapters through peft."),
        *_LORA,
        _precision("Fill an `auto` in bf16 or fp16."),
        _checkpointing("on", "off", "offload"),
        _ATTENTION,
        click.option(
            "--software",
            metavar="NAME[=VALUE],...",
            help="Say what the script changes of the software, as for the advice: pinned-inputs=no.",
        ),
        _framework("Say who fills `auto` and builds a ZeRO-3 model in shards: the HF Trainer (hf), or nobody."),
        click.option(
            "--input-shape", metavar="SIZES", help="Set the shape of one sample for FILE.py:FACTORY, such as 3,32,32."
        ),
        OFFLINE,
    )


def run_options(command: Command, *, model_required: bool = True) -> Command:
    """Gives a command the options that say what is run, and hands it their values as `run`: the arguments of `read_run`
    but the cluster.

    model_required: without it `run["model"]` may be None.
    """
    model = click.option(
        "--model",
        required=model_required,
        metavar="MODEL",
        shell_complete=complete_model,
        help="Name the model as for the advice; or FILE.py:FACTORY, a function of yours that returns a module."
        if model_required
        else "Name the model as for the advice; by default the script's arguments name it.",
    )
    return _handed("run", command, _run(model))


def compare_options(command: Command) -> Command:
    """Gives a command the options that a comparison of files and rungs is made with, and hands them over as `with_`."""
    model = click.option(
        "--model",
        metavar="MODEL",
        help="Name a model, as for the advice: then memory and speed are compared too.",
        shell_complete=complete_model,
    )
    spec = click.option(
        "--gpus",
        metavar="SPEC",
        help="Name the GPUs, as for the advice; by default auto.",
        shell_complete=complete_gpus,
    )
    return _handed(
        "with_",
        command,
        (
            model,
            spec,
            *_MACHINES,
            _method(),
            *_LORA,
            _seq_len(),
            _micro_batch("Fill an `auto` micro batch.  [default: 1; for a rung the fastest]"),
            ACCUMULATION,
            _precision("Fill an `auto`, and choose the precision of rungs."),
            _optimizer("Choose the optimizer of rungs, and of a file that names none."),
            _checkpointing("on", "off"),
            _ATTENTION,
            _LOSS,
            _MLP,
            _framework("Say who trains: the HF Trainer, or plain DeepSpeed."),
            *_JOB_AND_PRICE,
            OFFLINE,
        ),
    )


def import_options(command: Command) -> Command:
    """Gives a command what may be said beside a file of another tool, and hands it over as `with_`: arguments of
    `advisor.importers.answer.import_file`; what is unset is the file's."""

    def choice(name: str, *choices: str, text: str) -> Decorator:
        as_bool = (lambda _context, _option, value: _AS_BOOL.get(value, value)) if "on" in choices else None
        return click.option(name, type=click.Choice(choices), callback=as_bool, help=text)

    unset = "by default as the file says"
    return _handed(
        "with_",
        command,
        (
            choice("--format", *IMPORT_FORMATS, text="Name the file's format; by default its content tells it."),
            click.option("--model", metavar="MODEL", help=f"Name the model; {unset}.", shell_complete=complete_model),
            click.option(
                "--gpus",
                metavar="SPEC",
                help="Name the GPUs, as for the advice; how many may be left to the file. By default auto.",
                shell_complete=complete_gpus,
            ),
            *_MACHINES,
            choice("--method", "full", "lora", "qlora", text=f"Choose what is trained; {unset}."),
            click.option("--lora-rank", type=COUNT, help=f"Set the rank of the adapters; {unset}."),
            click.option("--seq-len", type=COUNT, help=f"Set the tokens per sample; {unset}."),
            click.option("--micro-batch", type=COUNT, help=f"Set the samples per GPU and forward pass; {unset}."),
            choice(
                "--gradient-checkpointing",
                "on",
                "off",
                "offload",
                text=f"Recompute layers in the backward pass; {unset}.",
            ),
            click.option(
                "--ds-config",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Read this file in the place of the DeepSpeed configuration that is named.",
            ),
            _RISK,
            OFFLINE,
        ),
    )


def question_options(command: Command) -> Command:
    """Gives a command the options that make up a question, and hands it their values as `question`: keyword arguments
    of `advisor.advise.advise`."""
    options = (
        click.argument("model", metavar="MODEL", shell_complete=complete_model),
        *_question(
            _seq_len(longest=True),
            "Keep exactly so many samples per optimizer step; by default the fastest number is searched.",
            _micro_batch(largest=True),
        ),
        _MODEL_SIZE,
        _framework("Write for the HF Trainer and accelerate, or for plain deepspeed.initialize."),
        *_SOFTWARE,
        *_JOB_AND_PRICE,
        click.option(
            "--threads", type=COUNT, help="Set the host threads of each rank; by default those of the command."
        ),
        OFFLINE,
    )
    return _handed("question", command, options)


def rent_options(command: Command) -> Command:
    """Gives a command the options that make up a question but for the machines, and hands it their values as
    `question`."""
    options = (
        click.argument("model", metavar="MODEL", shell_complete=complete_model),
        *_JOB,
        *_training(
            _seq_len(), "Keep exactly so many samples per optimizer step; machines that do not divide it are out."
        ),
        _framework("Say who trains: the HF Trainer, or plain DeepSpeed."),
        *_SOFTWARE,
        OFFLINE,
    )
    return _handed("question", command, options)


def training_question_options(command: Command) -> Command:
    """The options of `question_options` for a training with data: MODEL is an option, and what is unset follows from
    the data. They reach the command under their own names, so that they can be kept with the training."""
    return _decorated(
        command,
        (
            click.option(
                "--model",
                metavar="MODEL",
                help="Name the model: a folder with config.json, tokenizer and safetensors, or a hub id.",
            ),
            click.option(
                "--data", metavar="FILE", help="Train on the rows of this file: .jsonl, .json, .csv, .tsv or .parquet."
            ),
            *_TRAINING_QUESTION,
        ),
    )


def training_question(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `advise` among a training's options, but for the model."""
    _say_what_has_no_effect(options["method"], "lora_alpha", "merge")
    return {name: options[name] for name in _names(_TRAINING_QUESTION)}


def share_options(picture: str = "", *, force: bool = True) -> Decorator:
    """Gives a command --html, and --plot and --force.

    picture: what --plot draws, "" for no such option; force: False for a command that has the option already.
    """

    report = click.option(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Also write a report: one HTML file with pictures, to be opened and shared.",
    )
    plot = click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE.svg|png",
        help=f"Also write a picture of {picture}.",
    )
    over = click.option("--force", is_flag=True, help="Overwrite files that are there.")
    return lambda command: _decorated(command, [report] + [plot] * bool(picture) + [over] * force)


def output_options(command: Command) -> Command:
    """Gives a command --json, --quiet and --debug, and hands it the `Output` that follows as `output`."""

    @functools.wraps(command)
    def with_output(as_json: bool, quiet: bool, **values: Any) -> int:
        if as_json and quiet:
            raise click.UsageError("--json and --quiet contradict each other; leave one out")
        return command(output=Output("json" if as_json else "quiet" if quiet else "human"), **values)

    return _decorated(
        with_output,
        (
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
            click.option("--quiet", is_flag=True, help="Print nothing: the exit code is the answer."),
            DEBUG,
        ),
    )


def _handed(name: str, command: Command, options: Sequence[Decorator]) -> Command:
    """The command with these options, whose values it gets together as one argument."""
    names = _names(options)

    @functools.wraps(command)
    def grouped(**values: Any) -> int:
        group = {option: values.pop(option) for option in names}
        _say_what_has_no_effect(group["method"])
        return command(**{name: group}, **values)

    return _decorated(grouped, options)


def _names(options: Sequence[Decorator]) -> list[str]:
    """The names under which Click passes these options."""
    bare: Any = _decorated(lambda: 0, options)
    return [parameter.name for parameter in bare.__click_params__]


def _decorated(command: Command, options: Sequence[Decorator]) -> Command:
    for decorate in reversed(options):
        command = decorate(command)
    return command


def _say_what_has_no_effect(method: str, *further: str) -> None:
    """Tell on stderr which of LoRA's options, and `further` ones, were given although nothing is adapted, and a format
    of weights that stay as they are."""
    adapters = ("lora_rank", "lora_dropout", "lora_targets", "modules_to_save", *further) if method == "full" else ()
    for name in (*adapters, *(("quantization",) if method != "qlora" else ())):
        say_without_effect(name, f"with --method {method}")


def say_without_effect(name: str, where: str) -> None:
    """Tell on stderr that an option has no effect there, if it was given."""
    if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
        click.echo(f"ds-advise: --{name.replace('_', '-')} has no effect {where}", err=True)
