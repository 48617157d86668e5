"""The table of model types, with all facts that the rest of the package needs.

To add a family similar to Llama, add a row to `FAMILIES`: `decoder(Style(...))` builds its tensors, `LayerVariant`
describes how transformers' code computes a layer, `supports` lists the usable features. All other code looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from ..errors import ModelConfigError
from ..workload import Software
from . import dense_decoders as dense
from . import expert_decoders as experts
from . import vision_language
from .body import BIASED, LLAMA_BIASES, Body, Names, Style, decoder
from .config_fields import Fields
from .dense_decoders import FUSED_GATE, GELU, GEMMA_2, OLMO_2, all_but_each, every_layer, in_layers
from .model_shape import Block, ModelShape
from .program import LayerVariant

# Hundreds of times the largest published model (1 T). Larger files do not describe a real model.
MAX_PARAMETERS = 10**15

Feature = Literal["ulysses", "tiles", "liger", "autotp", "leaf_experts"]
"""Features that a model type can support.

ulysses: `register_with_transformers` works: its classes look attention up in transformers' registry, and its
    configuration has `num_key_value_heads` and no `head_dim` of None (transformers 5.23; gpt_oss has sinks for all
    heads, which a rank with some of them cannot use).
tiles: its feed-forward is a module of class "...MLP" without dropout, and its logits are the output of `lm_head`.
liger: Liger has kernels for it, and fuses its loss by default (liger-kernel 0.8.5 transformers/monkey_patch.py).
autotp: its plan splits exactly the tensors of `rank_part`, confirmed by dry runs.
leaf_experts: its mixture of experts is a leaf module of ZeRO-3, with hooks on the mixture but not on its submodules
    (deepspeed 0.19.8 runtime/zero/leaf_module_config.py `DEFAULT_LEAF_MODULE_CLASSES`).
"""

PEFT_EXPERTS: Mapping[str, Mapping[str, str]] = {
    "qwen2_moe": {
        "gate": "mlp.gate.weight",
        "gate_proj": "mlp.experts.gate_up_proj",
        "up_proj": "mlp.experts.gate_up_proj",
        "down_proj": "mlp.experts.down_proj",
    },
    "mixtral": {
        "gate": "mlp.gate.weight",
        "w1": "mlp.experts.gate_up_proj",
        "w3": "mlp.experts.gate_up_proj",
        "w2": "mlp.experts.down_proj",
    },
}
"""For each conversion scheme of transformers: former names of the experts' projections -> tensors of a layer (peft 0.21
utils/transformers_weight_conversion.py `_MOE_TARGET_MODULE_MAPPING`)."""


class FamilySpec(NamedTuple):
    stem: str
    """Prefix of its classes' names."""
    body: Callable[[Fields], Body]
    """Function that builds its tensors and dimensions from a config."""
    layer: LayerVariant | None = None
    """Computation of its layers; None for Llama's, or GPT's if it has LayerNorms."""
    tower: LayerVariant | None = None
    """Computation of the layers of its vision tower."""
    supports: tuple[Feature, ...] = ()
    autoep_preset: str = ""
    """DeepSpeed's preset for AutoEP (`preset_model`), if confirmed by dry runs; otherwise ""."""
    peft_experts: Mapping[str, str] = {}
    """The fused tensors of experts and router by the names of their linear layers before transformers 5. peft still
    uses these names in a list of targets and in "all-linear" (peft 0.21 utils/transformers_weight_conversion.py), and
    then skips linear layers of the same names: those of dense layers and of shared experts."""
    module_experts: bool = False
    """Whether each expert is a module of three linear layers before transformers 5. Experts of other types were always
    fused."""
    leaf_classes: tuple[str, ...] = ()
    """Classes of its mixture before transformers 5 that are not leaf modules by default in DeepSpeed. Without a leaf,
    ZeRO-3 gathers an expert only on the ranks that call it. Ranks call different experts, so the gather hangs."""
    loss_in_weight_type: bool = False
    """Whether the loss before transformers 4.46 did not cast the logits to fp32."""
    cached_in_training: bool = False
    """Whether training before transformers 4.46 kept the key-value cache."""


_LLAMA = LayerVariant()
_GPT = LayerVariant(norm="layer")
_GEMMA = LayerVariant(norm="rms_plus_one", norm_operations=10)
_GEMMA_3 = _GEMMA._replace(qk_norm="rms_plus_one", layout="sandwich")
_JOINED = LayerVariant(joined=True)
_OLMO_2 = LayerVariant(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32")
_QWEN_3_5 = LayerVariant(norm="rms_plus_one", qk_norm="rms_plus_one", joined=True)
_SUMMED = LayerVariant(norm="layer", summed_input=True)
_QWEN_TOWER = LayerVariant(norm="layer", rotary="fp32", joined=True)

_GLM = Style(biases=(("attention_bias", True), False, False), feed_forward=FUSED_GATE)
_GLM_4_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
_STARCODER_BIAS = ("use_bias", True)
_ERNIE_BIAS = ("use_bias", False)

FAMILIES: Mapping[str, FamilySpec] = {
    "baichuan": FamilySpec("Baichuan", decoder(Style(attention=("self_attn.W_pack", "self_attn.o_proj")))),
    "chatglm": FamilySpec("ChatGLM", dense.chatglm),
    "deepseek_v2": FamilySpec(
        "DeepseekV2",
        partial(experts.deepseek, width=1407, count=64, shared=2, first=0, biased=True),
        LayerVariant(rotary="fp32", router_fp32=True, routing_fp32=True),
        supports=("liger",),
        peft_experts=PEFT_EXPERTS["qwen2_moe"],
        module_experts=True,
        leaf_classes=("DeepseekV2MoE", "DeepseekV2Moe"),
        autoep_preset="deepseek_v2",
    ),
    "deepseek_v3": FamilySpec(
        "DeepseekV3",
        partial(experts.deepseek, width=2048, count=256, shared=1, first=3),
        LayerVariant(router_fp32=True, routing_fp32=True),
        supports=("liger",),
        peft_experts=PEFT_EXPERTS["qwen2_moe"],
        module_experts=True,
        leaf_classes=("DeepseekV3MoE",),
        autoep_preset="deepseek_v3",
    ),
    "ernie4_5": FamilySpec(
        "Ernie4_5",
        decoder(Style(tied=True, biases=(_ERNIE_BIAS, _ERNIE_BIAS, _ERNIE_BIAS)), num_key_value_heads=2, head_dim=128),
        LayerVariant(rotary="fp32"),
        supports=("ulysses", "tiles"),
    ),
    "gemma": FamilySpec(
        "Gemma",
        decoder(Style(activation=GELU, tied=True, biases=BIASED), num_key_value_heads=16, head_dim=256),
        _GEMMA,
        supports=("ulysses", "tiles", "liger"),
    ),
    "gemma2": FamilySpec(
        "Gemma2",
        decoder(GEMMA_2, window=in_layers(lambda layer: layer % 2 == 0), num_key_value_heads=4, head_dim=256),
        _GEMMA._replace(layout="sandwich", kernels=frozenset({"flash"})),
        supports=("ulysses", "liger"),
    ),
    "gemma3": FamilySpec("Gemma3", vision_language.gemma3, _GEMMA_3, tower=_SUMMED, supports=("liger",)),
    "gemma3_text": FamilySpec("Gemma3", dense.gemma3_text, _GEMMA_3, supports=("ulysses", "liger")),
    "glm": FamilySpec("Glm", decoder(_GLM, num_key_value_heads=2, head_dim=128), _JOINED, supports=("ulysses",)),
    "glm4": FamilySpec(
        "Glm4",
        decoder(_GLM._replace(norms=_GLM_4_NORMS), num_key_value_heads=2, head_dim=128),
        LayerVariant(layout="sandwich", joined=True),
    ),
    "gpt2": FamilySpec(
        "GPT2",
        dense.gpt2,
        LayerVariant(norm="layer", softmax_fp32=False, summed_input=True, embedding_dropout=True, where_mask=True),
        loss_in_weight_type=True,
    ),
    "gpt_bigcode": FamilySpec(
        "GPTBigCode",
        dense.gpt_bigcode,
        LayerVariant(norm="layer", summed_input=True, embedding_dropout=True),
        loss_in_weight_type=True,
        cached_in_training=True,
    ),
    "gpt_oss": FamilySpec(
        "GptOss",
        experts.gpt_oss,
        LayerVariant(
            norm="rms_fp32",
            kernels=frozenset({"flash"}),
            softmax_fp32=False,
            gpt_oss_experts=True,
            softmax_of_top_k=True,
        ),
        supports=("liger",),
    ),
    "granite": FamilySpec(
        "Granite",
        decoder(Style(biases=LLAMA_BIASES)),
        LayerVariant(residual_scaled=True, summed_input=True),
        supports=("ulysses",),
    ),
    "internlm2": FamilySpec(
        "InternLM2",
        decoder(
            Style(
                names=Names(embed="tok_embeddings"),
                head="output",
                attention=("attention.wqkv", "attention.wo"),
                feed_forward=("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
                biases=(("bias", True), ("bias", True), False),
                norms=("attention_norm", "ffn_norm"),
            )
        ),
    ),
    "llama": FamilySpec("Llama", decoder(Style(biases=LLAMA_BIASES)), supports=("ulysses", "tiles", "liger", "autotp")),
    "minicpm": FamilySpec("MiniCPM", decoder(Style(tied=True, biases=BIASED))),
    "mistral3": FamilySpec("Mistral3", vision_language.mistral3),
    "mistral": FamilySpec("Mistral", dense.mistral, supports=("ulysses", "tiles", "liger", "autotp")),
    "ministral3": FamilySpec("Ministral3", dense.ministral3),
    "mixtral": FamilySpec(
        "Mixtral",
        experts.mixtral,
        LayerVariant(routing_fp32=True),
        supports=("liger", "leaf_experts"),
        autoep_preset="mixtral",
        peft_experts=PEFT_EXPERTS["mixtral"],
        module_experts=True,
    ),
    "mpt": FamilySpec("Mpt", dense.mpt, LayerVariant(norm="layer", kernels=frozenset())),
    "olmo": FamilySpec(
        "Olmo",
        decoder(Style(norm_kind="layer", norm_weight=False, biases=BIASED)),
        LayerVariant(norm="layer_bare", rotary="fp32"),
        supports=("ulysses", "tiles"),
    ),
    "olmo2": FamilySpec("Olmo2", decoder(OLMO_2), _OLMO_2, supports=("ulysses", "tiles", "liger")),
    "olmo3": FamilySpec("Olmo3", decoder(OLMO_2, window=all_but_each(4)), _OLMO_2),
    "olmoe": FamilySpec(
        "Olmoe",
        experts.olmoe,
        supports=("ulysses",),
        peft_experts=PEFT_EXPERTS["qwen2_moe"],
        module_experts=True,
        leaf_classes=("OlmoeSparseMoeBlock",),
    ),
    "phi3": FamilySpec(
        "Phi3",
        decoder(
            Style(
                attention=("self_attn.qkv_proj", "self_attn.o_proj"),
                feed_forward=FUSED_GATE,
                hidden_dropout=("resid_pdrop", 0.0),
            ),
            window=every_layer(),
        ),
        _JOINED,
        supports=("ulysses", "tiles", "liger"),
    ),
    "qwen": FamilySpec("QWen", dense.qwen),
    "qwen2_5_vl": FamilySpec("Qwen2_5_VL", vision_language.qwen2_5_vl, tower=LayerVariant(rotary="fp32", joined=True)),
    "qwen2_vl": FamilySpec("Qwen2VL", vision_language.qwen2_vl, tower=_QWEN_TOWER),
    "qwen2": FamilySpec("Qwen2", dense.qwen2, supports=("ulysses", "tiles", "liger", "autotp")),
    "qwen2_moe": FamilySpec(
        "Qwen2Moe",
        experts.qwen2_moe,
        supports=("ulysses", "leaf_experts"),
        module_experts=True,
        autoep_preset="qwen3_moe",
    ),
    "qwen3": FamilySpec(
        "Qwen3",
        decoder(Style(qk_norm="head", biases=BIASED), window=dense.late_layers, num_key_value_heads=32, head_dim=128),
        supports=("ulysses", "tiles", "liger", "autotp"),
    ),
    "qwen3_5": FamilySpec("Qwen3_5", experts.qwen3_5, _QWEN_3_5),
    "qwen3_5_moe": FamilySpec("Qwen3_5Moe", experts.qwen3_5_moe, _QWEN_3_5),
    "qwen3_5_moe_text": FamilySpec("Qwen3_5Moe", experts.qwen3_5_moe_text, _QWEN_3_5, autoep_preset="qwen3_5_moe"),
    "qwen3_5_text": FamilySpec("Qwen3_5", experts.qwen3_5_text, _QWEN_3_5),
    "qwen3_moe": FamilySpec(
        "Qwen3Moe",
        experts.qwen3_moe,
        supports=("ulysses", "liger", "leaf_experts"),
        autoep_preset="qwen3_moe",
        peft_experts=PEFT_EXPERTS["qwen2_moe"],
        module_experts=True,
    ),
    "qwen3_next": FamilySpec(
        "Qwen3Next",
        experts.qwen3_next,
        _QWEN_3_5,
        peft_experts=PEFT_EXPERTS["qwen2_moe"],
        module_experts=True,
        leaf_classes=("Qwen3NextSparseMoeBlock",),
    ),
    "qwen3_vl": FamilySpec("Qwen3VL", vision_language.qwen3_vl, tower=_QWEN_TOWER),
    "qwen3_vl_moe": FamilySpec("Qwen3VLMoe", experts.qwen3_vl_moe, tower=_QWEN_TOWER),
    "smollm3": FamilySpec(
        "SmolLM3",
        decoder(Style(tied=True, biases=LLAMA_BIASES), window=dense.unrotated_layers, num_key_value_heads=4),
        supports=("ulysses", "tiles", "liger"),
    ),
    "starcoder2": FamilySpec(
        "Starcoder2",
        decoder(
            Style(
                biases=(_STARCODER_BIAS, _STARCODER_BIAS, _STARCODER_BIAS),
                gated=False,
                feed_forward=("mlp.c_fc", "mlp.c_proj"),
                activation=GELU,
                norm_kind="layer",
                tied=True,
                hidden_dropout=("residual_dropout", 0.0),
            ),
            window=every_layer(),
            num_key_value_heads=2,
        ),
        supports=("ulysses",),
    ),
}

_UNKNOWN = FamilySpec("", dense.mistral)


def find_family(model: ModelShape) -> FamilySpec:
    """Return the row of a model; for an unknown type, a row without any supported feature."""
    return FAMILIES.get(model.model_type, _UNKNOWN)


def supports(model: ModelShape, feature: Feature) -> bool:
    return feature in find_family(model).supports


def module_experts(model: ModelShape, software: Software) -> int:
    """Return the number of experts of a layer that are separate modules; 0 if they are fused."""
    # transformers 5 converts all these checkpoints to fused tensors while it loads them (conversion_mapping.py).
    if software.transformers >= (5, 0) or not find_family(model).module_experts:
        return 0
    return max(block.feed_forward.experts for block in model.blocks)


def leaf_experts(model: ModelShape, software: Software) -> bool:
    """Return whether a mixture is a leaf module of ZeRO-3: by default since DeepSpeed 0.18 (deepspeedai/DeepSpeed
    #7604), or by the written configuration."""
    by_default = software.deepspeed >= (0, 18) and supports(model, "leaf_experts")
    return by_default or bool(leaf_classes_to_write(model, software))


def leaf_classes_to_write(model: ModelShape, software: Software) -> tuple[str, ...]:
    """Return the classes of `zero_optimization.leaf_module` that a model needs at stage 3; () if it needs none, or if
    DeepSpeed lacks the key."""
    # Fused experts are parameters of the mixture itself, whose own hook gathers them on every rank.
    needed = software.deepspeed >= (0, 18) and module_experts(model, software)
    return find_family(model).leaf_classes if needed else ()


def layer_variant(model: ModelShape, block: Block) -> LayerVariant:
    """Return how a block's layers are computed. A vision tower has the default variant unless its row has another. A
    recorded layer itself determines what its class supports."""
    if (program := block.program) is not None:
        return LayerVariant(kernels=program.kernels, masked=program.has_mask, softmax_fp32=program.softmax_fp32)
    family = find_family(model)
    plain = _LLAMA if block.norm == "rms" else _GPT
    # Only the layers of a vision tower have a width of their own.
    return (family.tower if block.hidden_size else family.layer) or plain


def shape_from_config(config: Mapping[str, object], *, name: str, source: str = "") -> ModelShape:
    """Return the exact parameter tensors and dimensions of the model that transformers builds from a `config.json`.

    The class is the first of `architectures`, or by default the family's usual one (a decoder's causal language model).
    Fields that published files omit take the defaults of transformers 5.23's configuration class; a dimension that
    every published file states is required.

    Not covered: buffers; quantised weights (the shapes are those of the unquantised model); adapters.

    Raises ModelConfigError for an unknown `model_type`, a class that is unknown for it, and a field that is missing, of
    the wrong type, out of range or in contradiction to another one; the message names the field.
    """
    c = Fields(config, name)
    model_type = c.text("model_type", default="")
    family = FAMILIES.get(model_type)
    if family is None:
        if not model_type:
            raise ModelConfigError(
                f"{c.where}: model_type is missing",
                why="it decides which tensors the model has",
                fix='add the one that fits, such as "model_type": "llama"',
            )
        raise UnknownModelTypeError(f"{c.where}: no row describes model_type {model_type!r}")
    body = family.body(c)
    suffix = _class_suffix(c, family.stem, body)
    head = body.heads[suffix]
    base = "" if head.bare else f"{body.base}."
    shape = ModelShape(
        name=name,
        model_type=model_type,
        architecture=family.stem + suffix,
        hidden_size=body.hidden_size,
        vocab_size=body.vocab_size if head.logits else 0,
        num_labels=head.labels,
        blocks=tuple(replace(block, prefix=base + block.prefix) for block in body.blocks),
        outside=tuple(tensor._replace(name=base + tensor.name) for tensor in body.outside) + head.tensors,
        tied=head.tied,
        max_positions=body.max_positions,
        encoder_len_fixed=body.encoder_len_fixed,
        image=body.image,
        logit_softcap=body.logit_softcap,
        idle_tower=body.idle_tower,
        source=source,
        quantized=_quantized(config),
    )
    if shape.parameters > MAX_PARAMETERS:
        raise c.error(
            f"hidden_size, num_hidden_layers and the others give {shape.parameters:.1e} parameters",
            why="no model is that large",
        )
    return shape


def _quantized(config: Mapping[str, object]) -> str:
    """Return the method of `quantization_config`. Older checkpoints of bitsandbytes omit it."""
    options = config.get("quantization_config")
    return str(options.get("quant_method") or "bitsandbytes")[:40] if isinstance(options, Mapping) and options else ""


def _class_suffix(c: Fields, stem: str, body: Body) -> str:
    """Return the suffix of the config's class name, which selects the body's head."""
    named = c.items("architectures") or []
    if not named:
        return next(iter(body.heads))
    wanted = named[0]
    endings = [ending for ending in body.heads if isinstance(wanted, str) and wanted.endswith(ending)]
    if not endings:
        raise c.error(
            "architectures names a class that is not supported",
            why=f"known for this model_type: {', '.join(stem + ending for ending in body.heads)}",
        )
    # "ForSequenceClassification" must not be read as a shorter ending that it also has.
    return max(endings, key=len)


class UnknownModelTypeError(ModelConfigError):
    """No row describes models of this type. They can only be recorded."""
