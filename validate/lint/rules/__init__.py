"""All rules, by subject. A code is never given to another rule."""

from __future__ import annotations

from ..rule import Rule
from . import (
    aio,
    batch,
    checkpointing,
    communication,
    experts,
    keys,
    logging,
    offload,
    optimizer,
    precision,
    reading,
    resources,
    scheduler,
    stages,
    trainer,
    types,
    zeropp,
)

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
                stages,
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
