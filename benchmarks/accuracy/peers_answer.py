"""What the peers answer, by their own functions. Run by an interpreter that has them (`benchmarks.accuracy.peers`).
Reads questions as JSON from stdin and prints answers as JSON. Imports nothing of ds_advise."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from importlib.metadata import version
from typing import Any

MIB = 2**20


def accelerate(question: dict[str, Any]) -> tuple[int, int]:
    """The largest of its four figures, which `accelerate estimate-memory` prints as "Training using Adam"."""
    from accelerate.commands.estimate import estimate_training_usage

    dtype = "float32" if question["precision"] == "fp32" else "float16"
    size = max(estimate_training_usage(4 * question["parameters"], dtype).values())
    return size, size


def fitcheck_llm(question: dict[str, Any]) -> tuple[int, int]:
    """The total less its overhead, and the total."""
    from fitcheck import GpuSpec, ModelConfig, TrainingConfig, estimate

    shape = {
        name: question[name] for name in ("hidden_size", "num_layers", "intermediate_size", "vocab_size", "head_dim")
    }
    model = ModelConfig(
        name=question["model"],
        num_params=question["parameters"],
        num_attention_heads=question["heads"],
        num_kv_heads=question["kv_heads"],
        tie_word_embeddings=question["tied"],
        **shape,
    )
    training = TrainingConfig(
        precision=question["precision"],
        quantization="nf4" if question["method"] == "qlora" else "none",
        double_quant=question["method"] == "qlora",
        optimizer="adam8bit" if question["optimizer"] == "adamw_8bit" else "adamw",
        optimizer_dtype="fp32" if question["precision"] == "fp32" or question["method"] != "full" else "bf16",
        batch_size=question["micro_batch"],
        seq_len=question["seq_len"],
        lora_rank=None if question["method"] == "full" else question["lora_rank"],
        lora_targets=question["lora_targets"],
        grad_checkpoint=question["checkpointing"],
        flash_attn=question["attention"] != "eager",
    )
    card = question["card_bytes"] // MIB
    report = estimate(model, training, GpuSpec("the card", card, card))
    return round((report.total_mib - report.overhead_mib) * MIB), round(report.total_mib * MIB)


def llm_analysis(question: dict[str, Any]) -> tuple[int, int]:
    """Weights, optimizer's states, gradients and activations of a GPU."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    wide = question["precision"] == "fp32"
    model = ModelConfig(
        name="model",
        num_layers=question["num_layers"],
        n_head=question["heads"],
        hidden_dim=question["hidden_size"],
        vocab_size=question["vocab_size"],
        max_seq_len=question["seq_len"],
        num_key_value_heads=question["kv_heads"],
        ffn_embed_dim=question["intermediate_size"],
        expansion_ratio=question["intermediate_size"] / question["hidden_size"],
    )
    bits = 32 if wide else 16
    # A card so large that it stops at no batch; speeds are of no use here.
    analysis = LLMAnalysis(
        model,
        GPUConfig("card", 1e6, 2000.0, 300.0, 1e-5, 300.0),
        DtypeConfig("dtype", bits, bits, bits),
        ParallelismConfig(dp_size=question["ranks"]),
        flops_efficiency=1.0,
        hbm_memory_efficiency=1.0,
    )
    # Its masters are fp32 unless it is given two bytes: plain PyTorch in 16 bits has none, and two states of two bytes.
    states = {} if question["masters"] else {"master_weights_dtype_bytes": 2, "other_op_bytes": 2}
    recomputation = ActivationRecomputation.FULL if question["checkpointing"] else ActivationRecomputation.NONE
    found = analysis.training(
        batch_size_per_gpu=question["micro_batch"],
        gradient_accumulation_steps=1,
        seq_len=question["seq_len"],
        activation_recomputation=recomputation,
        ds_zero=DSZeRO(question["stage"]),
        flash_attn=question["attention"] != "eager",
        mlp_gated_linear_units=question["gated"],
        **states,
    )
    size = round(found["(weight+op_state+grad+act)_memory_per_gpu"])
    return size, size


PEERS = {"accelerate": accelerate, "fitcheck-llm": fitcheck_llm, "llm-analysis": llm_analysis}


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = []
    for question in json.load(sys.stdin):
        for peer in question["peers"]:
            with contextlib.redirect_stdout(io.StringIO()):
                tensors, need = PEERS[peer](question)
            answers.append(
                {"row": question["row"], "peer": peer, "version": version(peer), "tensors": tensors, "need": need}
            )
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
