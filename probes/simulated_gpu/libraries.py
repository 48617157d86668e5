"""Replacements in accelerate, transformers, TRL and torch.distributed for a script on the simulated cluster."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...ds_configs.launch_commands import accelerate_variables
from . import cuda

_HF = ("trl", "transformers", "accelerate", "peft", "datasets", "deepspeed")


def install_distributed() -> None:
    """Collectives of objects, barriers and groups that a script creates. Every rank has this rank's objects."""

    def all_gather_object(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * len(objects)

    def gather_object(value: Any, objects: Any = None, dst: int = 0, group: Any = None, **_: Any) -> None:
        if objects is not None:
            objects[:] = [value] * len(objects)

    def scatter_object_list(output: list[Any], objects: Any, src: int = 0, group: Any = None, **_: Any) -> None:
        output[0] = objects[0] if objects else None

    new_group: Any = dist.new_group
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    replaced: dict[str, Any] = {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        "broadcast_object_list": nothing,
        "barrier": nothing,
        "monitored_barrier": nothing,
    }
    own: dict[str, Any] = {
        # The simulated group exists already.
        "init_process_group": nothing,
        "destroy_process_group": nothing,
        "new_group": lambda ranks=None, *_, **__: new_group(ranks),
        "get_backend": lambda *_, **__: "nccl",
    }
    implementation: Any = importlib.import_module("torch.distributed.distributed_c10d")
    for module in (dist, implementation):
        for name, function in (replaced | own).items():
            setattr(module, name, function)
    for path in ("deepspeed.comm.comm", "deepspeed.comm"):
        module = importlib.import_module(path)
        for name, function in replaced.items():
            if hasattr(module, name):
                setattr(module, name, function)


def install_accelerate(world_size: int) -> None:
    """accelerate on the simulated GPU; random states are not exchanged."""
    state: Any = importlib.import_module("accelerate.state")
    data_loader: Any = importlib.import_module("accelerate.data_loader")
    operations: Any = importlib.import_module("accelerate.utils.operations")
    utils: Any = importlib.import_module("accelerate.utils")
    accelerate: Any = importlib.import_module("accelerate")

    def set_device(own: Any) -> None:
        own.device = cuda.gpu_number(0)

    state.PartialState._prepare_backend = lambda *_, **__: ("fake", accelerate.DistributedType.MULTI_GPU)
    state.PartialState.set_device = set_device
    data_loader.synchronize_rng_states = lambda *_, **__: None

    def gather_object(value: Any) -> Any:
        return list(value) * world_size if isinstance(value, list) else [value] * world_size

    for module in (operations, utils):
        module.gather_object = gather_object
        module.broadcast_object_list = lambda objects, from_process=0: objects
    replace_in_loaded("gather_object", gather_object)
    replace_in_loaded("broadcast_object_list", operations.broadcast_object_list)
    for name in ("is_torch_bf16_gpu_available", "is_bf16_available", "is_torch_tf32_available"):
        replace_in_loaded(name, lambda *_, **__: True)


def replace_in_loaded(name: str, function: Any) -> None:
    """Replace a function where `from ... import` has bound it."""
    for path, module in list(sys.modules.items()):
        if path.split(".")[0] in _HF and name in getattr(module, "__dict__", {}):
            setattr(module, name, function)


def install_transformers(*, phased: Callable[..., Any], is_finished: Callable[[], bool]) -> None:
    """The Trainer ends as if it had no more steps once the training has been seen; before, it evaluates once where the
    script evaluates. Generation, evaluation and saving are phases.

    phased: wraps a function of the second argument as the phase of the first.
    """
    transformers: Any = importlib.import_module("transformers")

    class Stop(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is imported at run time
        def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop |= is_finished()
            return control

    trainer: Any = transformers.Trainer
    init = trainer.__init__

    @functools.wraps(init)
    def with_stop(own: Any, *arguments: Any, **options: Any) -> None:
        init(own, *arguments, **options)
        own.add_callback(Stop())

    train = trainer.train

    @functools.wraps(train)
    def trained(own: Any, *arguments: Any, **options: Any) -> Any:
        result = train(own, *arguments, **options)
        strategy = getattr(own.args.eval_strategy, "value", own.args.eval_strategy)
        if strategy != "no" and own.eval_dataset is not None and not own.__dict__.get("_was_evaluated"):
            own.evaluate()
        return result

    evaluation_loop = trainer.evaluation_loop

    @functools.wraps(evaluation_loop)
    def evaluated(own: Any, *arguments: Any, **options: Any) -> Any:
        own._was_evaluated = True
        return evaluation_loop(own, *arguments, **options)

    trainer.__init__, trainer.train = with_stop, trained
    trainer.evaluation_loop = phased("evaluation", evaluated)
    trainer._save = phased("saving", trainer._save)
    model: Any = transformers.PreTrainedModel
    generation: Any = importlib.import_module("transformers.generation.utils").GenerationMixin
    generation.generate = phased("generation", generation.generate)

    def save_pretrained(own: Any, directory: Any, *_: Any, **__: Any) -> None:
        own.config.save_pretrained(directory)

    model.save_pretrained = phased("saving", save_pretrained)


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def give_config(file: Path | None) -> None:
    """A DeepSpeed configuration for a script that names none: by accelerate's variables, which the Trainer reads too,
    and as the default of `deepspeed.initialize`."""
    deepspeed: Any = importlib.import_module("deepspeed")
    if file is None:
        return
    os.environ |= accelerate_variables(str(file))
    initialize = deepspeed.initialize
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def with_config(*arguments: Any, **options: Any) -> Any:
        given = signature.bind_partial(*arguments, **options).arguments
        named = getattr(given.get("args"), "deepspeed_config", None)
        if not (named or given.get("config") or given.get("config_params")):
            options["config"] = str(file)
        return initialize(*arguments, **options)

    deepspeed.initialize = with_config
