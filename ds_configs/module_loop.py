"""Lines of Python that train a module of the user's own under DeepSpeed's engine."""

from __future__ import annotations

from ..estimators.models.model_shape import UserModule
from ..estimators.workload import TORCH_DTYPES, Workload


def module_lines(module: UserModule, workload: Workload) -> list[str]:
    """The training loop of a module, with the arguments of the deepspeed launcher. The script has `parser`, `model`,
    `loader`, and `loss_fn` if the module was recorded with one."""
    return [
        'parser.add_argument("--local_rank", type=int, default=-1)',
        "args = deepspeed.add_config_arguments(parser).parse_args()",
        "engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())",
        "for batch in loader:",
        *(f"    {line}" for line in (*_moved(module, workload), *_loss(module))),
        "    engine.backward(loss)",
        "    engine.step()",
    ]


def _moved(module: UserModule, workload: Workload) -> list[str]:
    """Lines that give the batch the engine's device and precision. The engine does neither: it casts inputs with
    fp16.auto_cast only (deepspeed 0.19.8 runtime/engine.py `_forward_prologue`). The target keeps its type."""
    dtype = f"torch.{TORCH_DTYPES[workload.precision]}"
    casts = workload.precision != "fp32" and module.floats != "none"
    if module.batch == "nested":
        return [f"# Move the batch's tensors to engine.device{f', floating-point ones as {dtype}' * casts}."]
    if _has_target(module):
        lines = ["*inputs, target = [item.to(engine.device) for item in batch]"]
    elif casts and module.floats == "all":
        return [_each(module, f"item.to(engine.device, {dtype})")]
    else:
        lines = [_each(module, "item.to(engine.device)")]
    if casts:
        is_sure = module.floats == "all"
        lines.append(_each(module, f"item.to({dtype}){' if item.is_floating_point() else item' * (not is_sure)}"))
    return lines


def _has_target(module: UserModule) -> bool:
    """Whether the loader's batches have a target besides the recorded inputs: the module computes no loss of them."""
    return module.loss == "unknown" and module.batch == "tuple"


def _each(module: UserModule, item: str) -> str:
    """The statement that replaces every `item` of the inputs."""
    if module.batch == "dict":
        return f"batch = {{name: {item} for name, item in batch.items()}}"
    name = "inputs" if _has_target(module) else "batch"
    return f"{name} = [{item} for item in {name}]"


def _loss(module: UserModule) -> list[str]:
    inputs = "**batch" if module.batch == "dict" else "*inputs" if _has_target(module) else "*batch"
    output = f"engine({inputs})"
    if module.loss == "loss_fn":
        return [f"loss = loss_fn({output}, batch)"]
    if module.loss == "unknown":
        known = "target" if _has_target(module) else "batch"
        return [f"output = {output}", f"loss = ...  # your own, of output and {known}"]
    return [f"loss = {output}{module.loss}"]
