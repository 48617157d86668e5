"""All rules, by subject. A code is never given to another rule."""

from __future__ import annotations

from . import rules_batch as batch
from . import rules_features as features
from . import rules_file as file
from . import rules_keys as keys
from . import rules_offload as offload
from . import rules_optimizer as optimizer
from . import rules_precision as precision
from . import rules_resources as resources
from . import rules_zero as zero
from .rule import Rule

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            rule
            for subject in (
                file.FILE_RULES,
                keys.KEY_RULES,
                file.TYPE_RULES,
                batch.BATCH_RULES,
                batch.TRAINER_RULES,
                features.COMMUNICATION_RULES,
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
