"""The loss of a training backend, installed in a model that a dry run or a probe trains."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from ..ds_configs.tiled_compute import tile_feed_forward, tile_loss
from ..estimators.memory.activations.loss import loss_tiles, mlp_tiles
from ..estimators.models.families import shape_from_config
from ..estimators.objectives import OBJECTIVES
from ..estimators.workload import Workload
from .run import Run

_LOGGED = ("log_probs", "entropy", "is_top1")
"""What TRL's SFTTrainer computes in addition to the loss (trl 1.16 trainer/sft_trainer.py)."""


class MissingPackageError(ValueError):
    """A package that the loss comes from is missing or too old."""

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def install_loss(model: Any, workload: Workload) -> None:
    """Let a causal language model without adapters compute the loss of next tokens. Tiles: `install_tiles`.

    Raises MissingPackageError where TRL, DeepSpeed or Liger does not have it.
    """
    if workload.loss == "chunked-head" and not OBJECTIVES[workload.objective].trainer:
        _import("trl.trainer.utils", "add_fused_lm_head", "trl>=1.16")(model, outputs=_LOGGED)
        model.forward = partial(model.forward, fused_lm_head=True)
    elif workload.loss == "chunked-softmax":
        module, name = "deepspeed.runtime.chunked_cross_entropy", "install_chunked_causal_lm_loss"
        _import(module, name, "deepspeed>=0.19.8")(model)
    if workload.loss == "fused" or workload.kernels == "liger":
        apply = _import("liger_kernel.transformers", "_apply_liger_kernel_to_instance", "liger-kernel")
        apply(model=model, fused_linear_cross_entropy=workload.loss == "fused")


def install_tiles(model: Any, run: Run, micro_batch_size: int) -> None:
    """Tile feed-forward and loss, as the emitted lines do."""
    workload = run.workload.of_rank(run.sequence_parallel_size)
    if workload.mlp == "whole" and workload.loss != "tiled":
        return
    shape = shape_from_config(run.description or {}, name="")
    if workload.mlp == "tiled":
        tile_feed_forward(model, mlp_tiles(shape, workload))
    if workload.loss == "tiled":
        tile_loss(model, loss_tiles(shape, workload, micro_batch_size))


def _import(module: str, name: str, package: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise MissingPackageError(
            f"the loss or the kernels need {package}, which is not installed", fix=f'pip install "{package}"'
        ) from None
