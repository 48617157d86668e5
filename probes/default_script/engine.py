"""Train a module of your own, or a transformers model, with `deepspeed.initialize` and a loop.

    deepspeed engine.py --deepspeed_config ds_config.json --module net.py:build --max_length 2048
    deepspeed engine.py --deepspeed_config ds_config.json --model_name_or_path MODEL --max_length 2048

FILE.py:FACTORY returns the module. The file may define `make_batch(micro_batch_size, seq_len)`, whose tensors are the
arguments of `forward` (a dict by name, a tuple by position), and `loss_fn(output, batch)`. Put your own data in place
of `make_batch`. A transformers model is loaded by `trainer.py`, with its options, and trained on random rows; its
options of adapters and frozen parts also apply to a module.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

CHECKPOINTING = ("gradient_checkpointing_enable", "set_grad_checkpointing", "enable_gradient_checkpointing")
"""Methods that enable gradient checkpointing: those of transformers, timm, diffusers."""


class UnusableModelError(ValueError):
    """The module cannot be built, or batches for it cannot be made."""

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def main() -> None:
    import deepspeed

    options, others = _parser().parse_known_args()
    config = json.loads(Path(options.deepspeed_config).read_text())
    torch.manual_seed(0)  # on all ranks: GPUs that split layers need the same samples
    deepspeed.init_distributed()
    device = torch.device(deepspeed.get_accelerator().current_device_name())
    forward = _forward
    if options.module:
        model, file = built(options.module)
        if others:  # adapters and frozen parts
            own, trainer = _trainer_options(others, options)
            model = trainer.adapted(model, own, {} if options.gradient_checkpointing else None)
        if options.gradient_checkpointing:
            enable_checkpointing(model)
        inputs = parse_inputs(options.input_shape, options.input_dtype)
        make_batch, loss_fn = batches(model, file, inputs, _dtype(config), device), load_loss(file)
        loader = partial(_batches_of_module, make_batch, options)
        engine = _engine(config, model, options, None)
    else:
        own, trainer = _trainer_options(others, options)
        sharded = _sharded_while_built(config, own)
        model = trainer.load_model(own, checkpointing={} if options.gradient_checkpointing else None)
        if options.gradient_checkpointing:
            model.activation_checkpointing_enable(
                offload=True
            ) if options.cpu_checkpointing else model.gradient_checkpointing_enable()
        del sharded
        model.config.use_cache = False
        if options.use_liger_kernel:
            liger = import_module("liger_kernel.transformers")
            base = model.get_base_model() if own.lora_r else model
            liger._apply_liger_kernel_to_instance(model=base, **json.loads(options.liger_kernel_config))
        trainer.change_loss(model, own)
        groups = _sequence_groups(model, own, config)
        engine = _engine(config, model, options, groups)
        loss_fn = load_loss(None) if groups is None else partial(_mean_loss, groups)
        if trainer.embeds(model):
            forward, loss_fn = trainer.pair_loss, lambda loss, _pairs: loss
        loader = partial(_rows, trainer, own, options, engine, groups)
    engine.train()
    for batch in loader(engine.train_micro_batch_size_per_gpu()):
        output = forward(engine, batch)
        loss = loss_fn(output, batch)
        engine.backward(loss)
        engine.step()
    if options.eval_batch_size:
        engine.eval()
        with torch.no_grad():
            for batch in loader(options.eval_batch_size):
                forward(engine, batch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the deepspeed launcher")
    parser.add_argument("--module", metavar="FILE.py:FACTORY")
    parser.add_argument("--input_shape", help="shape of one sample, such as 3,32,32 or 3,32,32+scalar")
    parser.add_argument("--input_dtype", default="float", help="a type of torch, float for the training precision")
    parser.add_argument("--max_length", type=int, default=2048)
    parser.add_argument("--max_steps", type=int, default=20)
    parser.add_argument("--eval_batch_size", type=int, default=0)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--cpu_checkpointing", action="store_true", help="keep the inputs of layers on the host")
    parser.add_argument(
        "--adam",
        choices=("foreach", "fused", "loop"),
        default="foreach",
        help="without an optimizer in the configuration",
    )
    parser.add_argument("--use_liger_kernel", action="store_true")
    parser.add_argument("--liger_kernel_config", default="{}", help="a JSON object")
    return parser


def _trainer_options(words: list[str], options: Any) -> tuple[Any, Any]:
    """(the options of `trainer.py` among the words, its module)."""
    trainer: Any = import_module("trainer")
    module = ["--model_name_or_path", options.module] if options.module else []
    own, rest = trainer.HfArgumentParser(trainer.ScriptArguments).parse_args_into_dataclasses(
        [*words, *module, "--max_length", str(options.max_length)], return_remaining_strings=True
    )
    if rest:
        raise SystemExit(f"unknown arguments: {rest}")
    return own, trainer


def _sharded_while_built(config: dict[str, Any], own: Any) -> Any:
    """The object that lets transformers build the model under `zero.Init` while it exists; None where the engine shards
    or splits the whole model: adapters would keep peft's type, and zero.Init counts every rank's samples."""
    shares = own.sequence_parallel_size > 1 or config.get("tensor_parallel")
    if config.get("zero_optimization", {}).get("stage") != 3 or own.lora_r or shares:
        return None
    return import_module("transformers.integrations").HfDeepSpeedConfig(config)


def _engine(config: dict[str, Any], model: torch.nn.Module, options: Any, groups: Any) -> Any:
    import deepspeed

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = None
    if not config.get("optimizer"):
        if (config.get("zero_optimization", {}).get("offload_optimizer") or {}).get("device", "none") != "none":
            optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(trained, lr=1e-5)
        else:
            steps = {"foreach": options.adam == "foreach", "fused": options.adam == "fused"}
            optimizer = torch.optim.AdamW(trained, lr=1e-5, **steps)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=optimizer, config=config, mpu=groups
    )
    return engine


def _forward(engine: Any, batch: Any) -> Any:
    return engine(**batch) if isinstance(batch, dict) else engine(*batch)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if config.get(name, {}).get("enabled"):
            return dtype
    return torch.float32


# ---------------------------------------------------------------------- a module


def built(model: str) -> tuple[torch.nn.Module, ModuleType]:
    """The module of FILE.py:FUNCTION, and the file. Raises UnusableModelError if the function is missing or returns no
    module."""
    path, _, function = model.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))  # the file may import modules of its folder
    # Not in sys.modules: the file may be named like a library.
    spec.loader.exec_module(file)
    factory = getattr(file, function, None)
    if not callable(factory):
        raise UnusableModelError(f"{path} has no function {function!r}", fix="name one that returns a torch.nn.Module")
    made = factory()
    if not isinstance(made, torch.nn.Module):
        raise UnusableModelError(
            f"{function} of {path} returned a {type(made).__name__}", fix="let it return a torch.nn.Module"
        )
    return made, file


def enable_checkpointing(model: Any) -> str:
    """Enable gradient checkpointing. Returns the name of the method used; "" if the module has none."""
    for name in CHECKPOINTING:
        if callable(enable := getattr(model, name, None)):
            try:
                enable()
            except ValueError:  # transformers and diffusers: this class does not support it
                return ""
            return name
    return ""


def parse_inputs(shapes: str | None, types: str) -> list[tuple[tuple[int, ...], str]]:
    """Shape of one sample and type of each input, from `3,32,32+scalar` and `float+int64`."""
    parts = shapes.split("+") if shapes else []
    kinds = types.split("+") * (1 if "+" in types else len(parts))
    sizes = [() if part == "scalar" else tuple(map(int, part.split(","))) for part in parts]
    return list(zip(sizes, kinds, strict=True)) if parts else []


def batches(
    model: torch.nn.Module,
    file: ModuleType,
    inputs: Sequence[tuple[tuple[int, ...], str]],
    dtype: torch.dtype,
    device: Any,
) -> Callable[[int, int], Any]:
    """Batches by number of samples and sequence length: from the file's `make_batch`, or of zeros, from `inputs`. They
    raise UnusableModelError if they are not the arguments of the module's `forward`."""
    own_function = getattr(file, "make_batch", None)

    def make_batch(batch: int, seq_len: int) -> Any:
        if own_function is not None:
            made = on_device(own_function(batch, seq_len), dtype, device)
            _check_arguments(model, made, "return all of its arguments from make_batch, as a tuple or a dict")
            return made
        if not inputs:
            raise UnusableModelError(
                f"{file.__file__} defines no make_batch, so the shape of one sample is needed",
                fix=_HOW_TO_GIVE_INPUTS,
            )
        types = [dtype if name == "float" else getattr(torch, name) for _, name in inputs]
        zeros = tuple(
            torch.zeros((batch, *shape), dtype=kind, device=device)
            for (shape, _), kind in zip(inputs, types, strict=True)
        )
        _check_arguments(model, zeros, _HOW_TO_GIVE_INPUTS)
        return zeros

    return make_batch


_HOW_TO_GIVE_INPUTS = (
    "pass --input-shape 3,32,32 for one input, --input-shape 3,32,32+scalar --input-dtype float+int64 for two, "
    "or define make_batch(micro_batch_size, seq_len)"
)


def _check_arguments(model: torch.nn.Module, batch: Any, fix: str) -> None:
    """Raise UnusableModelError if a batch is not the arguments of the module's `forward`."""
    positional, named = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # of a function without one, such as one in C
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise UnusableModelError(f"forward of {type(model).__name__} takes {names}: {error}", fix=fix) from None


def on_device(value: Any, dtype: torch.dtype, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, Mapping):
        return {key: on_device(item, dtype, device) for key, item in value.items()}
    return tuple(on_device(item, dtype, device) for item in value) if isinstance(value, list | tuple) else value


def own_loss(output: Any) -> tuple[Any, str]:
    """(an output's own loss, else its first tensor; the part of the output that it is: ".loss", "[0]", or "" for the
    output itself)."""
    if getattr(output, "loss", None) is not None:
        return output.loss, ".loss"
    return (output, "") if isinstance(output, torch.Tensor) else (output[0], "[0]")


def load_loss(file: object) -> Callable[[Any, Any], Any]:
    """The file's `loss_fn(output, batch)`; by default the output's own loss, or the mean of its first tensor."""

    def default(output: Any, _batch: Any) -> Any:
        tensor, part = own_loss(output)
        return tensor if part == ".loss" else tensor.float().mean()

    loss_fn: Callable[[Any, Any], Any] = getattr(file, "loss_fn", None) or default
    return loss_fn


def _batches_of_module(make_batch: Callable[[int, int], Any], options: Any, size: int) -> Iterator[Any]:
    steps: Any = range(options.max_steps)  # in place of your data set
    for _ in torch.utils.data.DataLoader(steps, batch_size=None):
        yield make_batch(size, options.max_length)


# ---------------------------------------------------------------------- a transformers model


def _rows(trainer: Any, own: Any, options: Any, engine: Any, groups: Any, size: int) -> Iterator[Any]:
    """Random rows; with sequence parallelism each rank gets its part of the tokens."""
    module = engine.module.get_base_model() if own.lora_r else engine.module
    steps = options.max_steps * engine.gradient_accumulation_steps()
    loader: Any = torch.utils.data.DataLoader(trainer.RandomRows(module, own, size * steps), batch_size=size)
    if groups is not None:
        loader = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPDataLoaderAdapter(
            loader,
            sp_rank=groups.get_sequence_parallel_rank(),
            sp_group=groups.get_sequence_parallel_group(),
            sp_world_size=own.sequence_parallel_size,
            device=engine.device,
        )
    for batch in loader:
        moved = {name: value.to(engine.device) for name, value in batch.items()}
        if groups is not None:
            moved["labels"] = moved["shift_labels"]
        yield {
            name: value.to(next(module.parameters()).dtype) if value.is_floating_point() else value
            for name, value in moved.items()
        }


def _sequence_groups(model: Any, own: Any, config: Mapping[str, Any]) -> Any:
    """DeepSpeed's `mpu` of Ulysses; None without sequence parallelism. It must be made before the engine."""
    if own.sequence_parallel_size == 1:
        return None
    ulysses = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPAttentionHF
    return ulysses.register_with_transformers(
        model,
        core_attn_implementation=model.config._attn_implementation,
        sequence_parallel_size=own.sequence_parallel_size,
        micro_batch_size=config["train_micro_batch_size_per_gpu"],
        seq_length_is_variable=True,
    )


def _mean_loss(groups: Any, output: Any, _batch: Any) -> Any:
    """The mean of the loss over the ranks that share the samples, which all have the same number of labels."""
    losses = import_module("torch.distributed.nn.functional").all_gather(
        output.loss, group=groups.get_sequence_parallel_group()
    )
    return torch.stack(losses).mean()


if __name__ == "__main__":
    main()
