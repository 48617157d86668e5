"""From a `config.json` to a `ModelShape`, by arithmetic: one small function for each of transformers' model types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..errors import ModelConfigError
from . import dense_decoders as gpt
from . import dense_decoders as llama
from . import encoders as encoder
from . import encoders as encoder_decoder
from . import expert_decoders as experts
from . import expert_decoders as hybrid
from . import expert_decoders as llama4
from . import vision_language
from .body import Body
from .config_fields import Fields
from .model_shape import ModelShape

# Hundreds of times the largest published model (1 T): beyond it the dimensions of the file are not a model's.
MAX_PARAMETERS = 10**15


class Family(NamedTuple):
    """transformers' classes of one model type: the stem of their names, and the function that knows their tensors."""

    stem: str
    body: Callable[[Fields], Body]


FAMILIES: Mapping[str, Family] = {
    "baichuan": Family("Baichuan", llama.baichuan),
    "bert": Family("Bert", encoder.bert),
    "bloom": Family("Bloom", gpt.bloom),
    "chatglm": Family("ChatGLM", gpt.chatglm),
    "clip": Family("CLIP", vision_language.clip),
    "cohere": Family("Cohere", llama.cohere),
    "cohere2": Family("Cohere2", llama.cohere2),
    "deberta": Family("Deberta", encoder.deberta),
    "deberta-v2": Family("DebertaV2", encoder.deberta_v2),
    "deepseek_v2": Family("DeepseekV2", experts.deepseek_v2),
    "deepseek_v3": Family("DeepseekV3", experts.deepseek_v3),
    "falcon": Family("Falcon", gpt.falcon),
    "gemma": Family("Gemma", llama.gemma),
    "gemma2": Family("Gemma2", llama.gemma2),
    "gemma3": Family("Gemma3", vision_language.gemma3),
    "gemma3_text": Family("Gemma3", llama.gemma3_text),
    "glm": Family("Glm", llama.glm),
    "glm4": Family("Glm4", llama.glm4),
    "gpt2": Family("GPT2", gpt.gpt2),
    "gpt_bigcode": Family("GPTBigCode", gpt.gpt_bigcode),
    "gpt_neo": Family("GPTNeo", gpt.gpt_neo),
    "gpt_neox": Family("GPTNeoX", gpt.gpt_neox),
    "gpt_oss": Family("GptOss", experts.gpt_oss),
    "gptj": Family("GPTJ", gpt.gptj),
    "granite": Family("Granite", llama.llama),
    "granitemoe": Family("GraniteMoe", experts.granitemoe),
    "internlm2": Family("InternLM2", llama.internlm2),
    "internlm3": Family("Llama", llama.internlm3),
    "llama": Family("Llama", llama.llama),
    "llama4": Family("Llama4", llama4.llama4),
    "llama4_text": Family("Llama4", llama4.llama4_text),
    "minicpm": Family("MiniCPM", llama.minicpm),
    "ministral": Family("Ministral", llama.ministral),
    "mistral3": Family("Mistral3", vision_language.mistral3),
    "mistral": Family("Mistral", llama.mistral),
    "ministral3": Family("Ministral3", llama.ministral3),
    "mixtral": Family("Mixtral", experts.mixtral),
    "mpt": Family("Mpt", gpt.mpt),
    "mt5": Family("MT5", encoder_decoder.mt5),
    "olmo": Family("Olmo", llama.olmo),
    "olmo2": Family("Olmo2", llama.olmo2),
    "olmo3": Family("Olmo3", llama.olmo3),
    "olmoe": Family("Olmoe", experts.olmoe),
    "opt": Family("OPT", gpt.opt),
    "phi": Family("Phi", llama.phi),
    "phi3": Family("Phi3", llama.phi3),
    "qwen": Family("QWen", llama.qwen),
    "qwen2_5_vl": Family("Qwen2_5_VL", vision_language.qwen2_5_vl),
    "qwen2": Family("Qwen2", llama.qwen2),
    "qwen2_moe": Family("Qwen2Moe", experts.qwen2_moe),
    "qwen3": Family("Qwen3", llama.qwen3),
    "qwen3_5": Family("Qwen3_5", hybrid.qwen3_5),
    "qwen3_5_moe": Family("Qwen3_5Moe", hybrid.qwen3_5_moe),
    "qwen3_5_moe_text": Family("Qwen3_5Moe", hybrid.qwen3_5_moe_text),
    "qwen3_5_text": Family("Qwen3_5", hybrid.qwen3_5_text),
    "qwen3_moe": Family("Qwen3Moe", experts.qwen3_moe),
    "qwen3_next": Family("Qwen3Next", hybrid.qwen3_next),
    "roberta": Family("Roberta", encoder.roberta),
    "seed_oss": Family("SeedOss", llama.seed_oss),
    "smollm3": Family("SmolLM3", llama.smollm3),
    "stablelm": Family("StableLm", llama.stablelm),
    "starcoder2": Family("Starcoder2", llama.starcoder2),
    "t5": Family("T5", encoder_decoder.t5),
    "vit": Family("ViT", encoder.vit),
    "whisper": Family("Whisper", encoder_decoder.whisper),
    "xlm-roberta": Family("XLMRoberta", encoder.roberta),
}


def shape_from_config(config: Mapping[str, object], *, name: str, source: str = "") -> ModelShape:
    """The exact parameter tensors and dimensions of the model that transformers builds from this `config.json`.

    The class is the first of `architectures`; without it the family's usual one (a decoder's causal language model).
    Fields that the file lacks take the defaults of transformers 5.23's configuration class where published files omit
    them; a dimension that every published file states is required.

    Not covered: buffers; quantised weights (the shapes are those of the unquantised model); adapters.

    Raises ModelConfigError for an unknown `model_type`, a class that is not known for it, and a field that is missing,
    of the wrong type, out of range or in contradiction to another one; the message names the field.
    """
    c = Fields(config, name)
    model_type = c.text("model_type", default="")
    family = FAMILIES.get(model_type)
    if family is None:
        raise _unsupported(c, model_type)
    body = family.body(c)
    suffix = _class_suffix(c, family.stem, body)
    head = body.heads[suffix]
    base = "" if head.bare or not body.base else f"{body.base}."
    shape = ModelShape(
        name=name,
        model_type=model_type,
        architecture=family.stem + suffix,
        hidden_size=body.hidden_size,
        vocab_size=body.vocab_size if head.logits else 0,
        num_labels=head.labels,
        blocks=tuple(replace(block, prefix=base + block.prefix) for block in body.blocks),
        outside=tuple(tensor._replace(name=base + tensor.name) for tensor in body.outside + head.base_tensors)
        + head.tensors,
        tied=head.tied,
        max_positions=body.max_positions,
        encoder_len_fixed=body.encoder_len_fixed,
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
    """The method of `quantization_config`, which older checkpoints of bitsandbytes leave out."""
    given = config.get("quantization_config")
    return str(given.get("quant_method") or "bitsandbytes")[:40] if isinstance(given, Mapping) and given else ""


def _class_suffix(c: Fields, stem: str, body: Body) -> str:
    """Which of the body's heads the config asks for, by the ending of its class name."""
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
    return max(endings, key=len)


def _unsupported(c: Fields, model_type: str) -> ModelConfigError:
    if not model_type:
        return ModelConfigError(
            f"{c.where}: model_type is missing",
            why="it says which tensors the model has",
            fix='add the one that fits, such as "model_type": "llama"',
        )
    inner = c.section("text_config")
    text = inner.text("model_type", default="") if inner else ""
    if text in FAMILIES:
        return ModelConfigError(
            f"{c.where}: model_type {model_type!r} is not supported",
            why=f"of its parts only the language model ({text}) is",
            fix="pass a config.json that holds its text_config alone",
        )
    from difflib import get_close_matches

    near = get_close_matches(model_type, FAMILIES, n=3, cutoff=0.0)
    return ModelConfigError(
        f"{c.where}: model_type {model_type!r} is not supported",
        why="the parameter tensors of this family are not known here",
        fix=f"nearest of the {len(FAMILIES)} supported: {', '.join(near)}",
    )
