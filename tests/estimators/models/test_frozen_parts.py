"""Parts of a vision-language model that do not train."""

from __future__ import annotations

import ds_advise
import pytest
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.lora import adapters
from ds_advise.estimators.models.vision_parts import freeze_parts, frozen_prefixes, select_parts
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.flops import micro_batch_flops
from ds_advise.estimators.workload import Workload

QWEN = find("Qwen2.5-VL-3B")
ALL = ("vision-tower", "projector", "language-model")


def test_every_tensor_is_in_one_part() -> None:
    sets = [tensor_set(freeze_parts(QWEN, (part,)), Workload()) for part in ALL]
    assert sum(sum(each.frozen) for each in sets) == QWEN.parameters == sets[0].numel


def test_frozen_tensors_have_no_gradient_and_no_adapter() -> None:
    frozen = freeze_parts(QWEN, ALL[:2])
    kept = tensor_set(frozen, Workload())
    assert kept.trainable_numel + sum(kept.frozen) == QWEN.parameters
    chosen = adapters(frozen, Workload(method="lora"))
    assert {block.prefix for block in frozen.blocks if any(map(chosen.adapter_rank, block.tensors))} == {
        "model.language_model.layers"
    }


def test_prefixes_hold_frozen_tensors_alone() -> None:
    assert frozen_prefixes(freeze_parts(QWEN, ALL[:2])) == ("model.visual.",)
    assert frozen_prefixes(freeze_parts(QWEN, ALL[1:2])) == ("model.visual.merger.",)


def test_a_part_that_a_model_has_not_changes_nothing_and_one_part_trains() -> None:
    assert select_parts(find("Qwen2.5-7B"), ALL[:2]) == ()
    with pytest.raises(WorkloadError, match="no part of"):
        freeze_parts(QWEN, ALL)
    with pytest.raises(WorkloadError, match="no part 'tower'"):
        select_parts(QWEN, ("tower",))


def test_a_frozen_tower_trains_faster_in_less_memory() -> None:
    options = {"gpus": "8x80GB", "micro_batch": 1, "gradient_checkpointing": "off", "deepspeed_estimate": False}
    whole, frozen = (
        ds_advise.advise("Qwen2.5-VL-3B", freeze=freeze, **options).recommended
        for freeze in (None, "vision_tower,projector")
    )
    assert whole is not None and frozen is not None
    assert frozen.memory.allocated_bytes_per_gpu < whole.memory.allocated_bytes_per_gpu
    assert frozen.time.step_s < whole.time.step_s


def test_a_frozen_language_model_passes_gradients_on_and_makes_none() -> None:
    """2 S flop less for each weight of its layers and of the head; the projector's gradient comes through them."""
    plan = Plan(zero_stage=2, micro_batch_size=1)
    whole, frozen = (micro_batch_flops(model, Workload(), plan) for model in (QWEN, freeze_parts(QWEN, ALL[2:])))
    (layers,) = (block for block in QWEN.blocks if block.prefix == "model.language_model.layers")
    weights = layers.count * sum(tensor.numel for tensor in layers.tensors if tensor.linear)
    assert whole.forward == frozen.forward
    saved = 2 * Workload().seq_len * (weights + QWEN.vocab_size * 2048)
    assert whole.backward - frozen.backward == pytest.approx(saved, rel=1e-3)
