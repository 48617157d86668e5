"""Scripts that hold the whole model before the engine: the dry run, the closed form and the verdict agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import strategy_candidate
from ds_advise.advisor.answer.facts import loading_peak
from ds_advise.advisor.command.question import command_question
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.render.command import command_document
from ds_advise.advisor.verification.command import command_answer
from ds_advise.estimators.memory.host_memory import PROCESS_BYTES
from ds_advise.probes.command.request import CommandRequest

from tests.helpers import printed_document, sizes

GPUS = "8x12GB"
MODEL: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    **sizes(8192, 28672, 8, 64, 8, 32000, tie_word_embeddings=False, dtype="bfloat16"),
}
"""7.4 billion parameters, more in 16 bits than a GPU has."""

SCRIPT = """
import sys
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
stage, order, loading, method = sys.argv[1:]
def arguments():
    config = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": int(stage)}}
    return TrainingArguments("out", deepspeed=config, bf16=True, per_device_train_batch_size=1, report_to="none")
args = arguments() if order == "first" else None
where = {"device_map": {"": 0}} if loading.startswith("gpu") else {}
kind = torch.float32 if loading == "host-fp32" else torch.bfloat16
model = AutoModelForCausalLM.from_pretrained("model", dtype=kind, **where)
if loading == "gpu-fp32":
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32)
if method == "lora":
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
args = args or arguments()
rows = [{"input_ids": torch.full((128,), row), "labels": torch.full((128,), row)} for row in range(64)]
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("words", "software"),
    [
        ("3 first host lora", {}),
        ("3 later host lora", {"zero_init": False}),
        ("2 later gpu-fp32 full", {"loading": "gpu-fp32"}),
        ("2 later host-fp32 lora", {"loading": "host-fp32"}),
    ],
)
def test_the_whole_model_before_the_engine(
    words: str, software: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "train.py").write_text(SCRIPT)
    request = CommandRequest(
        words=(sys.executable, "train.py", *words.split()), folder=tmp_path, cluster=parse_cluster(GPUS)
    )
    answer = command_answer(request, timeout_s=240.0, on_progress=lambda _: None)
    question = command_question(answer.found, {"gpus": GPUS})
    assert not question.offloads_checkpoints, "the changed command has no setting for it"
    found = question.workload.software
    assert (found.zero_init, found.loading) == (software.get("zero_init", True), software.get("loading", "host"))
    stage, *_, method = words.split()
    candidate = strategy_candidate(question, "zero3" if stage == "3" else "zero2")
    phases = {phase.name: phase.allocated_bytes for phase in candidate.memory.phases}
    result, whole = answer.result, 2 * answer.engine.parameters
    assert ("load" in phases) == bool({"zero_init"} & software.keys() or found.loading == "gpu-fp32")
    if "load" in phases:
        assert phases["load"] == pytest.approx(result.peak_loading_gpu_bytes, rel=0.02) and phases["load"] > whole
        said = "The peak is the loading" in printed_document(command_document(answer), 400)
        assert not answer.fit.fits and said == bool(loading_peak(candidate)) == (method == "lora")  # full needs more
    else:
        assert result.peak_loading_gpu_bytes < 1.02 * whole
    if stage == "2" or software:  # else rank 0 also reads a checkpoint, which the dry run does not
        on_host = result.peak_loading_host_bytes + PROCESS_BYTES
        assert candidate.memory.host_loading_bytes_per_node / 8 == pytest.approx(on_host, rel=0.02)
