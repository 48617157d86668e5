"""Recorded models against the same models by their rows, where transformers' code has a particularity."""

from __future__ import annotations

import pytest
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.workload import Workload
from ds_advise.probes.model_recorder.recorded_model import recorded_model

from benchmarks.dry_run.cases import FAMILIES
from tests.helpers import sizes

CONFIGS = {
    # Experts are stored as (expert, in, out), so no view of them is saved.
    "gpt_oss": {
        "model_type": "gpt_oss",
        **sizes(512, 512, 2, 8, 2, 8000),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    },
    # No tensor of the tower gets a gradient.
    "qwen3_5": FAMILIES["qwen3_5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_recording_has_the_tensors_of_the_row(name: str) -> None:
    work = Workload(seq_len=512)
    row = tensor_set(shape_from_config(CONFIGS[name], name=name), work)
    recorded = tensor_set(recorded_model(CONFIGS[name], name=name, source=""), work)
    assert (recorded.numel, recorded.viewed, recorded.idle) == (row.numel, row.viewed, row.idle)
