"""DS5xx: the optimizer block."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Parameter
from ..linted_config import LintedConfig, did_you_mean, number_in, shown
from ..rule import Hit, Replace, Rules, hit, unquoted
from .examples import ADAMW, ON, plain, zero

rules = Rules()

_ENGINE = "runtime/engine.py _configure_basic_optimizer"

_ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
"""DeepSpeed 0.18 still has them (runtime/config.py ONEBIT_ADAM_OPTIMIZER and the two after it)."""

_SGD = {"type": "SGD", "params": {"lr": 0.1}}


@rules.error(
    "DS501 an unknown optimizer",
    why="DeepSpeed asserts that the type is one of its own names or a class of torch.optim",
    fix="correct the name, or create the optimizer in the script and remove the block",
    source="runtime/engine.py _is_supported_optimizer",
    bad=plain(optimizer={"type": "AdamWW", "params": {"lr": 1e-5}}),
    good=plain(optimizer=ADAMW),
)
def unknown(config: LintedConfig) -> Iterator[Hit]:
    kind = config.get("optimizer.type")
    torch_names = config.facts.torch_optimizers
    if kind is not None and not isinstance(kind, str):
        yield hit("optimizer.type", f"type is {shown(kind)}", fix="write the optimizer's name")
    elif kind is not None and torch_names and config.optimizer not in (*config.facts.optimizers, *torch_names):
        names = [*config.facts.optimizers, *torch_names]
        if kind.lower() in _ONE_BIT:
            yield hit(
                "optimizer.type",
                f"the 1-bit optimizers are gone from DeepSpeed, and {config.facts.version} has no {shown(kind)}",
                fix='write "AdamW", without the arguments for compression in params',
            )
            return
        near = did_you_mean(kind, names) or did_you_mean(kind.lower(), names)
        yield hit("optimizer.type", f"neither DeepSpeed nor torch.optim has {shown(kind)}{near}")


@rules.warning(
    "DS502 an optimizer block without a type",
    why="DeepSpeed then ignores the whole block",
    fix='add "type"',
    source="runtime/config.py get_optimizer_name",
    bad=plain(optimizer={"params": {"lr": 1e-5}}),
    good=plain(optimizer=ADAMW),
)
def no_type(config: LintedConfig) -> Iterator[Hit]:
    if isinstance(config.get("optimizer"), dict) and config.get("optimizer.type") is None:
        yield hit("optimizer", "the block has no type, so DeepSpeed ignores it")


@rules.error(
    "DS503 max_grad_norm in the optimizer",
    why="DeepSpeed itself clips the gradients, and refuses the key in optimizer.params",
    fix='move it to the top level as "gradient_clipping"',
    source=_ENGINE,
    bad=plain(optimizer={"type": "AdamW", "params": {"lr": 1e-5, "max_grad_norm": 1.0}}),
    good=plain(gradient_clipping=1.0, optimizer=ADAMW),
)
def max_grad_norm(config: LintedConfig) -> Iterator[Hit]:
    if config.optimizer and "max_grad_norm" in config.block("optimizer.params"):
        yield hit("optimizer.params.max_grad_norm", "max_grad_norm stands in optimizer.params")


@rules.error(
    "DS504 an optimizer that ZeRO has not tested",
    why="ZeRO accepts Adam, AdamW, Adagrad, Lion and Muon; for any other it asserts that you allowed it",
    fix='add "zero_allow_untested_optimizer": true',
    source="runtime/engine.py _do_optimizer_sanity_check",
    bad=plain(optimizer=_SGD, zero_optimization=zero(2)),
    good=plain(optimizer=_SGD, zero_optimization=zero(2), zero_allow_untested_optimizer=True),
)
def untested(config: LintedConfig) -> Iterator[Hit]:
    known = config.optimizer in config.facts.optimizers or config.optimizer in config.facts.torch_optimizers
    spec = config.optimizer_spec
    tested = spec is not None and spec.tested_with_zero
    if config.stage and known and not tested and not config.get("zero_allow_untested_optimizer"):
        yield hit("optimizer.type", f"{config.optimizer} is untested with ZeRO")


@rules.error(
    "DS505 an argument that the optimizer does not take",
    why="DeepSpeed passes optimizer.params to the class, which raises a TypeError",
    fix="remove it, or correct its name",
    source=_ENGINE,
    bad=plain(optimizer={"type": "AdamW", "params": {"learning_rate": 1e-5}}),
    good=plain(optimizer=ADAMW),
)
def wrong_argument(config: LintedConfig) -> Iterator[Hit]:
    taken = _arguments(config)
    given = config.get("optimizer.params")
    if taken is None or not isinstance(given, dict):
        if config.optimizer and given is not None and not isinstance(given, dict):
            yield hit("optimizer.params", f"params is {shown(given)}", fix="write an object")
        return
    for name in given:
        if name not in taken and name != "max_grad_norm":
            path = f"optimizer.params.{name}" if "." not in name else "optimizer.params"
            yield hit(path, f"{config.optimizer} takes no {name[:40]!r}{did_you_mean(name, taken, cutoff=0.5)}")


@rules.error(
    "DS506 amsgrad",
    why="DeepSpeed's Adams do not have it and raise a RuntimeError",
    fix="remove amsgrad",
    source="ops/adam/fused_adam.py, ops/adam/cpu_adam.py",
    bad=plain(optimizer={"type": "Adam", "params": {"lr": 1e-5, "amsgrad": True}}),
    good=plain(optimizer={"type": "Adam", "params": {"lr": 1e-5, "amsgrad": False}}),
)
def amsgrad(config: LintedConfig) -> Iterator[Hit]:
    torch_adam = config.flag("optimizer.params.torch_adam") and config.optimizer != "lamb"
    on_gpu = config.offload("optimizer") == "none"
    refuses = config.has_adam or (config.optimizer == "lamb" and on_gpu)
    value = config.get("optimizer.params.amsgrad")
    if refuses and not torch_adam and value:
        yield hit(
            "optimizer.params.amsgrad",
            f"DeepSpeed has no {config.optimizer} with AMSGrad",
            severity="warning" if value == "auto" else None,
        )


@rules.error(
    "DS507 LAMB with a static loss scale",
    why="DeepSpeed asserts that LAMB comes with dynamic loss scaling",
    fix='set "loss_scale": 0 in fp16',
    source="runtime/engine.py _do_sanity_check",
    bad=plain(optimizer={"type": "Lamb", "params": {"lr": 1e-5}}, fp16=ON | {"loss_scale": 128}),
    good=plain(optimizer={"type": "Lamb", "params": {"lr": 1e-5}}, fp16=ON | {"loss_scale": 0}),
)
def lamb(config: LintedConfig) -> Iterator[Hit]:
    scale = config.number("fp16.loss_scale")
    if config.optimizer == "lamb" and scale is not None and scale > 0:
        yield hit("fp16.loss_scale", f"the loss scale is always {scale:g}")


@rules.error(
    "DS508 Muon with reduce_scatter at stage 3",
    why="Muon needs whole gradient matrices, and stage 3 refuses it where gradients are scattered (the default)",
    fix='set "reduce_scatter": false',
    source="runtime/zero/stage3.py __init__",
    since="0.19",
    bad=plain(optimizer={"type": "Muon", "params": {"lr": 1e-3}}, zero_optimization=zero(3)),
    good=plain(optimizer={"type": "Muon", "params": {"lr": 1e-3}}, zero_optimization=zero(3, reduce_scatter=False)),
)
def muon(config: LintedConfig) -> Iterator[Hit]:
    spec = config.optimizer_spec
    needed = spec is not None and spec.per_matrix
    if needed and config.stage == 3 and not config.off("zero_optimization.reduce_scatter"):
        yield hit("zero_optimization.reduce_scatter", "gradients are scattered")


@rules.advice(
    "DS509 Adam that is AdamW",
    why="DeepSpeed's Adam decays weights as AdamW does, unless adam_w_mode is false",
    fix='write "AdamW", or set "adam_w_mode": false for L2 regularization',
    source="runtime/config.py ADAM_W_MODE_DEFAULT",
    bad=plain(optimizer={"type": "Adam", "params": {"lr": 1e-5, "weight_decay": 0.1}}),
    good=plain(optimizer={"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}),
)
def decoupled(config: LintedConfig) -> Iterator[Hit]:
    decay = config.number("optimizer.params.weight_decay")
    if config.optimizer == "adam" and decay and "adam_w_mode" not in config.block("optimizer.params"):
        yield hit("optimizer.type", f"the weight decay {decay:g} is decoupled")


@rules.error(
    "DS510 an argument of the optimizer that is text",
    why="the compiled optimizer takes numbers only and raises a TypeError at the first step",
    fix="write a number",
    source="csrc/adam: multi_tensor_adam, create_adam",
    bad=plain(optimizer={"type": "AdamW", "params": {"lr": "1e-5x"}}),
    good=plain(optimizer=ADAMW),
)
def text(config: LintedConfig) -> Iterator[Hit]:
    for name in ("lr", "weight_decay", "eps"):
        value = config.get(f"optimizer.params.{name}")
        if config.has_adam and value != "auto" and isinstance(value, str | list | dict):
            set_later = name == "lr" and config.has("scheduler")  # which writes a rate of its own before the first step
            yield hit(
                f"optimizer.params.{name}",
                f"{name} is {shown(value)}",
                severity="warning" if set_later else None,
                fix="" if number_in(value) is None else f"write {number_in(value):g} without quotes",
                edits=unquoted(f"optimizer.params.{name}", value),
            )
    betas = config.get("optimizer.params.betas")
    if config.has_adam and isinstance(betas, list) and any(isinstance(b, str) for b in betas):
        numbers = [beta if number_in(beta) is None else number_in(beta) for beta in betas]
        mended = not any(isinstance(number, str) for number in numbers)
        path = ("optimizer", "params", "betas")
        yield hit(
            "optimizer.params.betas",
            f"betas is {shown(betas)}",
            fix="write the numbers without quotes",
            edits=(Replace(path, numbers),) if mended else (),
        )


def _arguments(config: LintedConfig) -> list[str] | None:
    """The arguments that the configuration can give the class that will be made; None where it is not known."""
    facts, name = config.facts, config.optimizer
    offloaded = config.offload("optimizer") != "none"
    spec = config.optimizer_spec
    if spec is None:
        return _names(facts.torch_optimizers.get(name))
    cls = (spec.cpu_class if offloaded else "") or spec.gpu_class
    if spec.is_adam:
        own = ["torch_adam", "adam_w_mode", "fp32_optimizer_states"]
        if config.flag("optimizer.params.torch_adam"):
            return _names(facts.torch_optimizers.get(spec.block_type), own)
        return _names(facts.optimizer_classes.get(cls), own, but=("adamw_mode",))
    return _names(facts.optimizer_classes.get(cls) if cls else facts.torch_optimizers.get(spec.block_type))


def _names(
    found: tuple[Parameter, ...] | None, own: list[str] | None = None, but: tuple[str, ...] = ()
) -> list[str] | None:
    if found is None:
        return None
    return [parameter.name for parameter in found if parameter.name not in but] + (own or [])
