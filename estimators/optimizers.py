"""The optimizers that DeepSpeed runs, and what each keeps per parameter.

Under ZeRO an optimizer sees one flat fp32 partition per parameter group, not the model's matrices. What is small
because it is factored by rows and columns (Adafactor), or what is decided layer by layer (LAMB's trust ratio), is
therefore not what its paper promises.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .errors import WorkloadError


class Optimizer(NamedTuple):
    """One optimizer, as DeepSpeed 0.19.8 builds it from a `ds_config` or takes it from the user."""

    state_bytes: float
    """Bytes of state per fp32 master element on the GPU, beside the master weight itself."""
    cpu_state_bytes: float | None
    """The same for the optimizer that runs on the host under CPU offload; None where it cannot be offloaded."""
    source: str
    """Where the figures come from."""
    step_bytes: float = 0.0
    """Temporaries per element while `step()` runs on the GPU; 0 for fused kernels."""
    fused: bool = False
    """It is a FusedAdam, which decides stage 0's wrapper (`FP16_Optimizer` keeps one flat group, the other one works
    tensor by tensor)."""
    partitions: bool = True
    """It stays itself when ZeRO hands it flat partitions; why not is in `source`."""


_ADAM = Optimizer(
    state_bytes=8,
    cpu_state_bytes=8,
    fused=True,
    source="deepspeed 0.19.8 ops/adam/fused_adam.py, cpu_adam.py: exp_avg and exp_avg_sq in fp32",
)

OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": _ADAM,
    "adam": _ADAM,
    # Two int8 states and, for each, one fp32 scale per block of 256 elements: 2 (1 + 4/256).
    "adamw_8bit": Optimizer(
        state_bytes=2.03125,
        cpu_state_bytes=None,
        source="bitsandbytes optim/optimizer.py Optimizer2State, blockwise with block size 256; its kernels run on "
        "the GPU",
    ),
    # A flat partition has one dimension, so Adafactor keeps the whole second moment; grad^2 and the update are
    # temporaries.
    "adafactor": Optimizer(
        state_bytes=4,
        cpu_state_bytes=None,
        step_bytes=8,
        source="transformers optimization.py Adafactor._get_options: factored only from two dimensions on; DeepSpeed "
        "refuses to offload a client optimizer other than its own CPU ones (zero_force_ds_cpu_optimizer)",
    ),
    "sgd": Optimizer(state_bytes=0, cpu_state_bytes=0, source="torch.optim.SGD without momentum"),
    "sgd_momentum": Optimizer(state_bytes=4, cpu_state_bytes=4, source="torch.optim.SGD momentum_buffer"),
    "lamb": Optimizer(
        state_bytes=8,
        cpu_state_bytes=None,
        partitions=False,
        source="deepspeed 0.19.8 ops/lamb/fused_lamb.py: one trust ratio per layer, which a flat ZeRO partition does "
        "not show",
    ),
    # The host version allocates a second state that it never reads.
    "lion": Optimizer(
        state_bytes=4,
        cpu_state_bytes=8,
        source="deepspeed 0.19.8 ops/lion/fused_lion.py (exp_avg), cpu_lion.py (exp_avg and exp_avg_sq)",
    ),
    "adagrad": Optimizer(
        state_bytes=4,
        cpu_state_bytes=4,
        step_bytes=4,
        source="torch.optim.Adagrad sum; deepspeed 0.19.8 ops/adagrad/cpu_adagrad.py exp_avg_sq",
    ),
    # These are the figures of a Muon matrix; everything else is AdamW's. See `zero_states.optimizer_state_bytes`.
    "muon": Optimizer(
        state_bytes=4,
        cpu_state_bytes=4,
        source="deepspeed 0.19.8 runtime/zero/muon/muon_optimizer.py MuonWithAuxAdam: momentum_buffer, and Adam for "
        "the rest",
    ),
}


BF16_STATES = ("adamw", "adam")
"""Optimizers whose states take the master weights' type: `zeros_like` in FusedAdam, and in DeepSpeedCPUAdam with
`fp32_optimizer_states` off (deepspeed 0.19.8 ops/adam/)."""


@lru_cache(maxsize=32)
def optimizer(name: str, *, bf16_states: bool = False) -> Optimizer:
    """The optimizer of that name; WorkloadError with the known names when there is none.

    bf16_states: with its states in bf16, half of fp32's; meaningful for those of `BF16_STATES`.
    """
    try:
        known = OPTIMIZERS[name]
    except KeyError:
        raise WorkloadError(
            f"unknown optimizer {name!r}",
            why="its bytes per parameter are not known",
            fix=f"--optimizer {'|'.join(OPTIMIZERS)}",
        ) from None
    if not bf16_states:
        return known
    on_cpu = None if known.cpu_state_bytes is None else known.cpu_state_bytes / 2
    return known._replace(state_bytes=known.state_bytes / 2, cpu_state_bytes=on_cpu)
