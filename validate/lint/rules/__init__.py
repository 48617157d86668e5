"""All rules, by subject. A code is never given to another rule."""

from __future__ import annotations

from ..rule import Rule
from .engine import checkpointing, communication, experts, logging, resources
from .file import keys, reading, types
from .training import batch, optimizer, precision, scheduler, trainer
from .zero import aio, offload, zeropp
from .zero import stages as zero

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            rule
            for module in (
                reading,
                keys,
                types,
                batch,
                trainer,
                precision,
                zero,
                zeropp,
                offload,
                aio,
                optimizer,
                scheduler,
                communication,
                checkpointing,
                experts,
                logging,
                resources,
            )
            for rule in module.rules.rules
        ),
        key=lambda rule: rule.code,
    )
)
