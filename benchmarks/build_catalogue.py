"""Build `estimators/data/models.json` from a collection of published architecture facts.

    python benchmarks/build_catalogue.py FACTS.json [estimators/data/models.json]

FACTS.json is a list of objects, one a model: `hub_id`, `aliases`, `source`, the dimensions under the names of a Llama
config, and `param_count_meta`, the number of parameters of the transformers class `param_count_meta_class` when it was
built on the meta device. The result states each model as its own family's `config.json` does, with only the fields that
`shape_from_config` reads. The script stops where the arithmetic count differs from the recorded one. Entries of the
catalogue that FACTS.json does not name are kept as they are: their sources state the configuration itself.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_advise.estimators.models.families import shape_from_config

Facts = Mapping[str, Any]

# Fields that a family calls otherwise than Llama does: its name -> the name in the facts.
LLAMA = {
    name: name
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "tie_word_embeddings",
        "max_position_embeddings",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
    )
}
GPT2 = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "vocab_size": "vocab_size",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "tie_word_embeddings": "tie_word_embeddings",
}
BERT = {
    name: name
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
        "hidden_act",
    )
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "gpt2": GPT2,
    "gpt_bigcode": GPT2 | {"multi_query": "multi_query"},
    "bloom": {
        "hidden_size": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "vocab_size": "vocab_size",
    },
    "falcon": {
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "vocab_size": "vocab_size",
        "num_attention_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "ffn_hidden_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
    }
    | {name: name for name in ("multi_query", "parallel_attn", "new_decoder_architecture", "bias", "alibi")},
    "mpt": {
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "vocab_size": "vocab_size",
        "max_seq_len": "max_position_embeddings",
    },
    "opt": {
        "hidden_size": "hidden_size",
        "ffn_dim": "intermediate_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "vocab_size": "vocab_size",
        "activation_function": "hidden_act",
        "max_position_embeddings": "max_position_embeddings",
        "word_embed_proj_dim": "word_embed_proj_dim",
        "do_layer_norm_before": "do_layer_norm_before",
    },
    "t5": {
        name: name
        for name in (
            "d_model",
            "d_ff",
            "d_kv",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
            "vocab_size",
            "feed_forward_proj",
            "tie_word_embeddings",
        )
    },
    "whisper": {"activation_function": "hidden_act"}
    | {
        name: name
        for name in (
            "d_model",
            "encoder_layers",
            "decoder_layers",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "num_mel_bins",
            "max_source_positions",
            "max_target_positions",
            "vocab_size",
        )
    },
    "bert": BERT,
    "roberta": BERT,
    "deberta-v2": BERT,
    "vit": {
        name: name
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_act",
            "image_size",
            "patch_size",
            "num_channels",
            "num_labels",
        )
    },
    "internlm2": LLAMA | {"bias": "attention_bias"},
    "gpt_neox": LLAMA,
    "starcoder2": LLAMA | {"use_bias": "use_bias"},
}
EXPERTS = {
    name: name
    for name in (
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "decoder_sparse_step",
        "mlp_only_layers",
        "n_routed_experts",
        "n_shared_experts",
        "first_k_dense_replace",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    )
}

# Fields that the facts lack, as the published config.json files state them; the exact count confirms them.
CONSTANT: Mapping[str, Facts] = {
    "deberta-v2": {
        "relative_attention": True,
        "position_biased_input": False,
        "max_relative_positions": -1,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
}
# Families whose class has a window by default, so that "no window" must be stated.
WINDOW_BY_DEFAULT = {"mistral"}
# Short names in use that no rule of the catalogue finds.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "allenai/OLMo-2-0425-1B": ("OLMo-2-1B",),
    "allenai/OLMo-2-1124-7B": ("OLMo-2-7B",),
    "allenai/OLMo-2-1124-13B": ("OLMo-2-13B",),
    "allenai/OLMo-2-0325-32B": ("OLMo-2-32B",),
    "CohereForAI/c4ai-command-r-v01": ("command-r",),
    "tiiuae/falcon-180B": ("falcon-180B",),
}


def config_of(facts: Facts) -> dict[str, Any]:
    """The model's `config.json`, with the fields that its parameters and dimensions follow from."""
    model_type = facts["model_type"]
    # Models of remote code were counted with a transformers class of equal tensors and keep their own class here.
    counted = facts["param_count_meta_class"]
    own = facts["architectures"]
    remote = model_type in ("baichuan", "internlm2", "minicpm")
    config: dict[str, Any] = {"model_type": model_type, "architectures": own if remote else [counted]}
    if model_type == "gemma3":
        text = pick(facts, LLAMA) | {"model_type": "gemma3_text", "sliding_window": facts["sliding_window"]}
        tied = text.pop("tie_word_embeddings")
        return {**config, "tie_word_embeddings": tied, "text_config": text, "vision_config": facts["vision_config"]}
    names = NAMES.get(model_type, LLAMA | EXPERTS)
    config.update(pick(facts, names), **CONSTANT.get(model_type, {}))
    if "q_lora_rank" in facts and facts["q_lora_rank"] is None:
        config["q_lora_rank"] = None
    if facts.get("sliding_window") is not None or model_type in WINDOW_BY_DEFAULT:
        config["sliding_window"] = facts["sliding_window"]
    return config


def pick(facts: Facts, names: Mapping[str, str]) -> dict[str, Any]:
    return {own: facts[name] for own, name in names.items() if facts.get(name) is not None}


def sources_of(facts: Facts) -> list[str]:
    """The public sources; of a file whose repository is not recorded, only what it is."""
    return [
        re.sub(
            r"^code index file \d+ \((.*)\)$",
            r"public file without recorded repository: \1",
            re.sub(r"\(code index file \d+, ", "(", source),
        )
        for source in facts["source"]
    ]


def main(facts_path: Path, out: Path) -> None:
    lines, done = [], set()
    for facts in json.loads(facts_path.read_text(encoding="utf-8")):
        hub_id, config = facts["hub_id"], config_of(facts)
        counted, recorded = shape_from_config(config, name=hub_id).parameters, facts["param_count_meta"]
        if counted != recorded:
            raise SystemExit(f"{hub_id}: {counted} parameters by arithmetic, {recorded} recorded")
        done.add(hub_id)
        entry = {
            "id": hub_id,
            "aliases": [*facts["aliases"], *ALIASES.get(hub_id, ())],
            "parameters": recorded,
            "config": config,
            "sources": sources_of(facts),
        }
        lines.append(json.dumps(entry, separators=(",", ":"), ensure_ascii=False))
    kept = [entry for entry in json.loads(out.read_text(encoding="utf-8")) if entry["id"] not in done]
    lines += [json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in kept]
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{len(lines)} models, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parents[1] / "estimators" / "data" / "models.json",
    )
