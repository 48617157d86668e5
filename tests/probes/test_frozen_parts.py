"""Frozen parts of a vision-language model, as the real engine trains them with images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.vision_parts import freeze_parts
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.step_time import estimate_plan
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

from tests.helpers import dry_runs_in_forks, sizes

TEXT = sizes(2560, 43040, 4, 8, 4, 32768, model_type="gemma3_text", head_dim=256, layer_types=["full_attention"] * 4)
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
GEMMA = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": TEXT,
    "vision_config": VISION,
    "mm_tokens_per_image": 256,
}
LLAVA = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": sizes(2048, 5504, 4, 16, 16, 32064, model_type="llama"),
    "vision_config": {**VISION, "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336},
}
FILE = """
import json, os, torch
os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"  # placeholders in a batch without values
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.initialization import no_init_weights

CONFIG = json.loads('''CONFIG_JSON''')

def build_model():
    with no_init_weights():
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**CONFIG))
        model.tie_weights()
    return model.to(torch.bfloat16).train()

def make_batch(batch, length):
    words, side = torch.zeros((batch, length), dtype=torch.long), CONFIG["vision_config"]["image_size"]
    return {"input_ids": words, "labels": words.clone(), "pixel_values": torch.zeros((batch, 3, side, side))}
"""


def allocated(
    folder: Path, method: Method, parts: tuple[str, ...], config: dict[str, Any] = GEMMA, **plan: Any
) -> tuple[int, int]:
    """Predicted and dry-run peak, in bytes."""
    (folder / "model.py").write_text(FILE.replace("CONFIG_JSON", json.dumps(config)), encoding="utf-8")
    cluster, workload = (
        parse_cluster("4xA100-80GB"),
        Workload(seq_len=2048, method=method, freeze=parts, framework="deepspeed"),
    )
    shape = freeze_parts(model_shape(config, name="model", with_image=True), parts)
    chosen = Plan(**{"zero_stage": 2, "micro_batch_size": 4, **plan})
    run = Run.from_plan(chosen, shape, workload, cluster, description=f"{folder / 'model.py'}:build_model")
    with dry_runs_in_forks():
        result = dry_run(run, rank=3)
    memory = estimate_plan(shape, workload, cluster, chosen).memory
    assert result.trainable_parameters == tensor_set(shape, workload).trainable_numel
    return memory.allocated_bytes_per_gpu, result.peak.allocated_bytes_per_gpu


@pytest.mark.slow
@pytest.mark.parametrize(("method", "checkpointing"), [("full", False), ("lora", True)])
def test_a_frozen_tower_and_projector_need_what_the_engine_needs(
    tmp_path: Path, method: Method, checkpointing: bool
) -> None:
    predicted, real = allocated(tmp_path, method, ("vision-tower", "projector"), gradient_checkpointing=checkpointing)
    assert predicted == pytest.approx(real, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "checkpointing"), [(2, False), (3, True)])
def test_a_projector_alone_needs_what_the_engine_needs(tmp_path: Path, stage: int, checkpointing: bool) -> None:
    """LLaVA, recorded with an image: samples of text would train nothing."""
    parts, plan = ("vision-tower", "language-model"), {"zero_stage": stage, "gradient_checkpointing": checkpointing}
    predicted, real = allocated(tmp_path, "full", parts, LLAVA, **plan)
    assert predicted == pytest.approx(real, rel=0.01)
