"""Batch sizes, `auto` and the Trainer (DS1xx)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.phrase import Phrase, phrase
from . import rule_conditions as when
from .facts import DeepSpeedFacts
from .linted_config import LintedConfig, number_in, shown
from .rule import KeyPath, Rules, Violation, bad_value, unquoted, violation
from .rule_conditions import Condition, at

BATCH_RULES = Rules("Batch sizes")
_SOURCE = "runtime/config.py _set_batch_related_parameters, _batch_assertion"
TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@BATCH_RULES.error(
    "DS101 batch sizes in contradiction",
    why="train_batch_size must be micro batch x accumulation steps x GPUs, and DeepSpeed stops where it is not",
    fix="remove train_batch_size: it follows from the others",
    source=_SOURCE,
)
def contradiction(config: LintedConfig) -> Iterator[Violation]:
    total, micro, steps = _positive(config, TOTAL), _positive(config, MICRO), _steps(config)
    ranks = _data_parallel_ranks(config)
    if not total or not micro:
        return
    sizes = {"total": total, "micro": micro, "steps": steps, "ranks": ranks, "product": micro * steps * (ranks or 0)}
    what = None
    if steps and ranks is None and total % (micro * steps):
        what = phrase(
            "{total} is not a multiple of {micro} samples x {steps} accumulation steps on any number of GPUs", **sizes
        )
    elif steps and ranks and total != micro * steps * ranks:
        what = phrase("{total} is not {micro} samples x {steps} steps x {ranks} GPUs, which is {product}", **sizes)
    elif not steps and total % micro:
        what = phrase("{total} is not a multiple of the micro batch {micro}", **sizes)
    elif not steps and ranks and total % (micro * ranks):
        what = phrase("{total} is not a multiple of {micro} samples x {ranks} GPUs", **sizes)
    if what and steps and not config.has(STEPS):
        what = phrase("{what}; accelerate sets an absent {key} to 1", what=what, key=STEPS)
    if what:
        yield violation(TOTAL, what)


BATCH_RULES.error(
    "DS102 no batch size",
    at(
        MICRO,
        when.equals(None) & when.is_missing(TOTAL),
        "neither train_batch_size nor train_micro_batch_size_per_gpu is set",
    ),
    why="DeepSpeed derives one of the batch sizes from the others, and stops where both are missing",
    fix='set train_micro_batch_size_per_gpu to a number, or to "auto" for the Trainer',
    source=_SOURCE,
)


@BATCH_RULES.error(
    "DS103 a batch size, or its divisor, that is not a number above zero",
    why="DeepSpeed computes with it when it starts, and stops",
    fix="write a whole number above zero",
    source=_SOURCE,
)
def not_positive(config: LintedConfig) -> Iterator[Violation]:
    for name in (TOTAL, MICRO, STEPS, "sequence_parallel_size"):
        value = config.get(name)
        if ((value is None or value == "auto") and name != "sequence_parallel_size") or not config.has(name):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            number = number_in(value)
            edits = unquoted(name, value) if isinstance(number, int) and number > 0 else ()
            yield bad_value(config, name, severity="warning" if value is True else None, edits=edits)
        elif value % 1:
            yield violation(name, "{name} is {value}, not a whole number", name=name, value=shown(value))


@BATCH_RULES.error(
    "DS104 a batch that GPUs and accumulation steps do not divide",
    why="each GPU's micro batch is train_batch_size / GPUs / accumulation steps, rounded down, and DeepSpeed then "
    "finds that the product is another",
    fix="choose a multiple of GPUs x accumulation steps",
    source=_SOURCE,
)
def indivisible(config: LintedConfig) -> Iterator[Violation]:
    total, steps, ranks = _positive(config, TOTAL), _positive(config, STEPS) or 1, _data_parallel_ranks(config) or 1
    open_micro = config.get(MICRO) is None or (config.is_auto(MICRO) and config.framework == "hf")
    if total and open_micro and total % (ranks * steps):
        words = phrase("{total} is not a multiple of {factors}", total=total, factors=_factors(ranks, steps))
        yield violation(TOTAL, words)


def _factors(ranks: int, steps: int) -> Phrase:
    by_ranks, by_steps = phrase("{ranks} GPUs", ranks=ranks), phrase("{steps} accumulation steps", steps=steps)
    if min(ranks, steps) > 1:
        return phrase("{ranks} x {steps}", ranks=by_ranks, steps=by_steps)
    return by_ranks if ranks > 1 else by_steps


BATCH_RULES.warning(
    "DS106 sequence parallelism that does not divide the GPUs",
    at("sequence_parallel_size", when.splits_ranks_unevenly, "{number} does not divide {ranks} GPUs"),
    why="DeepSpeed divides the number of GPUs by it to get the number of groups, and continues with the fraction",
    fix="choose a divisor of the number of GPUs",
    source="runtime/config.py DeepSpeedConfig.__init__",
)


_shares_samples = Condition(lambda config, _: _positive(config, "sequence_parallel_size") > 1)
_at_stage_3 = Condition(lambda config, _: config.get("zero_optimization.stage") == 3)

BATCH_RULES.error(
    "DS107 a total batch left to the Trainer where GPUs share samples",
    at(
        TOTAL,
        when.equals("auto") & when.for_trainer & _shares_samples & _at_stage_3,
        "the Trainer would fill in what all GPUs take, whole samples each",
    ),
    why="the Trainer fills in what all GPUs take, and at stage 3 DeepSpeed holds that against the groups that share a "
    "sample while the model is built, and stops",
    fix="remove train_batch_size: accelerate sets it, knowing the groups",
    source="transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig.trainer_config_process; "
    "runtime/config.py _batch_assertion",
)


def _positive(config: LintedConfig, name: str) -> int:
    """The whole number above zero under a key; 0 for anything else."""
    value = config.number(name)
    return int(value) if value is not None and value > 0 and not value % 1 else 0


def _steps(config: LintedConfig) -> int:
    """The accumulation steps; 0 if unknown. accelerate writes 1 into a file without the key (accelerate 1.15,
    utils/dataclasses.py `DeepSpeedPlugin.__post_init__`)."""
    return 1 if config.framework == "hf" and not config.has(STEPS) else _positive(config, STEPS)


def _data_parallel_ranks(config: LintedConfig) -> int | None:
    """The number of ranks that a batch is divided over; None if unknown."""
    ranks = config.world_size
    if ranks is None:
        return None
    for path in ("sequence_parallel_size", "tensor_parallel.autotp_size"):
        size = _positive(config, path)
        if size and ranks % size:
            return None
        ranks //= size or 1
    return ranks


TRAINER_RULES = Rules("`auto` and the Trainer")
_TRAINER = "transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig"
_ACCELERATES = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)
"""Keys that accelerate's plugin fills from its environment."""
_READ_AS_THEY_ARE = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "gradient_predivide_factor",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "gradient_allreduce_op",
)
"""Keys for which plain DeepSpeed fails on the text "auto"."""


@TRAINER_RULES.error(
    'DS151 "auto" that nobody fills',
    why="only the Trainer and accelerate replace it, and only for some keys: accelerate stops at any that is left; "
    "DeepSpeed computes with the text and stops",
    fix="write a value, or leave the key out",
    source=_TRAINER + "; accelerate/utils/dataclasses.py DeepSpeedPlugin.deepspeed_config_process",
)
def unfilled(config: LintedConfig) -> Iterator[Violation]:
    if config.framework == "hf":
        for path in _autos(config.values):
            if not _filled(path):
                yield Violation(path=path, what='neither the Trainer nor accelerate fills "auto" here')
        return
    paths = list(_READ_AS_THEY_ARE)
    for block in ("optimizer.params", "scheduler.params"):
        paths += [f"{block}.{name}" for name in config.block(block)]
    for each in paths:
        if config.is_auto(each):
            yield violation(each, 'plain DeepSpeed does not fill "auto" here')


def is_for_the_trainer(values: Any, facts: DeepSpeedFacts) -> bool:
    """Whether a file must be meant for the Trainer or accelerate: they fill all its "auto" values, or plain DeepSpeed
    does not replace one of them by its default."""
    paths = list(_autos(values)) if isinstance(values, dict) else []
    blocks = [facts.block(".".join(path[:-1])) for path in paths]
    dropped = all(block is not None and block.strict for block in blocks)
    return bool(paths) and (all(map(_filled, paths)) or not dropped)


def _filled(path: KeyPath) -> bool:
    """Whether the Trainer or accelerate fills an "auto" at this path."""
    known = CONFIG_KEYS.get(".".join(path))
    return (known is not None and known.filled) or ".".join(path) in _ACCELERATES


def _autos(node: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all "auto" values. accelerate searches objects, not lists."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _autos(value, (*above, name))
        elif isinstance(value, str) and value == "auto":
            yield (*above, name)


TRAINER_RULES.error(
    "DS153 no zero_optimization for the Trainer",
    at("zero_optimization", when.for_trainer & ~when.given & ~when.is_on("autotuning.enabled"), "{name} is missing"),
    why="accelerate refuses a configuration without it, even for plain data parallelism",
    fix='add "zero_optimization": {"stage": 0}',
    source="accelerate/utils/dataclasses.py DeepSpeedPlugin.__post_init__",
)


@TRAINER_RULES.advice(
    "DS154 a number that TrainingArguments has too",
    why="the Trainer compares them when it starts, and stops where they differ",
    fix='write "auto", so that TrainingArguments decides',
    source=_TRAINER + ".fill_match",
)
def in_both(config: LintedConfig) -> Iterator[Violation]:
    for path, known in CONFIG_KEYS.items():
        if config.framework == "hf" and known.argument and config.number(path) is not None:
            yield violation(
                path, "{path} must be equal to TrainingArguments' {argument}", path=path, argument=known.argument
            )


TRAINER_RULES.warning(
    "DS155 a learning rate that TrainingArguments cannot set",
    at(
        "optimizer.params",
        when.for_trainer & when.has_adam & when.is_missing("optimizer.params.lr"),
        "{name} has no lr",
    ),
    why='the Trainer fills lr only where the file has "auto"; without the key DeepSpeed\'s Adam takes 1e-3, whatever '
    "learning_rate is",
    fix='add "lr": "auto" to optimizer.params',
    source=_TRAINER + ".fill_match; ops/adam/fused_adam.py",
)
