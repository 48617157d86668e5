"""The dry run counts the bytes that the real engine allocates: the same requests, really trained on the CPU.

Both sides run the same loop under the same ledger; one on fake tensors as one rank of N on the simulated GPU, the other on
real tensors, either all ranks over gloo or one rank with torch's fake process group. GPU and host bytes are compared as
their sum, exact to the tensor, at the end and at the peak of every phase.

Attention is eager and dropout off: fused attention keeps other tensors on a CPU than on a GPU, and dropout another mask.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ds_advise.probes.dry_run.request import Request

JOBS = Path(__file__).with_name("dry_run_jobs.py")

QWEN2: dict[str, Any] = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
    "tie_word_embeddings": True, "max_position_embeddings": 512}
MODELS = {
    "qwen2": QWEN2,
    "llama": {**QWEN2, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_layer": 3, "n_head": 4,
             "n_positions": 512, "vocab_size": 2048, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "d_kv": 64, "d_ff": 512,
           "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 2048, "dropout_rate": 0.0},
    "bert": {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 256, "intermediate_size": 512,
             "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 2048, "hidden_dropout_prob": 0.0,
             "attention_probs_dropout_prob": 0.0},
    "vit": {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 256,
            "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 64, "patch_size": 16},
}
RUNGS = {  # stage, optimizer offload, parameter offload
    "ddp": (0, "none", "none"), "zero1": (1, "none", "none"), "zero2": (2, "none", "none"), "zero2-offload": (2, "cpu", "none"),
    "zero3": (3, "none", "none"), "zero3-offload-param": (3, "none", "cpu"), "zero3-offload": (3, "cpu", "cpu"),
    "zero3-nvme": (3, "nvme", "nvme")}


@dataclass(frozen=True)
class Case:
    rung: str
    model: str = "qwen2"
    checkpointing: bool = True
    accumulation: int = 1
    method: str = "full"
    precision: str = "bf16"
    world_size: int = 2
    rank: int = 0
    real: str = "gloo"

    def __str__(self) -> str:
        return " ".join(str(value) for value in asdict(self).values())


CASES = [Case("zero2"), Case("zero3-offload", checkpointing=False), Case("zero3", world_size=16, real="alone")]


def request(case: Case, nvme_path: Path) -> Request:
    stage, optimizer, parameters = RUNGS[case.rung]
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                            "stage3_param_persistence_threshold": "auto"}
    if optimizer != "none":
        zero["offload_optimizer"] = {"device": optimizer, "nvme_path": str(nvme_path)}
    if parameters != "none":
        zero["offload_param"] = {"device": parameters, "nvme_path": str(nvme_path), "buffer_size": 600_000}
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": 1.0,
              "zero_optimization": zero, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    return Request(
        config=config, model=MODELS[case.model], factory=None, input_shape=None, world_size=case.world_size,
        gpus_per_node=case.world_size, rank=case.rank, method=case.method, lora_rank=8, lora_targets=None, seq_len=128,
        precision=case.precision, optimizer="adamw", attention="eager", framework="hf", micro_batch_size=2,
        gradient_accumulation_steps=case.accumulation, gradient_checkpointing=case.checkpointing, compute_capability=90,
        gpu_memory_bytes=80 << 30, iterations=4 if stage == 3 else 2,  # ZeRO-3 prefetches from the third on
        expandable_segments=False)


def both(cases: list[Case], folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(dry run's, real run's) answers of every case."""
    jobs = []
    for index, case in enumerate(cases):
        asked = asdict(request(case, folder / "nvme"))
        jobs += [{"kind": kind, "request": asked, "answer": str(folder / f"{index}-{side}.json"), "real_kernels": False}
                 for side, kind in (("dry", "dry"), ("real", case.real))]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    process = subprocess.Popen([sys.executable, str(JOBS), str(folder / "jobs.json")], cwd=folder, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                               env={**os.environ, "PYTHONWARNINGS": "ignore"})
    try:
        _, complaints = process.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the ranks are its children: none may outlive the test
            os.killpg(process.pid, signal.SIGKILL)
    answers = []
    for index, case in enumerate(cases):
        pair = []
        for side in ("dry", "real"):
            file = folder / f"{index}-{side}.json"
            assert file.exists(), f"{side} run of {case} died:\n{complaints[-3000:]}"
            answer = json.loads(file.read_text())
            assert "error" not in answer, f"{side} run of {case}:\n{answer.get('traceback') or answer['error']}"
            pair.append(answer.get("result", answer))
        answers.append((pair[0], pair[1]))
    return answers


def differences(case: Case, dry: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """What differs by more than 0.5 %.

    Where the optimizer or parameters are offloaded, the dry run may hold one more copy of a gradient or parameter for a
    moment: on a GPU moving it to the host makes a copy, here both are the same memory. The largest tensor bounds it.
    """
    stage, optimizer, parameters = RUNGS[case.rung]
    allowance = 0
    if (optimizer, parameters) != ("none", "none"):
        allowance = 2048 * 256 * 2 // (case.world_size if stage == 3 else 1)
    found = []
    assert len(dry["phases"]) == len(real["phases"])
    for ours, theirs in zip(dry["phases"], real["phases"], strict=True):
        assert (ours["iteration"], ours["phase"]) == (theirs["iteration"], theirs["phase"])
        for name in ("total_live_bytes", "total_peak_bytes"):
            more = ours[name] - theirs[name]
            limit = 0.005 * theirs[name]
            if not -limit <= more <= limit + (allowance if name == "total_peak_bytes" else 0):
                found.append(f"{ours['phase']} {ours['iteration']} {name}: {ours[name]} against {theirs[name]}")
    return found


def test_a_dry_run_counts_what_the_real_engine_allocates(tmp_path: Path) -> None:
    """Three rungs, with and without checkpointing and offload, two ranks over gloo and one of sixteen alone."""
    for case, (dry, real) in zip(CASES, both(CASES, tmp_path), strict=True):
        assert not differences(case, dry, real), str(case)


def test_a_changed_step_is_noticed(tmp_path: Path) -> None:
    """The comparison fails for another sequence length, so it can tell right from wrong."""
    case = Case("zero1", world_size=4, real="alone")
    (dry, _), = both([case], tmp_path)
    longer = tmp_path / "longer"
    longer.mkdir()
    asked = replace(request(case, longer), seq_len=160)
    (longer / "jobs.json").write_text(json.dumps([{"kind": "alone", "request": asdict(asked), "real_kernels": False,
                                                   "answer": str(longer / "answer.json")}]))
    subprocess.run([sys.executable, str(JOBS), str(longer / "jobs.json")], cwd=longer, capture_output=True, check=False)
    assert differences(case, dry, json.loads((longer / "answer.json").read_text()))
