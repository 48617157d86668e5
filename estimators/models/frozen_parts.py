"""Frozen parts of a vision-language model: its vision tower, the projector behind it, its language model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ..errors import WorkloadError
from ..phrase import phrase
from ..workload import Workload
from .lora import adapters
from .model_shape import Block, ModelShape

_PROJECTOR = r"multi_modal_projector|visual\.merger|visual\.deepstack_merger_list|vision_adapter|connector|aligner"
_TOWER = r"visual|vision_tower|vision_model|vision_encoder|vision_embed_tokens|image_tower"
PATTERNS: Mapping[str, str] = {
    "vision-tower": rf"(?!.*({_PROJECTOR})\b)(.+\.)?({_TOWER})\..+",
    "projector": rf"(.+\.)?({_PROJECTOR})\..+",
    "language-model": rf"(?!.*\b({_PROJECTOR}|{_TOWER})\b).+",
}
"""Whole names of modules and parameters of each part, by the attributes that transformers' classes have for them."""


def frozen_pattern(parts: Sequence[str]) -> str:
    """A regular expression for whole names of modules and parameters in these parts."""
    return "|".join(PATTERNS[part] for part in parts)


def parts_of(model: ModelShape, parts: Sequence[str]) -> tuple[str, ...]:
    """Those of the parts that the model has. Raises WorkloadError for a part of another name."""
    unknown = [part for part in parts if part not in PATTERNS]
    if unknown:
        raise WorkloadError(
            phrase("--freeze has no part {part!r}", part=unknown[0][:40]),
            fix=phrase("name some of {names}", names=", ".join(PATTERNS)),
        )
    return tuple(part for part in parts if any(map(re.compile(PATTERNS[part]).fullmatch, _frozen_by_name(model))))


def _frozen_by_name(model: ModelShape) -> dict[str, bool]:
    """Whether a tensor is frozen, by its whole name; without the layer's number."""
    names = {tensor.name: tensor.frozen for tensor in model.outside}
    return names | {f"{block.prefix}.{each.name}": each.frozen for block in model.blocks for each in block.tensors}


def frozen_prefixes(model: ModelShape) -> tuple[str, ...]:
    """The shortest beginnings, up to a point, of names of frozen tensors that no other tensor has."""
    names = _frozen_by_name(model) if model.has_frozen else {}
    others = [name for name, is_frozen in names.items() if not is_frozen]
    found: list[str] = []
    for name in (name for name, is_frozen in names.items() if is_frozen and not name.startswith(tuple(found))):
        parts = name.split(".")
        begins = (".".join(parts[:end]) + "." for end in range(1, len(parts)))
        found.append(next((each for each in begins if not any(other.startswith(each) for other in others)), name))
    return tuple(found)


@lru_cache(maxsize=64)
def with_frozen(model: ModelShape, parts: tuple[str, ...]) -> ModelShape:
    """The model with the tensors of these parts marked as frozen. Raises WorkloadError where nothing would train."""
    if not parts:
        return model
    is_frozen = re.compile(frozen_pattern(parts)).fullmatch
    marked = replace(
        model,
        outside=tuple(tensor._replace(frozen=bool(is_frozen(tensor.name))) for tensor in model.outside),
        blocks=tuple(
            replace(
                block,
                tensors=tuple(
                    tensor._replace(frozen=bool(is_frozen(f"{block.prefix}.{tensor.name}"))) for tensor in block.tensors
                ),
            )
            for block in model.blocks
        ),
    )
    if all(tensor.frozen or tensor.role == "tower" for tensor, _ in marked.tensor_counts):
        raise WorkloadError(
            phrase("nothing of {model} trains", model=model.name),
            why=phrase("--freeze names all parts that samples pass through"),
            fix=phrase("leave a part out of --freeze"),
        )
    return marked


def is_tower(block: Block) -> bool:
    """The layers of a vision tower, which has a stream of its own."""
    return bool(block.hidden_size or block.tokens)


def trains(model: ModelShape, block: Block, workload: Workload) -> bool:
    """Whether a layer has a weight or an adapter that trains."""
    if workload.method == "full":
        return not all(tensor.frozen for tensor in block.tensors)
    chosen = adapters(model, workload)
    return any(chosen.rank_of(tensor) for tensor in block.tensors)


def trains_projector(model: ModelShape, workload: Workload) -> bool:
    """Whether the projector behind a vision tower trains, or has adapters."""
    is_of_it, chosen = re.compile(PATTERNS["projector"]).fullmatch, adapters(model, workload)
    own = [tensor for tensor in model.outside if is_of_it(tensor.name) and not tensor.frozen]
    return any(workload.method == "full" or chosen.rank_of(tensor) for tensor in own)


def derives(model: ModelShape, block: Block, workload: Workload, *, checkpointing: bool) -> bool:
    """Whether a layer has a backward pass. That of a vision tower has none where nothing of the tower trains; but
    checkpointing makes its embedding's output require a gradient (transformers 5.23 modeling_utils.py
    `gradient_checkpointing_enable`, `enable_input_require_grads`)."""
    if not is_tower(block) or any(trains(model, each, workload) for each in model.blocks if is_tower(each)):
        return True
    return checkpointing and workload.software.transformers >= (5, 0)
