"""The table of optimizers, which the rest of the package looks up.

To add an optimizer, add a row to `OPTIMIZERS`. Memory, time, the `optimizer` block, the Trainer's names, the lint rules
and the names that the commands accept are derived from the row.

Under ZeRO an optimizer sees one flat fp32 partition per parameter group, not the model's matrices. Factored states
(Adafactor) and per-layer ratios (LAMB) therefore differ from their papers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from .errors import WorkloadError
from .workload import OptimizerStep


@dataclass(frozen=True, eq=False, kw_only=True)
class OptimizerSpec:
    """One optimizer, as DeepSpeed 0.19.8 builds it from a `ds_config` or receives it from the training script."""

    state_bytes: float
    """Bytes of state per fp32 master element on the GPU, without the master weight itself."""
    cpu_state_bytes: float | None
    """Bytes of state per element of the optimizer on the host under CPU offload; None if it cannot be offloaded."""
    source: str
    step_elements: int = 0
    """Temporaries of the masters' type per master weight while `step()` runs under DeepSpeed on the GPU; 0 for fused
    kernels."""
    foreach_step_elements: int = 0
    """`step_elements` of torch's foreach implementation, for all trained parameters in their type.
    torch's fused kernels have none."""
    loop_step_elements: int = 0
    """`step_elements` of torch's loop over tensors, for one tensor at a time. Under ZeRO the tensor is a whole flat
    partition."""
    states_have_fixed_type: bool = False
    """Whether the states in plain PyTorch have a fixed type instead of the parameters' type."""
    factored: bool = False
    """Whether a matrix's second moment in plain PyTorch is stored as its row and column means."""
    partitions: bool = True
    """Whether it works on ZeRO's flat partitions. If not, `source` has the reason."""
    per_matrix: bool = False
    """Whether `state_bytes` apply to matrices of the layers only; other tensors have AdamW's states. A matrix's whole
    gradient is needed: stage 3 allows neither reduce_scatter nor quantized gradients (runtime/zero/stage3.py
    `__init__`)."""
    block_type: str = ""
    """`type` of DeepSpeed's optimizer block: its own name, or a class of torch.optim (runtime/engine.py
    `_configure_basic_optimizer`); "" if the training script creates the optimizer."""
    block_params: tuple[str, ...] = ("lr", "weight_decay")
    """Parameters of the block that TrainingArguments also has."""
    extra_block_params: tuple[tuple[str, bool | float], ...] = ()
    tested_with_zero: bool = False
    """Whether ZeRO accepts it without zero_allow_untested_optimizer (runtime/zero/utils.py
    `ZERO_SUPPORTED_OPTIMIZERS`)."""
    gpu_class: str = ""
    """DeepSpeed's class on the GPU; "" if the class is not DeepSpeed's."""
    cpu_class: str = ""
    """DeepSpeed's class under offload; "" if the class is not DeepSpeed's."""
    trainer_names: tuple[str, ...] = ()
    """Values of `optim=` (transformers 5.23 training_args.py `OptimizerNames`). Generated scripts use the first if the
    script creates the optimizer."""

    @property
    def is_adam(self) -> bool:
        """Whether it is DeepSpeed's Adam. Its states can have the masters' type (`zeros_like` in FusedAdam, and in
        DeepSpeedCPUAdam with `fp32_optimizer_states` off), its step can be split between GPU and host, and at stage 0
        `FP16_Optimizer` flattens its parameters; other optimizers work tensor by tensor."""
        return self.gpu_class == "FusedAdam"

    @property
    def has_cpu_kernel(self) -> bool:
        return self.cpu_class.startswith("DeepSpeedCPU")


_ADAM = OptimizerSpec(
    state_bytes=8,
    cpu_state_bytes=8,
    source="deepspeed 0.19.8 ops/adam/fused_adam.py, cpu_adam.py: exp_avg and exp_avg_sq in fp32",
    foreach_step_elements=1,  # torch 2.13 optim/adam.py _multi_tensor_adam: the root of the second moments
    loop_step_elements=2,  # _single_tensor_adam: the root, and its quotient by the bias correction
    block_type="Adam",
    block_params=("lr", "betas", "eps", "weight_decay"),
    extra_block_params=(("adam_w_mode", False),),  # without it DeepSpeed's Adam is AdamW
    tested_with_zero=True,
    gpu_class="FusedAdam",
    cpu_class="DeepSpeedCPUAdam",
    trainer_names=("adam",),
)

OPTIMIZERS: dict[str, OptimizerSpec] = {
    "adamw": replace(
        _ADAM,
        block_type="AdamW",
        extra_block_params=(),
        trainer_names=(
            "adamw_torch",
            "adamw_torch_fused",
            "adamw_hf",
            "adamw_apex_fused",
            "adamw",
            "paged_adamw",
            "paged_adamw_32bit",
        ),
    ),
    "adam": _ADAM,
    # Two int8 states and, for each, one fp32 scale per block of 256 elements: 2 (1 + 4/256).
    # torchao's 8-bit AdamW has states of the same size.
    "adamw_8bit": OptimizerSpec(
        state_bytes=2.03125,
        cpu_state_bytes=None,
        source="bitsandbytes optim/optimizer.py Optimizer2State, blockwise with block size 256; its kernels run on "
        "the GPU",
        states_have_fixed_type=True,
        trainer_names=("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit", "paged_adamw_8bit"),
    ),
    # A flat partition has one dimension, so Adafactor keeps the whole second moment; grad^2 and the update are
    # temporaries.
    "adafactor": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=None,
        step_elements=2,
        factored=True,
        source="transformers optimization.py Adafactor._get_options: factored only from two dimensions on; DeepSpeed "
        "refuses to offload a client optimizer other than its own CPU ones (zero_force_ds_cpu_optimizer)",
        trainer_names=("adafactor",),
    ),
    "sgd": OptimizerSpec(
        state_bytes=0,
        cpu_state_bytes=0,
        source="torch.optim.SGD without momentum",
        block_type="SGD",
        trainer_names=("sgd",),
    ),
    "sgd_momentum": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=4,
        source="torch.optim.SGD momentum_buffer",
        block_type="SGD",
        extra_block_params=(("momentum", 0.9),),
    ),
    "rmsprop": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=4,
        step_elements=1,
        foreach_step_elements=1,
        source="torch.optim.RMSprop square_avg, and the root of it",
        block_type="RMSprop",
        block_params=("lr", "eps", "weight_decay"),
        trainer_names=("rmsprop",),
    ),
    "lamb": OptimizerSpec(
        state_bytes=8,
        cpu_state_bytes=None,
        partitions=False,
        source="deepspeed 0.19.8 ops/lamb/fused_lamb.py: one trust ratio per layer, which a flat ZeRO partition does "
        "not show",
        block_type="Lamb",
        block_params=("lr", "betas", "eps", "weight_decay"),
        gpu_class="FusedLamb",
    ),
    # The host version allocates a second state that it never reads. betas are left out because the Trainer would
    # compare Lion's with Adam's.
    "lion": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=8,
        source="deepspeed 0.19.8 ops/lion/fused_lion.py (exp_avg), cpu_lion.py (exp_avg and exp_avg_sq)",
        block_type="Lion",
        tested_with_zero=True,
        gpu_class="FusedLion",
        cpu_class="DeepSpeedCPULion",
        trainer_names=("lion", "lion_32bit", "paged_lion", "paged_lion_32bit"),
    ),
    "adagrad": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=4,
        step_elements=2,
        foreach_step_elements=2,
        source="torch.optim.Adagrad sum, the root of it and the scaled gradients; deepspeed 0.19.8 "
        "ops/adagrad/cpu_adagrad.py exp_avg_sq",
        block_type="Adagrad",
        block_params=("lr", "eps", "weight_decay"),
        tested_with_zero=True,
        cpu_class="DeepSpeedCPUAdagrad",
        trainer_names=("adagrad",),
    ),
    "muon": OptimizerSpec(
        state_bytes=4,
        cpu_state_bytes=4,
        source="deepspeed 0.19.8 runtime/zero/muon/muon_optimizer.py MuonWithAuxAdam: momentum_buffer, and Adam for "
        "the rest",
        per_matrix=True,
        block_type="Muon",
        block_params=("lr", "betas", "eps", "weight_decay"),
        extra_block_params=(("momentum", 0.95),),
        tested_with_zero=True,
        gpu_class="MuonWithAuxAdam",
        cpu_class="MuonWithAuxAdam",
        trainer_names=("muon",),
    ),
}


@lru_cache(maxsize=64)
def optimizer(name: str, *, bf16_states: bool = False, step: OptimizerStep = "auto") -> OptimizerSpec:
    """Return the optimizer of that name. bf16_states: whether states are bf16, half of fp32's size (`is_adam` only).
    step: the implementation of torch's class, which replaces DeepSpeed's Adam, or "auto" for DeepSpeed's.

    Raises WorkloadError, with the known names, for an unknown one.
    """
    try:
        known = OPTIMIZERS[name]
    except KeyError:
        raise WorkloadError(
            f"unknown optimizer {name!r}",
            why="its bytes per parameter are not known",
            fix=f"--optimizer {'|'.join(OPTIMIZERS)}",
        ) from None
    # torch's class replaces DeepSpeed's, so the block names none, and its temporaries are those of its implementation.
    if step != "auto" and known.is_adam:
        elements = {"foreach": known.foreach_step_elements, "loop": known.loop_step_elements}.get(step, 0)
        known = replace(known, step_elements=elements, gpu_class="")
    if not bf16_states:
        return known
    on_cpu = None if known.cpu_state_bytes is None else known.cpu_state_bytes / 2
    return replace(known, state_bytes=known.state_bytes / 2, cpu_state_bytes=on_cpu)


def optimizer_names(key: str) -> tuple[str, ...]:
    """Return the names of an optimizer of the table: its key, DeepSpeed's type and classes, and values of `optim=`."""
    spec = OPTIMIZERS[key]
    return (key, *filter(None, (spec.block_type, spec.gpu_class, spec.cpu_class)), *spec.trainer_names)


def deepspeed_optimizer(block_type: str) -> OptimizerSpec | None:
    """Return the optimizer for a `type` of DeepSpeed's optimizer block, in any case; None if unknown."""
    return next((spec for spec in OPTIMIZERS.values() if spec.block_type.lower() == block_type.lower() != ""), None)


def trainer_optimizer_step(name: str) -> OptimizerStep:
    """Return the implementation of torch's AdamW for a value of `optim=`; "auto" for other optimizers. `adamw_hf` has
    temporaries of foreach's size."""
    if name.lower() in ("adamw_torch", "adamw_hf"):
        return "foreach"
    return "fused" if name.lower() in OPTIMIZERS["adamw"].trainer_names else "auto"


def trainer_optimizer(name: str) -> str | None:
    """Return the key of the optimizer for a value of `optim=`, in any case; None if unknown."""
    return next((key for key, spec in OPTIMIZERS.items() if name.lower() in spec.trainer_names), None)
