"""DS1xx: batch sizes."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, number_in, shown
from ..rule import Hit, Rules, hit, unquoted

rules = Rules()

_SOURCE = "runtime/config.py _set_batch_related_parameters, _batch_assertion"
TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@rules.error(
    "DS101 batch sizes in contradiction",
    why="train_batch_size must be micro batch x accumulation steps x GPUs, and DeepSpeed stops where it is not",
    fix="remove train_batch_size: it follows from the others",
    source=_SOURCE,
    bad={TOTAL: 30, MICRO: 4, STEPS: 2},
    good={TOTAL: 32, MICRO: 4, STEPS: 2},
)
def contradiction(config: LintedConfig) -> Iterator[Hit]:
    total, micro, steps = (_positive(config, name) for name in (TOTAL, MICRO, STEPS))
    ranks = _data_parallel_ranks(config)
    if not total or not micro:
        return
    if steps and ranks is None and total % (micro * steps):
        yield hit(TOTAL, f"{total} is not a multiple of {micro} samples x {steps} accumulation steps on any GPUs")
    elif steps and ranks and total != micro * steps * ranks:
        yield hit(
            TOTAL,
            f"{total} is not {micro} samples x {steps} accumulation steps x {ranks} GPUs, "
            f"which are {micro * steps * ranks}",
        )
    elif not steps and total % micro:
        yield hit(TOTAL, f"{total} is not a multiple of the micro batch {micro}")
    elif not steps and ranks and total % (micro * ranks):
        yield hit(TOTAL, f"{total} is not a multiple of {micro} samples x {ranks} GPUs")


@rules.error(
    "DS102 no batch size",
    why="DeepSpeed derives one of the batch sizes from the others, and stops where both are missing",
    fix=f'set {MICRO} to a number, or to "auto" for the Trainer',
    source=_SOURCE,
    bad={STEPS: 2},
    good={MICRO: 1, STEPS: 2},
)
def missing(config: LintedConfig) -> Iterator[Hit]:
    if config.get(TOTAL) is None and config.get(MICRO) is None:
        yield hit(MICRO, f"neither {TOTAL} nor {MICRO} is set")


@rules.error(
    "DS103 a batch size, or its divisor, that is not a number above zero",
    why="DeepSpeed computes with it when it starts, and stops",
    fix="write a whole number above zero",
    source=_SOURCE,
    bad={MICRO: 0},
    good={MICRO: 1},
)
def not_positive(config: LintedConfig) -> Iterator[Hit]:
    for name in (TOTAL, MICRO, STEPS, "sequence_parallel_size"):
        value = config.get(name)
        if ((value is None or value == "auto") and name != "sequence_parallel_size") or not config.has(name):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            number = number_in(value)
            edits = unquoted(name, value) if isinstance(number, int) and number > 0 else ()
            yield hit(name, f"{name} is {shown(value)}", severity="warning" if value is True else None, edits=edits)
        elif value % 1:
            yield hit(name, f"{name} is {shown(value)}, not a whole number")


@rules.error(
    "DS104 a batch that does not divide by the GPUs",
    why="each GPU's micro batch is train_batch_size / GPUs / accumulation steps, rounded down, and DeepSpeed then "
    "finds that the product is another",
    fix="choose a multiple of GPUs x accumulation steps",
    source=_SOURCE,
    options={"gpus": "4x24GB"},
    bad={TOTAL: 6},
    good={TOTAL: 8},
)
def indivisible(config: LintedConfig) -> Iterator[Hit]:
    total, steps, ranks = _positive(config, TOTAL), _positive(config, STEPS), _data_parallel_ranks(config)
    if total and ranks and config.get(MICRO) is None and total % (ranks * (steps or 1)):
        over = f"{ranks} GPUs" + (f" x {steps} accumulation steps" if steps else "")
        yield hit(TOTAL, f"{total} is not a multiple of {over}")


@rules.advice(
    "DS105 the whole batch in one micro batch",
    why="without the other two keys DeepSpeed takes train_batch_size / GPUs as the micro batch, without accumulation, "
    "and activations grow with it",
    fix=f"set {MICRO} to what fits; DeepSpeed then accumulates",
    source=_SOURCE,
    bad={TOTAL: 64},
    good={TOTAL: 64, MICRO: 4},
)
def only_total(config: LintedConfig) -> Iterator[Hit]:
    total, ranks = _positive(config, TOTAL), _data_parallel_ranks(config)
    if total and config.get(MICRO) is None and config.get(STEPS) is None and total // (ranks or 8) > 4:
        each = f"{total // ranks}" if ranks else f"{total} / GPUs"
        yield hit(TOTAL, f"the micro batch is {each} samples")


@rules.warning(
    "DS106 sequence parallelism that does not divide the GPUs",
    why="DeepSpeed divides the number of GPUs by it to learn how many share a batch, and goes on with the fraction",
    fix="choose a divisor of the number of GPUs",
    source="runtime/config.py DeepSpeedConfig.__init__",
    options={"gpus": "4x24GB"},
    bad={MICRO: 1, "sequence_parallel_size": 3},
    good={MICRO: 1, "sequence_parallel_size": 2},
)
def sequence_parallel(config: LintedConfig) -> Iterator[Hit]:
    size, ranks = _positive(config, "sequence_parallel_size"), config.world_size
    if size and ranks and ranks % size:
        yield hit("sequence_parallel_size", f"{size} does not divide {ranks} GPUs")


@rules.error(
    "DS107 a total batch left to the Trainer where GPUs share samples",
    why="the Trainer fills in what all GPUs take, and at stage 3 DeepSpeed holds that against the groups that share a "
    "sample while the model is built, and stops",
    fix="remove train_batch_size: accelerate sets it, knowing the groups",
    source="transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig.trainer_config_process; "
    "runtime/config.py _batch_assertion",
    options={"framework": "hf"},
    bad={TOTAL: "auto", MICRO: "auto", "sequence_parallel_size": 2, "zero_optimization": {"stage": 3}},
    good={MICRO: "auto", "sequence_parallel_size": 2, "zero_optimization": {"stage": 3}},
)
def total_of_all(config: LintedConfig) -> Iterator[Hit]:
    shares = _positive(config, "sequence_parallel_size") > 1
    if shares and config.framework == "hf" and config.is_auto(TOTAL) and config.get("zero_optimization.stage") == 3:
        yield hit(TOTAL, "the Trainer would fill in what all GPUs take, whole samples each")


def _positive(config: LintedConfig, name: str) -> int:
    """A whole number above zero, 0 for anything else."""
    value = config.number(name)
    return int(value) if value is not None and value > 0 and not value % 1 else 0


def _data_parallel_ranks(config: LintedConfig) -> int | None:
    """How many ranks a batch is divided over, None where it is not known."""
    ranks = config.world_size
    if ranks is None:
        return None
    for path in ("sequence_parallel_size", "tensor_parallel.autotp_size"):
        size = _positive(config, path)
        if size and ranks % size:
            return None
        ranks //= size or 1
    return ranks
