"""The weights of a DeepSpeed checkpoint as a Hugging Face model.

DeepSpeed's own `zero_to_fp32` merges the weights, one tensor at a time. A checkpoint is a pickle: if it names a class
outside `_KNOWN`, it is rejected before loading.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ..estimators.errors import ConfigFileError
from ..estimators.workload import TORCH_DTYPES, Precision
from .checkpoint_class import own_tensors
from .checkpoint_contents import CheckpointContents, json_object
from .checkpoint_layout import CHECKSUMS, has_adapters

_KNOWN = frozenset(
    (
        "argparse.Namespace",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    )
)
"""Classes in DeepSpeed's states (0.19.8 runtime/engine.py, runtime/zero/stage_1_and_2.py, stage3.py), in addition to
those that `torch.load` accepts with `weights_only`."""

_SHARD_BYTES = 5 * 10**9
"""Maximum size of a weights file, as in `save_pretrained`."""

_COUNTED_AT_ONCE = 2**22
"""Values that are examined at once, so that their copies add nothing to the peak RAM."""

_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece")
"""Beginnings of the names of vocabularies (transformers 5.24 `vocab_files_names` of its tokenizers)."""

PROCESS_BYTES = 700 * 2**20
"""RAM of a process that has imported torch and DeepSpeed (measured: torch 2.13, DeepSpeed 0.19.8)."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The cost of extracting the weights from a checkpoint."""

    parameters: int
    """Number of parameters; those under a second name are counted once."""
    repeated: tuple[str, ...]
    """Names of tensors that are written although they are others', because only the model's class knows whether
    loading ties them."""
    dtype: str
    read_bytes: int
    written_bytes: int
    non_finite: int
    """Written values that are NaN or infinite."""
    non_finite_tensor: str
    """The first tensor with such values; "" without."""
    has_config: bool
    """Whether the checkpoint held config.json, which was copied."""
    has_tokenizer: bool
    """Whether it held a tokenizer, which was copied."""
    peak_bytes: int
    """Peak RAM (RSS): the process, plus the largest of these: a file of model states; one file of weights with the two
    fp32 copies of its largest tensor (one of them mapped from the optimizer's files); and at stages 1 and 2, where
    `zero_to_fp32` joins the ranks' partitions, two fp32 copies of all weights, one of which stays during writing. Pages
    of the checkpoint's mapped files, which the kernel can drop, are not counted."""


def write_model(
    contents: CheckpointContents,
    target: Path,
    dtype: Literal["auto"] | Precision,
    *,
    force: bool,
    say: Callable[[str], None],
) -> Conversion:
    """Write the weights of an intact checkpoint as safetensors into a new folder, with the checkpoint's configuration
    and tokenizer. The folder appears when everything is written. ZeRO's fp32 weights are merged; without ZeRO the
    Trainer's safetensors are read.

    dtype: "auto" for the type in config.json. say: prints the needed RAM and the progress. Raises ConfigFileError for a
    checkpoint that `zero_to_fp32` cannot merge or that must not be loaded, and if the folder cannot be written, exists
    and `force` is False, or holds other folders.
    """
    _check_convertible(contents)
    if target.exists() and not force:
        raise ConfigFileError(f"{target} exists", why="nothing is overwritten", fix="pass --force")
    if target.is_dir() and any(path.is_dir() for path in target.iterdir()):
        raise ConfigFileError(
            f"{target} is not replaced",
            why="it holds other folders, such as checkpoints, which --force would delete",
            fix="name another folder",
        )
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would look for a GPU
    folder = Path(contents.folder)
    config = json_object(folder / "config.json")
    tensors = _tensors(contents)
    _keep_own_tensors(folder, tensors, config)
    own = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    conversion = _conversion(contents, tensors, own if dtype == "auto" else TORCH_DTYPES[dtype])
    say(f"needs {conversion.peak_bytes / 2**30:.1f} GiB of RAM")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
            made = Path(temporary) / "model"
            made.mkdir()
            broken = _write_shards(tensors, conversion.dtype, made, say)
            copied = [path for path in folder.iterdir() if _belongs_to_model(path)]
            for path in copied:
                shutil.copy2(path, made / path.name)
            if target.exists():
                shutil.rmtree(target)
            made.rename(target)
    except OSError as error:
        raise ConfigFileError(
            f"{target} cannot be written",
            why=error.strerror or str(error),
            fix="name another folder",
        ) from error
    return replace(
        conversion,
        non_finite=sum(broken.values()),
        non_finite_tensor=next(iter(broken), ""),
        has_config=any(path.name == "config.json" for path in copied),
        has_tokenizer=any(path.name.startswith(_TOKENIZERS) for path in copied),
    )


def _check_convertible(contents: CheckpointContents) -> None:
    reason, fix = "", "name the folder that holds `latest`"
    if contents.has_adapters:
        raise _adapters_error(Path(contents.folder))
    if contents.is_universal:
        reason, fix = "it is a universal checkpoint", "name the checkpoint that it was converted from"
    elif contents.is_model:
        reason = "it holds no states of DeepSpeed; from_pretrained reads its weights"
    elif contents.is_fsdp and not contents.weights:
        reason = "FSDP saved its weights"
        fix = "use accelerate merge-weights for a folder pytorch_model_fsdp_0, or save it with the training script"
    elif contents.model_ranks > 1:
        reason = f"tensor parallelism split its layers over {contents.model_ranks} ranks"
        fix = "load it with the training script, and save it by engine.save_16bit_model"
    if reason:
        raise ConfigFileError(f"{contents.folder} cannot be converted", why=reason, fix=fix)


def _tensors(contents: CheckpointContents) -> dict[str, Any]:
    """The weights, merged under ZeRO, and otherwise mapped into memory: those in the safetensors files, or without
    them in the model states."""
    from safetensors.torch import load_file

    if contents.has_zero_states:
        return _merged(contents)
    if not (safe := [name for name in contents.weights if name.endswith(".safetensors")]):
        import torch

        _check_classes(contents)
        states = Path(contents.folder) / contents.tag / "mp_rank_00_model_states.pt"
        module = torch.load(states, map_location="cpu", mmap=True, weights_only=False)["module"]
        return {name: each for name, each in module.items() if isinstance(each, torch.Tensor)}
    return {name: each for file in safe for name, each in load_file(f"{contents.folder}/{file}").items()}


def _check_classes(contents: CheckpointContents) -> None:
    """Raise ConfigFileError for a checkpoint that names foreign classes."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for path in sorted((Path(contents.folder) / contents.tag).glob("*_states.pt")):
        refused = f"{path.name} is not loaded"
        try:
            foreign = [name for name in get_unsafe_globals_in_checkpoint(str(path)) if name not in _KNOWN]
        except ValueError as error:
            why = "it is not a torch.save archive, so its objects cannot be listed"
            raise ConfigFileError(refused, why=why, fix="take another checkpoint") from error
        if foreign:
            why = f"it refers to {foreign[0]}, whose code would run"
            raise ConfigFileError(refused, why=why, fix="convert it with the training script")


def _merged(contents: CheckpointContents) -> dict[str, Any]:
    """The fp32 weights, each merged on access. Raises ConfigFileError for a checkpoint that cannot be merged."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    _check_classes(contents)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            found: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(
                contents.folder, contents.tag, lazy_mode=True
            )
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise ConfigFileError(
            f"{contents.folder} cannot be converted",
            why=str(error)[:300],
            fix="take another checkpoint",
        ) from error
    return found


def _keep_own_tensors(folder: Path, tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Remove aliases of tied weights. Raises ConfigFileError unless names and shapes are those of the model's class."""
    if has_adapters(tensors):
        raise _adapters_error(folder)
    own = own_tensors(config)
    if own is None:
        return
    for name in [name for name in tensors if name not in own]:
        del tensors[name]
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [
        f"{name} is {shapes.get(name, 'missing')}, and {shape} in the model"
        for name, shape in own.items()
        if shapes.get(name) != shape
    ]
    if wrong:
        raise ConfigFileError(
            f"{folder} does not hold the weights of its config.json",
            why=wrong[0] + (f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            fix="put the training's config.json into the folder",
        )


def _adapters_error(folder: Path) -> ConfigFileError:
    return ConfigFileError(
        f"{folder} holds LoRA adapters",
        why="peft saves them as adapter_model.safetensors",
        fix=f"use that file, or merge it into its model: {merge_command(str(folder))}",
    )


def merge_command(folder: str) -> str:
    """The command that merges the adapters that peft saved in a folder into their model."""
    code = (
        "from peft import AutoPeftModelForCausalLM as Model; "
        f"Model.from_pretrained({folder!r}).merge_and_unload().save_pretrained('my-model')"
    )
    return f"python -c {shlex.quote(code)}" if '"' in code else f'python -c "{code}"'


def _conversion(contents: CheckpointContents, tensors: Mapping[str, Any], dtype: str) -> Conversion:
    sizes, repeated = [tensor.shape.numel() for tensor in tensors.values()], _repeated(tensors)
    written = (4 if dtype == "float32" else 2) * sum(sizes)
    read, needs = 4 * sum(sizes), [min(written, _SHARD_BYTES) + 8 * max(sizes)]
    if not contents.has_zero_states:
        read = sum(each.nbytes for each in tensors.values())
    else:
        needs += [path.stat().st_size for path in (Path(contents.folder) / contents.tag).glob("*model_states.pt")]
    if contents.joins_partitions:
        needs += [8 * sum(sizes), 4 * sum(sizes) + needs[0]]
    return Conversion(
        parameters=sum(sizes) - sum(tensors[name].shape.numel() for name in repeated),
        repeated=repeated,
        dtype=dtype,
        read_bytes=read,
        written_bytes=written,
        peak_bytes=PROCESS_BYTES + max(needs),
        non_finite=0,
        non_finite_tensor="",
        has_config=False,
        has_tokenizer=False,
    )


def _repeated(tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of tensors that are earlier ones: the same object, or the same memory."""
    kept, repeated = set[object](), list[str]()
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape) if hasattr(tensor, "data_ptr") else id(tensor)
        if place in kept and tensor.shape.numel():
            repeated.append(name)
        kept.add(place)
    return tuple(repeated)


def _write_shards(
    tensors: Mapping[str, Any], dtype_name: str, folder: Path, say: Callable[[str], None]
) -> dict[str, int]:
    """Write the tensors, and return the number of values that are NaN or infinite by tensor."""
    import torch
    from deepspeed.utils.zero_to_fp32 import to_torch_tensor
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    dtype = getattr(torch, dtype_name)
    with torch.device("meta"):
        empty = to_torch_tensor(tensors, return_empty_tensor=True, dtype=dtype)
    split = split_torch_state_dict_into_shards(
        empty, filename_pattern="model{suffix}.safetensors", max_shard_size=_SHARD_BYTES
    )
    broken: dict[str, int] = {}
    for name, names in split.filename_to_tensors.items():
        say(f"writing {name} ...")
        shard: dict[str, Any] = {}
        kept = set[int]()
        for each in names:
            tensor = to_torch_tensor({each: tensors[each]}, dtype=dtype)[each]
            if tensor.data_ptr() in kept:
                shard[each] = tensor.clone()  # safetensors refuses tied weights, known only by the model's class
                continue
            kept.add(tensor.data_ptr())
            shard[each] = tensor
            parts = tensor.flatten().split(_COUNTED_AT_ONCE)
            if wrong := sum(int((~torch.isfinite(part)).sum()) for part in parts):
                broken[each] = wrong
        save_file(shard, folder / name, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return broken


def _belongs_to_model(path: Path) -> bool:
    """Whether a file is part of the configuration or the tokenizer, and not training state, weights or code."""
    own = (CHECKSUMS, "trainer_state.json", "latest")
    return (
        path.is_file()
        and path.suffix in (".json", ".jinja", ".model", ".txt")
        and path.name not in own
        and not path.name.endswith(".index.json")
    )
