"""A dry run of the user's command: what the script trains, as it was observed, and its memory and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path

from ...ds_configs.conversions import is_true
from ...ds_configs.launch_commands import shell_line
from ...ds_configs.read import offload_device_in, precision_in
from ...probes.command.observed import Observed, ObservedEngine
from ..answer.command_answer import CommandAnswer
from ..command.edited import EditedCommand
from ..document import blocks as doc
from ..text.units import capitalised, ended, gib, memory_size
from .dry_run import dry_run_document

_ENDINGS = {
    "repeated": "step {steps} repeats the one before it, and so do all later ones",
    "steps": "{steps} steps were run; none repeats the one before it",
    "script": "the script ended by itself after {steps} steps",
}


_AMPLE = 0.5
"""Share of the GPU's memory below which nobody looks for less."""


def command_document(
    answer: CommandAnswer, *, explain: bool = False, following: Sequence[doc.Block] = ()
) -> doc.Document:
    """Return the dry run of a command. following: the next command."""
    blocks = [doc.Heading("The training that was observed", "training"), *_training(answer)]
    name = "the engine's configuration"
    remarks = remark_sentences(answer.observed.remarks)
    return dry_run_document(answer, name, explain=explain, following=following, remarks=remarks, training=blocks)


def remark_sentences(remarks: Iterable[str]) -> list[doc.Block]:
    """Return how the observed training differs from the command and its configuration."""
    return [doc.Sentence(ended(capitalised(remark)), "yellow") for remark in remarks]


def _training(answer: CommandAnswer) -> Iterator[doc.Block]:
    observed = answer.observed
    rows = [doc.Row([name, text]) for name, text in _facts(answer) if text]
    yield doc.Table(["", ""], rows)
    if answer.engine.checkpointing and not observed.in_training_mode:
        text = (
            "Gradient checkpointing is enabled but does not run: the model is in evaluation mode. Call model.train()."
        )
        yield doc.Sentence(text, "yellow")
    for number in observed.invented:
        if number.decides:
            place = f"{Path(number.file).name}:{number.line}"
            taken = "true" if number.number else "false"
            text = f"{place} has a condition on values of weights, which are unknown: it was taken as {taken}."
            yield doc.Sentence(text, "yellow")
    yield from precision_sentence(answer)
    gpu_bytes = answer.run.cluster.gpu.memory_bytes
    has_room = answer.fit.fits and answer.required_device_bytes_per_gpu < _AMPLE * gpu_bytes
    change = None if has_room else answer.free_change if answer.fit.fits else answer.best_change
    if change is not None:
        yield doc.Gap()
        suffices = answer.fit.fits or answer.required_device_bytes_per_gpu - change.saved_bytes <= gpu_bytes
        alone = "" if suffices else " Alone it does not suffice."
        yield doc.Sentence(f"What would help most: {change.what}, up to {gib(change.saved_bytes)} GiB less.{alone}")


def precision_sentence(answer: CommandAnswer) -> Iterator[doc.Block]:
    """Yield what to write for a training in bf16 if it is in fp32 without need."""
    if option := _half_precision(answer):
        yield doc.Sentence(f"It trains in fp32, and the GPU computes in bf16: {option}.", "yellow")


def _half_precision(answer: CommandAnswer) -> str:
    """Return what to write for the training of a Trainer or of accelerate in bf16 if it is in fp32 without need; ""
    otherwise. Adapters in fp32 leave the computation to the frozen weights."""
    engine, arguments = answer.engine, answer.arguments
    in_autocast = is_true((engine.config.get("torch_autocast") or {}).get("enabled"))
    is_whole = 2 * engine.trainable_parameters > engine.parameters and set(engine.trainable_dtypes) == {"float32"}
    gpu = answer.run.cluster.gpu
    by_accelerate = not arguments.trainer and answer.training.framework != "deepspeed"
    if not (arguments.trainer or by_accelerate) or not is_whole or in_autocast or gpu.is_cpu or not gpu.has_bf16:
        return ""
    if precision_in(engine.config) != "fp32":
        return ""
    if by_accelerate:
        command = EditedCommand(answer.words, Path.cwd(), arguments.options)
        if command.set_for_accelerate("mixed_precision", "bf16"):
            return f"start `{shell_line(command.words)}`"
        return 'set mixed_precision="bf16" in its Accelerator'
    has_option = any("--bf16" in option.flags for option in arguments.options)
    return "pass --bf16" if has_option else "set bf16=True in its TrainingArguments"


def _facts(answer: CommandAnswer) -> Iterator[tuple[str, str]]:
    result, observed, engine = answer.result, answer.observed, answer.engine
    yield "model", _model(engine)
    yield "optimizer", " ".join(filter(None, (engine.optimizer, engine.implementation))) or "none"
    stage = "no ZeRO" if not engine.zero_stage else f"ZeRO stage {engine.zero_stage}"
    if (device := offload_device_in(engine.config)) != "none":
        stage += f", optimizer on {device}"
    yield "engine", stage
    tensors = ((f"batch[{name}]" if name.isdigit() else name, shape) for name, shape in _largest(observed))
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in tensors)
    training = answer.training
    fed = f"{training.rows}x{training.seq_len} tokens" if training.rows and training.seq_len else ""
    yield "tensors", shapes or fed  # batches that come from no loader
    yield "lengths", _lengths(observed) if answer.training.seq_len else ""
    yield "checkpointing", "on" if observed.recomputes else "off"
    yield "attention", _attention(answer)
    yield "logits", f"all of them in memory: {memory_size(observed.logits_bytes)}" if observed.logits_bytes else ""
    on_gpu, on_host = memory_size(result.peak_loading_gpu_bytes), memory_size(result.peak_loading_host_bytes)
    yield "loading", f"peak {on_gpu} on the GPU, {on_host} of host memory per rank"
    others = [f"{each.model} ({_count(each.parameters)}, ZeRO {each.zero_stage})" for each in observed.engines[1:]]
    yield "other engines", ", ".join(others)
    cut = ", ".join(f"{rows:,} ({name})" for name, rows in observed.rows.items())
    yield "rows", f"the first {observed.rows_read:,} of {cut}" if cut else ""
    hint = " (--longest trains the longest batch)" if observed.ended == "steps" and _varies(observed) else ""
    yield "end", _ENDINGS[observed.ended].format(steps=observed.steps) + hint
    yield "evaluation", "its first batches only" if observed.evaluation_cut else ""


def _attention(answer: CommandAnswer) -> str:
    """Return transformers' name of the attention with the kernels that ran: `sdpa (flash kernel)`."""
    kernels, name = " and ".join(answer.observed.attention), answer.training.attention
    if not kernels:
        return "math (all scores in memory)" if name else ""
    return f"{name} ({kernels} kernel{'s' * (len(answer.observed.attention) > 1)})" if name else kernels


def _model(engine: ObservedEngine) -> str:
    dtypes = " and ".join(engine.trainable_dtypes)
    trained = _count(engine.trainable_parameters)
    return f"{engine.model}, {_count(engine.parameters)} parameters, {trained} trained in {dtypes}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def _largest(observed: Observed) -> list[tuple[str, tuple[int, ...]]]:
    """The largest tensors of a batch."""

    return sorted(observed.batch_shapes.items(), key=lambda item: prod(item[1]), reverse=True)[:3]


def _varies(observed: Observed) -> bool:
    return len(set(observed.batch_lengths)) > 1


def _lengths(observed: Observed) -> str:
    lengths = observed.batch_lengths
    if not lengths:
        return ""
    if observed.searched_batches:
        return f"{max(lengths)} tokens, the longest of {observed.searched_batches:,} batches"
    if not _varies(observed):
        return f"{max(lengths)} tokens in every batch"
    return f"{min(lengths)} to {max(lengths)} tokens"
