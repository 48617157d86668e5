"""What stage 3 copies in a GPU's memory besides what travels."""

from __future__ import annotations

import pytest
from ds_advise.estimators.memory.trainable import TensorSet, tensor_set
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.memory_bound import concatenated_shares, reduced_passes
from ds_advise.estimators.workload import Workload

from tests.estimators.small_models import wide_gpt2


def gpt(width: int) -> TensorSet:
    return tensor_set(shape_from_config(wide_gpt2(width, 48), name="gpt"), Workload(seq_len=512).of_weights())


def stage3(**changes: int) -> Plan:
    return Plan(zero_stage=3, micro_batch_size=1, **changes)


def test_a_tensor_as_large_as_a_prefetch_travels_alone() -> None:
    """All matrices of these layers have more than 50 million elements; of Qwen2.5-7B's a bucket takes several, a third
    or so of it, as following the engine's prefetches through its whole trace has it."""
    assert concatenated_shares(gpt(8192), stage3()) == pytest.approx((0, 0), abs=0.02)
    small = tensor_set(find("qwen2.5-7b"), Workload(seq_len=512).of_weights())
    assert concatenated_shares(small, stage3()) == pytest.approx((0.35, 0.38), abs=0.05)
    assert concatenated_shares(small, stage3(stage3_prefetch_bucket_size=0)) == (0, 0)


def test_gradients_are_concatenated_shares_unless_one_fills_a_bucket_alone() -> None:
    """Divided, copied into the bucket, put together: two passes each. Of a matrix larger than a bucket whose parts need
    no padding only the division is left."""
    tensors = gpt(8192)
    assert reduced_passes(tensors, 10**7, 384) > 2.9  # 384 ranks pad
    assert reduced_passes(tensors, 10**7, 64) == pytest.approx(2, abs=0.02)
    assert reduced_passes(tensors, 2 * 10**9, 64) == pytest.approx(6, abs=0.02)
