"""DS6xx: the scheduler block."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Parameter
from ..linted_config import LintedConfig, did_you_mean, number_in, shown
from ..rule import Hit, Rules, hit, unquoted
from .examples import ADAMW, plain, zero

rules = Rules()

_ENGINE = "runtime/engine.py _scheduler_from_config"
_SCHEDULES = "runtime/lr_schedules.py"
_DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 100}}


@rules.error(
    "DS601 an unknown scheduler",
    why="DeepSpeed asserts that the type is a class of its lr_schedules or of torch.optim.lr_scheduler",
    fix="correct the name",
    source=_ENGINE,
    bad=plain(scheduler={"type": "WarmupDecay", "params": {}}),
    good=plain(scheduler=_DECAY),
)
def unknown(config: LintedConfig) -> Iterator[Hit]:
    kind = config.get("scheduler.type")
    names = (*config.facts.schedulers, *config.facts.torch_schedulers)
    if kind is not None and not isinstance(kind, str):
        yield hit("scheduler.type", f"type is {shown(kind)}", fix="write the scheduler's name")
    elif kind is not None and config.facts.torch_schedulers and kind not in names:
        yield hit("scheduler.type", f"there is no scheduler {shown(kind)}{did_you_mean(kind, names)}")


@rules.error(
    "DS602 a scheduler without an argument that it needs",
    why="DeepSpeed passes scheduler.params to the class, which raises a TypeError where an argument without a default "
    "is missing",
    source=_SCHEDULES,
    bad=plain(scheduler={"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100}}),
    good=plain(scheduler=_DECAY),
)
def incomplete(config: LintedConfig) -> Iterator[Hit]:
    taken = _parameters(config)
    if taken is None:
        return
    given = config.get("scheduler.params")
    if not isinstance(given, dict):
        yield hit(
            "scheduler.params",
            "params is missing" if given is None else f"params is {shown(given)}",
            fix='add "params": {} with what it needs',
        )
        return
    missing = [parameter.name for parameter in taken if parameter.required and parameter.name not in given]
    if missing:
        yield hit(
            "scheduler.params",
            f"{config.text('scheduler.type')} needs {', '.join(missing)}",
            fix=f"add {', '.join(missing)}" + (' (the Trainer fills "auto")' if config.framework == "hf" else ""),
        )


@rules.error(
    "DS603 an argument that the scheduler does not take",
    why="DeepSpeed passes scheduler.params to the class, which raises a TypeError",
    fix="remove it, or correct its name",
    source=_SCHEDULES,
    bad=plain(scheduler={"type": "WarmupLR", "params": {"total_num_steps": 1000}}),
    good=plain(scheduler=_DECAY),
)
def wrong_argument(config: LintedConfig) -> Iterator[Hit]:
    taken = _parameters(config)
    names = [parameter.name for parameter in taken or ()]
    for name in config.block("scheduler.params") if taken is not None else ():
        if name not in names:
            path = f"scheduler.params.{name}" if "." not in name else "scheduler.params"
            kind = config.text("scheduler.type")
            yield hit(path, f"{kind} takes no {name[:40]!r}{did_you_mean(name, names)}")


@rules.error(
    "DS604 a warm-up of no steps",
    why="the warm-up schedulers refuse anything but a whole number above zero",
    fix="write 1 for no warm-up",
    source=_SCHEDULES,
    since="0.19.6",
    bad=plain(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 0}}),
    good=plain(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 1}}),
)
def no_warmup(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("scheduler.params.warmup_num_steps")
    warms = config.text("scheduler.type") in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
    if (
        warms
        and value != "auto"
        and "warmup_num_steps" in config.block("scheduler.params")
        and (not isinstance(value, int) or value <= 0)
    ):
        number = number_in(value)
        mended = isinstance(number, int) and number > 0
        yield hit(
            "scheduler.params.warmup_num_steps",
            f"warmup_num_steps is {shown(value)}",
            fix=f"write {number} without quotes" if mended else "",
            edits=unquoted("scheduler.params.warmup_num_steps", value) if mended else (),
        )


@rules.warning(
    "DS605 a warm-up longer than the training",
    why="the learning rate never reaches its highest value",
    fix="write a smaller warmup_num_steps",
    source=_SCHEDULES,
    bad=plain(scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 1000}}),
    good=plain(scheduler=_DECAY),
)
def long_warmup(config: LintedConfig) -> Iterator[Hit]:
    total, warmup = (config.number(f"scheduler.params.{name}") for name in ("total_num_steps", "warmup_num_steps"))
    if total is not None and warmup is not None and warmup > total:
        yield hit("scheduler.params.warmup_num_steps", f"the warm-up has {warmup:g} steps, the training {total:g}")


@rules.warning(
    "DS606 an unknown warm-up",
    why="the schedulers know log and linear; for any other they print a warning and take log",
    fix='write "linear" or "log"',
    source=_SCHEDULES,
    bad=plain(scheduler={"type": "WarmupLR", "params": {"warmup_type": "cosine"}}),
    good=plain(scheduler={"type": "WarmupLR", "params": {"warmup_type": "linear"}}),
)
def warmup_type(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("scheduler.params.warmup_type")
    if value is not None and value not in ("log", "linear") and config.text("scheduler.type").startswith("Warmup"):
        yield hit("scheduler.params.warmup_type", f"warmup_type is {shown(value)}")


@rules.warning(
    "DS607 a scheduler block without a type",
    why="DeepSpeed then ignores the whole block",
    fix='add "type"',
    source="runtime/config.py get_scheduler_name",
    bad=plain(scheduler={"params": {"warmup_num_steps": 10}}),
    good=plain(scheduler=_DECAY),
)
def no_type(config: LintedConfig) -> Iterator[Hit]:
    if isinstance(config.get("scheduler"), dict) and config.get("scheduler.type") is None:
        yield hit("scheduler", "the block has no type, so DeepSpeed ignores it")


@rules.warning(
    "DS608 a scheduler that overrides the learning rate",
    why="the warm-up ends at warmup_max_lr, whatever the optimizer's lr is",
    fix="write the same number in both, or leave warmup_max_lr out of WarmupLR",
    source=_SCHEDULES,
    bad=plain(optimizer=ADAMW, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}}),
    good=plain(optimizer=ADAMW, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}),
)
def two_rates(config: LintedConfig) -> Iterator[Hit]:
    rate, highest = config.number("optimizer.params.lr"), config.number("scheduler.params.warmup_max_lr")
    if (
        rate
        and highest is not None
        and highest != rate
        and config.text("scheduler.type") in ("WarmupLR", "WarmupDecayLR")
    ):
        yield hit("scheduler.params.warmup_max_lr", f"lr is {rate:g}, but warmup_max_lr is {highest:g}")


@rules.error(
    "DS609 torch's scheduler around DeepSpeed's optimizer",
    why="ZeRO, fp16 and bf16 wrap the optimizer in a class of DeepSpeed's, which torch's schedulers refuse with a "
    "TypeError; "
    "DeepSpeed's own look inside it",
    fix="use one of DeepSpeed's schedulers, or create torch's in the script from the optimizer that it wraps",
    source="runtime/engine.py _configure_lr_scheduler",
    bad=plain(zero_optimization=zero(2), optimizer=ADAMW, scheduler={"type": "StepLR", "params": {"step_size": 10}}),
    good=plain(zero_optimization=zero(2), optimizer=ADAMW, scheduler=_DECAY),
)
def torchs(config: LintedConfig) -> Iterator[Hit]:
    kind = config.text("scheduler.type")
    wrapped = config.stage or config.fp16 or config.bf16
    if wrapped and kind in config.facts.torch_schedulers and kind not in config.facts.schedulers:
        yield hit("scheduler.type", f"{kind} is torch's, and the optimizer is wrapped")


@rules.error(
    "DS610 a number of the warm-up that is text",
    why="the scheduler subtracts and compares it, and raises a TypeError",
    fix="write a number",
    source=_SCHEDULES,
    bad=plain(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": "1e-5"}}),
    good=plain(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}),
)
def text(config: LintedConfig) -> Iterator[Hit]:
    kind = config.text("scheduler.type")
    names = ["warmup_min_lr", "warmup_max_lr", "total_num_steps"]
    if not config.facts.at_least("0.19.6"):  # since then the scheduler refuses it itself (DS604)
        names.append("warmup_num_steps")
    for name in names if kind in ("WarmupLR", "WarmupDecayLR") else ():
        path = f"scheduler.params.{name}"
        if config.text(path) not in ("", "auto"):
            yield hit(path, f"{name} is {shown(config.text(path))}", edits=unquoted(path, config.text(path)))


def _parameters(config: LintedConfig) -> tuple[Parameter, ...] | None:
    """The arguments of the scheduler's class, None for a class that is not known."""
    kind = config.text("scheduler.type")
    return config.facts.schedulers.get(kind) or config.facts.torch_schedulers.get(kind)
