"""LoRA's adapters and trained copies, and the quantized weights of QLoRA's base model with their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ..errors import WorkloadError
from ..workload import Software, Workload
from .families import PEFT_EXPERTS, find_family, module_experts
from .model_shape import ModelShape, Tensor

NF4_BLOCK = 64
"""Elements that share a scale."""

GPTQ_GROUP = 128
"""Elements that share a scale in GPTQ: the usual setting of published checkpoints."""

NF4_OUTER_BLOCK = 256
"""Scales that share a second-level scale (double quantization)."""


def quantized(tensor: Tensor, workload: Workload) -> bool:
    """Return whether a weight is quantized: all of `nn.Linear` and `Conv1D` except the output head's and T5's `wo`.

    Fused experts and their router are parameters outside any linear layer and stay in 16 bits. They are most of a
    mixture of experts. Before transformers 5 every expert was a module of linear layers, which were quantized.
    Tensors that transformers keeps in fp32 elsewhere (T5's `_keep_in_fp32_modules`) stay in 16 bits too.
    Source: transformers 5.23 integrations/bitsandbytes.py `replace_with_bnb_linear`, quantizers/base.py
    `get_keys_to_not_convert` and `get_modules_to_not_convert`.
    """
    is_expert_module = tensor.role == "expert" and workload.software.transformers < (5, 0)
    return (
        workload.method == "qlora"
        and (tensor.linear or is_expert_module)
        and tensor.role != "head"
        and not tensor.name.endswith("DenseReluDense.wo.weight")
    )


def quantized_bytes(tensor: Tensor, workload: Workload) -> int:
    if workload.quantization == "int8":
        return int8_bytes(tensor)
    return gptq_bytes(tensor) if workload.quantization == "gptq" else nf4_bytes(tensor.numel)


def int8_bytes(tensor: Tensor) -> int:
    """Bytes of a weight in LLM.int8's format: n + 4 out; one byte per element, one fp32 scale per row.

    Source: LLM.int8 (arXiv:2208.07339) section 2.2; bitsandbytes 0.49 nn/modules.py Int8Params (CB, SCB).
    """
    # A scale per row of the last dimension, because `Int8Params` is stored as (out, in).
    return tensor.numel + 4 * (tensor.numel // tensor.shape[-1])


def in_int8(tensor: Tensor, workload: Workload) -> bool:
    return workload.quantization == "int8" and quantized(tensor, workload)


def stored_numel(tensor: Tensor, workload: Workload) -> int:
    """Return the elements of the model's type that store a weight. One of w bytes stores 8 w / b quantized elements of
    b bits (bitsandbytes' `bnb_4bit_quant_storage`; its default, bytes, takes as much memory)."""
    if not quantized(tensor, workload):
        return tensor.numel
    # ZeRO-3 shards the storage tensor, not the quantized matrix, so its elements are what partition sizes count.
    return -(-tensor.numel * (8 if workload.quantization == "int8" else 4) // (8 * workload.weight_bytes))


def gptq_bytes(tensor: Tensor) -> int:
    """Bytes of a weight in GPTQ's format: n/2 + (2 + 1/2) n/128 + 4 in.

    Four bits per element; one 16-bit scale and one 4-bit zero point per 128 elements; a 32-bit group index for each of
    `in` inputs. Source: AutoGPTQ nn_modules/qlinear/qlinear_tritonv2.py (qweight, scales, qzeros, g_idx).
    """
    groups = -(-tensor.numel // GPTQ_GROUP)
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    return -(-tensor.numel // 2) + 2 * groups + -(-groups // 2) + 4 * experts * tensor.in_features


def nf4_bytes(numel: int) -> int:
    """Bytes of a weight in NF4 with double quantization: n/2 + n/64 + 4 n/(64 x 256), and two code tables.

    Four bits per element, one 8-bit scale per 64 elements, and one fp32 scale per 256 of those scales.
    Source: QLoRA (arXiv:2305.14314) section 3; bitsandbytes functional.py `quantize_4bit` (compress_statistics).
    """
    scales = -(-numel // NF4_BLOCK)
    tables = (16 + 256) * 4
    return -(-numel // 2) + scales + 4 * -(-scales // NF4_OUTER_BLOCK) + tables


ALL_LINEAR = "all-linear"

LINEAR_MODULES = "linear-modules"
"""In place of targets: the names of all linear modules, as LLaMA-Factory, ms-swift and axolotl list them for peft."""

TIED_HEAD = "lm_head"
"""Name of a language model's output head in transformers, even if it is tied to the embedding."""


class Adapters(NamedTuple):
    """Weights that LoRA adapts, and the ranks of their adapters."""

    rank: int
    modules: frozenset[str] | None
    """Suffixes of the names of adapted linear layers; None for all except the output head."""
    left_out: frozenset[str] = frozenset()
    """Last parts of names that are excluded although they match `modules`."""
    parameters: frozenset[str] = frozenset()
    """Full names of adapted tensors outside any linear layer: fused experts, routers."""
    dora: bool = False
    """Whether each adapter also trains a magnitude for every output."""
    expert_modules: tuple[tuple[str, int], ...] = ()
    """The `parameters` that represent linear layers (transformers before 5), with the adapted layers of one expert."""

    def adapter_rank(self, tensor: Tensor) -> int:
        """Return the inner width of the tensor's adapter: r; E r for E fused experts and 2 E r for their gate and up (r
        and 2 r if experts are modules); 0 without an adapter."""
        if not self._adapts(tensor):
            return 0
        if len(tensor.shape) == 2 or self._layers_per_expert(tensor):
            return self.rank * max(1, self._layers_per_expert(tensor))
        # peft gives the fused tensor the rank of both former layers (transformers_weight_conversion.py `rank_pattern`).
        return self.rank * tensor.shape[0] * (2 if tensor.name.endswith("gate_up_proj") else 1)

    def folds(self, tensor: Tensor) -> bool:
        """Return whether the adapter has no module. Every forward pass then computes W + B A, a tensor as large as W.

        Source: peft 0.21 tuners/lora/layer.py ParamWrapper.
        """
        return not tensor.linear and not self._layers_per_expert(tensor) and self._adapts(tensor)

    def adapter_layers(self, tensor: Tensor) -> int:
        """Return the number of adapted linear layers: 0 or 1, or those of all experts if they are modules."""
        if len(tensor.shape) == 3:
            return tensor.shape[0] * self._layers_per_expert(tensor)
        return int(self._adapts(tensor) and not self.folds(tensor))

    def matrices(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return A (rank, in) and B (out, rank) of the tensor's adapter, and DoRA's magnitudes (out,); () without an
        adapter.

        Names are peft's (`q_proj.lora_A.default.weight`), relative to the layer inside a block.
        """
        rank = self.adapter_rank(tensor)
        if not rank:
            return ()
        module, copies = tensor.name.removesuffix(".weight"), 1
        if len(tensor.shape) == 3:
            experts, wide_out, wide_in = tensor.shape
            # peft wraps the module that holds the tensors once for each tensor, gate and up innermost.
            module = tensor.name.rpartition(".")[0]
            if tensor.name.endswith("gate_up_proj") and any(name.endswith("down_proj") for name in self.parameters):
                module += ".base_layer"
            if self._layers_per_expert(tensor):
                rank, copies = self.rank, experts * self._layers_per_expert(tensor)
                wide_out //= 2 if tensor.name.endswith("gate_up_proj") else 1
        else:
            wide_in, wide_out = tensor.in_features, tensor.out_features
        shapes: dict[str, tuple[int, ...]] = {"lora_A": (rank, wide_in), "lora_B": (wide_out, rank)}
        if self.dora:
            shapes["lora_magnitude_vector"] = (wide_out,)
        return copies * tuple(
            Tensor(name=f"{module}.{part}.default.weight", shape=shape, role=tensor.role, linear=len(shape) == 2)
            for part, shape in shapes.items()
        )

    def _layers_per_expert(self, tensor: Tensor) -> int:
        return next((layers for name, layers in self.expert_modules if name == tensor.name), 0)

    def _adapts(self, tensor: Tensor) -> bool:
        # A part named by --freeze gets no adapters, whatever the targets match.
        if tensor.frozen:
            return False
        if tensor.name in self.parameters:
            return True
        module = tensor.name.removesuffix(".weight")
        if not tensor.linear or module.rpartition(".")[2] in self.left_out:
            return False
        if self.modules is None:
            return tensor.role != "head"
        return any(f".{module}".endswith(f".{target}") for target in self.modules)


_NO_ADAPTERS = Adapters(rank=0, modules=frozenset())


class TrainedCopies(NamedTuple):
    """Fully trained copies of modules outside the layers, in addition to adapters. The frozen originals stay in
    place."""

    embeddings: tuple[Tensor, ...] = ()
    heads: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.embeddings + self.heads


@lru_cache(maxsize=64)
def trained_copies(model: ModelShape, workload: Workload) -> TrainedCopies:
    """Return the copies of the modules in `modules_to_save`; none with method "full".

    peft copies each module, trains the copy and computes with it; the original stays, frozen and unused. A copy has the
    type of its original, because peft casts only adapters to fp32. In a tied model each copy is a separate weight: that
    of the embedding looks tokens up, that of the head computes logits, and neither is tied.

    Source: peft 0.21 utils/other.py ModulesToSaveWrapper, tuners/tuners_utils.py `cast_adapter_dtype`.
    Not covered: `ensure_weight_tying`, `trainable_token_indices`, norms and other modules of the layers.

    Raises WorkloadError, with the existing names, for a name that matches no such module.
    """
    if workload.method == "full" or not workload.modules_to_save:
        return TrainedCopies()
    outside = {
        tensor.name.removesuffix(".weight"): tensor
        for tensor in model.outside
        if tensor.role in ("embedding", "position", "head") and len(tensor.shape) == 2
    }
    if model.tied and (table := next((each for each in outside.values() if each.role == "embedding"), None)):
        # A tied head has no tensor of its own, but `modules_to_save` can name its module and then unties it.
        outside[TIED_HEAD] = table._replace(name=f"{TIED_HEAD}.weight", role="head")
    chosen: dict[str, Tensor] = {}
    for wanted in workload.modules_to_save:
        found = {name: tensor for name, tensor in outside.items() if f".{wanted}." in f".{name}."}
        if not found:
            raise WorkloadError(
                f"{model.name} has no embedding or output head named {wanted!r}",
                why=f"outside its layers it has: {', '.join(name.rpartition('.')[2] for name in outside)}",
                fix="name one of these in --modules-to-save; no other module is predicted as fully trained",
            )
        chosen |= found
    copies = [tensor._replace(name=f"{name}.modules_to_save.default.weight") for name, tensor in chosen.items()]
    return TrainedCopies(
        embeddings=tuple(tensor for tensor in copies if tensor.role != "head"),
        heads=tuple(tensor for tensor in copies if tensor.role == "head"),
    )


def trains_embedding(model: ModelShape, workload: Workload) -> bool:
    """Return whether the input embedding's weight, or a copy of it, gets a gradient."""
    if workload.method != "full":
        return bool(trained_copies(model, workload).embeddings)
    tables = [tensor for tensor in model.outside if tensor.role == "embedding" and tensor.name.endswith("weight")]
    return not (tables and tables[-1].frozen)


def trains_head(model: ModelShape, workload: Workload) -> bool:
    """Return whether the output head's weight, or a copy of it, gets a gradient."""
    if workload.method != "full":
        return bool(trained_copies(model, workload).heads)
    tables = [tensor for tensor in model.outside if tensor.role == ("embedding" if model.tied else "head")]
    return not (tables and tables[-1].frozen)


def linear_modules(model: ModelShape, software: Software) -> tuple[str, ...] | None:
    """Return the names of all linear modules except the head's; None if peft's "all-linear" adapts nothing else.

    Fused experts and routers are no linear modules (transformers 5). Their former names are among these only if a dense
    layer or a shared expert has them; peft then adapts the experts in place of those.

    Source: LLaMA-Factory ff6d4d1 model/model_utils/misc.py `find_all_linear_modules`, ms-swift 3602360
    utils/transformers_utils.py `find_all_linears`, axolotl 067b021 loaders/adapter.py `find_all_linear_names`.
    """
    fused = dict(model.peft_experts) or find_family(model).peft_experts
    if not fused or module_experts(model, software):
        return None
    linear = (tensor.name for tensor, _ in model.tensor_counts if tensor.linear and tensor.role != "head")
    return tuple(dict.fromkeys(name.removesuffix(".weight").rpartition(".")[2] for name in linear))


def nameable_targets(model: ModelShape) -> tuple[str, ...] | None:
    """Return the layers to name as targets if peft cannot adapt every linear layer of the model; None if it can."""
    return ("q_proj", "k_proj", "v_proj", "o_proj") if model.pair_router else None


@lru_cache(maxsize=64)
def adapters(model: ModelShape, workload: Workload) -> Adapters:
    """Return the weights that LoRA adapts under a workload; none with method "full".

    `lora_targets` are suffixes of module names, as in peft's `target_modules` (`q_proj`, or `mlp.c_proj` to distinguish
    two); None or ("all-linear",) is every `nn.Linear` and `Conv1D` except the output head. In families whose experts
    transformers 5 fused and peft converts (Mixtral, Qwen3-MoE, OLMoE, DeepSeek), the experts' former names refer to the
    fused tensors, and "all-linear" includes them and the router. Before transformers 5 each linear layer of an expert
    has a separate adapter.

    Source: LoRA (arXiv:2106.09685) section 4.1; peft 0.21 tuners/lora/layer.py.
    Not covered: adapters on embeddings, `target_parameters`, patterns, single layers.

    Raises WorkloadError for a rank below 1, for a target that matches nothing (with the existing names), for only one
    of two fused projections, for dropout with adapted fused tensors, and for routers that return several tensors
    (Llama 4, PhiMoE).
    """
    if workload.method == "full":
        return _NO_ADAPTERS
    rank, targets = workload.lora_rank, workload.lora_targets
    if rank < 1:
        raise WorkloadError(
            f"a LoRA rank of {rank} is impossible", fix="give --lora-rank 8, or another positive number"
        )
    modules_of_experts = module_experts(model, workload.software) > 0
    fused = dict(model.peft_experts) or find_family(model).peft_experts
    if modules_of_experts:
        fused = fused or PEFT_EXPERTS["qwen2_moe"]
    every = targets is None or targets == (ALL_LINEAR,)
    ends = {} if every or targets is None else {target: target.rpartition(".")[2] for target in targets}
    adapted = Counter(fused.values() if every else (fused[end] for end in {*ends.values()} if end in fused))
    parameters, expert_modules = frozenset(adapted), tuple(adapted.items()) if modules_of_experts else ()
    if parameters and (workload.lora_dropout or workload.dora) and not expert_modules:
        raise WorkloadError(
            f"peft adapts {model.name}'s experts only without dropout and DoRA",
            why="it folds W + B A into one weight before the product",
            fix="leave these options out, or name other modules in --lora-targets",
        )
    nameable = nameable_targets(model)
    if nameable and (every or "router" in ends.values()):
        raise WorkloadError(
            f"peft cannot adapt the routers of {model.name}, which all linear layers include",
            why="its routers return a pair, and an adapter is added to one tensor",
            fix=f"name other layers: --lora-targets {','.join(nameable)}",
        )
    if every:
        left_out = frozenset(() if modules_of_experts else fused)
        return Adapters(rank, None, left_out, parameters, dora=workload.dora, expert_modules=expert_modules)
    for parameter in () if modules_of_experts else parameters:
        parts = [name for name, tensor in fused.items() if tensor == parameter]
        missing = [part for part in parts if part not in ends.values()]
        if missing:
            raise WorkloadError(
                f"LoRA targets lack {', '.join(missing)} of {model.name}",
                why=f"{' and '.join(parts)} are one tensor, which peft adapts only as a whole",
                fix=f"name all of them in --lora-targets: {', '.join(parts)}",
            )
    others = frozenset(target for target, end in ends.items() if end not in fused)
    for target in sorted(others):
        alone = Adapters(rank=rank, modules=frozenset({target}))
        if not any(alone.adapter_rank(tensor) for tensor, _ in model.tensor_counts):
            raise WorkloadError(
                f"{model.name} has no linear layer named {target!r}",
                why=f"it has: {', '.join(_target_names(model, fused))}",
                fix="name one of these in --lora-targets",
            )
    modules = frozenset(ends) if modules_of_experts else others
    return Adapters(rank, modules, parameters=parameters, dora=workload.dora, expert_modules=expert_modules)


def _target_names(model: ModelShape, fused: Mapping[str, str]) -> list[str]:
    """Return the possible target names, each once, the output head last."""
    linear = sorted(
        (tensor for tensor, _ in model.tensor_counts if tensor.linear), key=lambda tensor: tensor.role == "head"
    )
    modules = [tensor.name.removesuffix(".weight").rpartition(".")[2] for tensor in linear]
    return list(dict.fromkeys([*(name for name in modules if name not in fused), *fused]))
