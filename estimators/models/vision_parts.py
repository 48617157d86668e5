"""Options of a vision-language model: images per sample, and frozen parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ..errors import WorkloadError
from ..workload import Workload
from .lora import adapters
from .model_shape import Block, ModelShape


@lru_cache(maxsize=64)
def apply_images(model: ModelShape, images: int | None, max_pixels: int | None) -> ModelShape:
    """Return the model for samples with `images` images.

    An image of at most `max_pixels` becomes t = max_pixels / (p m)^2 tokens of the sequence and t m^2 patches of the
    tower, where p is the side of a patch and m^2 patches are merged into a token. Sides are rounded to multiples of
    p m, so t is the maximum. An image attends only to itself.

    images, max_pixels: None for the model's defaults.
    Source: transformers 5.23 qwen2_vl/image_processing_qwen2_vl.py `smart_resize`, pixtral/image_processing_pixtral.py.
    Raises WorkloadError for a model without image computation here, and for pixels if every image has one size.
    """
    if images is None and max_pixels is None:
        return model
    size = model.image
    if size is None:
        raise WorkloadError(
            f"samples of {model.name} are predicted without images",
            why="its vision tower has no closed form here" if model.idle_tower else "it has no vision tower",
            fix="leave --images-per-sample and --max-pixels out",
        )
    if max_pixels is not None and not size.resized:
        raise WorkloadError(
            f"every image of {model.name} has {size.pixels} pixels",
            why="its processor resizes all images to one size",
            fix="leave --max-pixels out",
        )
    count, size = 1 if images is None else images, size._replace(pixels=max_pixels or size.pixels)
    if not size.tokens:
        raise WorkloadError(
            f"--max-pixels {max_pixels} is less than one token",
            why=f"{size.unit} x {size.unit} pixels are one token of {model.name}",
            fix=f"pass --max-pixels {256 * size.unit**2} (256 tokens), for instance",
        )
    blocks = tuple(
        # Several images of a sample are one batch of patches, but attention is computed image by image.
        replace(block, attention=block.attention._replace(window=size.patches, chunked=True))
        if block.hidden_size and count > 1 and block.attention.window is None
        else block
        for block in model.blocks
    )
    return replace(model, blocks=blocks, image=size, images=count, encoder_len_fixed=count * size.patches)


def check_image_tokens(model: ModelShape, seq_len: int) -> None:
    """Raise WorkloadError if the images take more tokens than a sample has."""
    if model.image is None or model.images is None or model.images * model.image.tokens <= seq_len:
        return
    tokens = model.images * model.image.tokens
    fix = f"pass --seq-len {-(-tokens // 1024) * 1024} or more"
    if model.image.resized and (fitting := seq_len // model.images):
        fix += f", or --max-pixels {fitting * model.image.unit**2} or less"
    raise WorkloadError(
        f"the images of a sample take {tokens} tokens, more than the {seq_len} of --seq-len",
        why=f"each of them takes {model.image.tokens} tokens of the sequence of {model.name}",
        fix=fix,
    )


_PROJECTOR = r"multi_modal_projector|visual\.merger|visual\.deepstack_merger_list|vision_adapter|connector|aligner"
_TOWER = r"visual|vision_tower|vision_model|vision_encoder|vision_embed_tokens|image_tower"
PATTERNS: Mapping[str, str] = {
    "vision-tower": rf"(?!.*({_PROJECTOR})\b)(.+\.)?({_TOWER})\..+",
    "projector": rf"(.+\.)?({_PROJECTOR})\..+",
    "language-model": rf"(?!.*\b({_PROJECTOR}|{_TOWER})\b).+",
}
"""Regular expression for the full names of each part's modules and parameters, as transformers' classes name them."""


def frozen_pattern(parts: Sequence[str]) -> str:
    """Return a regular expression for the full names of modules and parameters in these parts."""
    return "|".join(PATTERNS[part] for part in parts)


def select_parts(model: ModelShape, parts: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that the model has. Raises WorkloadError for an unknown part."""
    unknown = [part for part in parts if part not in PATTERNS]
    if unknown:
        raise WorkloadError(f"--freeze has no part {unknown[0][:40]!r}", fix=f"name some of {', '.join(PATTERNS)}")
    return tuple(part for part in parts if any(map(re.compile(PATTERNS[part]).fullmatch, _frozen_by_name(model))))


def _frozen_by_name(model: ModelShape) -> dict[str, bool]:
    """Return, for each full tensor name without the layer's number, whether the tensor is frozen."""
    names = {tensor.name: tensor.frozen for tensor in model.outside}
    return names | {f"{block.prefix}.{each.name}": each.frozen for block in model.blocks for each in block.tensors}


def frozen_prefixes(model: ModelShape) -> tuple[str, ...]:
    """Return the shortest name prefixes, up to a dot, that match frozen tensors and no other tensor."""
    names = _frozen_by_name(model) if model.has_frozen else {}
    others = [name for name, is_frozen in names.items() if not is_frozen]
    found: list[str] = []
    for name in (name for name, is_frozen in names.items() if is_frozen and not name.startswith(tuple(found))):
        parts = name.split(".")
        begins = (".".join(parts[:end]) + "." for end in range(1, len(parts)))
        # The shortest prefix covers later modules of the part too, which FSDP and peft match by name.
        found.append(next((each for each in begins if not any(other.startswith(each) for other in others)), name))
    return tuple(found)


@lru_cache(maxsize=64)
def freeze_parts(model: ModelShape, parts: tuple[str, ...]) -> ModelShape:
    """Return the model with the tensors of these parts frozen. Raises WorkloadError if nothing would train."""
    if not parts:
        return model
    matches = re.compile(frozen_pattern(parts)).fullmatch
    marked = freeze_tensors(model, lambda name: bool(matches(name)))
    if all(tensor.frozen or tensor.role == "tower" for tensor, _ in marked.tensor_counts):
        raise WorkloadError(
            f"no part of {model.name} is trained",
            why="--freeze names all parts that samples pass through",
            fix="leave a part out of --freeze",
        )
    return marked


def freeze_tensors(model: ModelShape, is_frozen: Callable[[str], bool]) -> ModelShape:
    """Return the model with those tensors frozen whose full name, without the number of the layer, `is_frozen`."""
    return replace(
        model,
        outside=tuple(tensor._replace(frozen=is_frozen(tensor.name)) for tensor in model.outside),
        blocks=tuple(
            replace(
                block,
                tensors=tuple(
                    tensor._replace(frozen=is_frozen(f"{block.prefix}.{tensor.name}")) for tensor in block.tensors
                ),
            )
            for block in model.blocks
        ),
    )


def is_tower(block: Block) -> bool:
    """Return whether these are the layers of a vision tower, which has a separate stream."""
    return bool(block.hidden_size or block.tokens)


def trains(model: ModelShape, block: Block, workload: Workload) -> bool:
    """Return whether a layer has a weight or an adapter that trains."""
    if workload.method == "full":
        return not all(tensor.frozen for tensor in block.tensors)
    lora = adapters(model, workload)
    return any(lora.adapter_rank(tensor) for tensor in block.tensors)


def trains_projector(model: ModelShape, workload: Workload) -> bool:
    """Return whether the projector after a vision tower trains, or has adapters."""
    in_projector, lora = re.compile(PATTERNS["projector"]).fullmatch, adapters(model, workload)
    projector = [tensor for tensor in model.outside if in_projector(tensor.name) and not tensor.frozen]
    return any(workload.method == "full" or lora.adapter_rank(tensor) for tensor in projector)


def has_backward(model: ModelShape, block: Block, workload: Workload, *, checkpointing: bool) -> bool:
    """Return whether a layer has a backward pass. Layers of a frozen vision tower have none, unless checkpointing makes
    the output of its embedding require a gradient (transformers 5.23 modeling_utils.py
    `gradient_checkpointing_enable`, `enable_input_require_grads`)."""
    if not is_tower(block) or any(trains(model, each, workload) for each in model.blocks if is_tower(each)):
        return True
    return checkpointing and workload.software.transformers >= (5, 0)
