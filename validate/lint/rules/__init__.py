"""All rules, by subject. A code is never given to another rule."""

from __future__ import annotations

from ..rule import Rule
from . import batch, features, keys, offload, optimizer, precision, resources, zero

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            rule
            for subject in (
                keys.FILE_RULES,
                keys.KEY_RULES,
                keys.TYPE_RULES,
                batch.BATCH_RULES,
                batch.TRAINER_RULES,
                batch.COMMUNICATION_RULES,
                precision.PRECISION_RULES,
                zero.ZERO_RULES,
                zero.ZEROPP_RULES,
                offload.OFFLOAD_RULES,
                offload.AIO_RULES,
                optimizer.OPTIMIZER_RULES,
                optimizer.SCHEDULER_RULES,
                features.EXPERT_RULES,
                features.CHECKPOINT_RULES,
                features.LOGGING_RULES,
                resources.RESOURCE_RULES,
            )
            for rule in subject.rules
        ),
        key=lambda rule: rule.code,
    )
)
