"""What a checkpoint of the Hugging Face Trainer takes on the disk."""

from __future__ import annotations

from ..models.model_shape import ModelShape
from ..optimizers import OPTIMIZERS
from ..workload import Workload
from .trainable import tensor_set

_MASTER_BYTES = 4
_ADAPTER_BYTES = 4
"""peft writes adapters in fp32."""

_LARGEST_STATES_BYTES = 8.0
"""An optimizer that is not known is taken for Adam, which has two fp32 states."""


def checkpoint_bytes(model: ModelShape, workload: Workload) -> int:
    """One checkpoint under DeepSpeed, the files of all ranks together.

    (2 W + 4 + O) P bytes with W bytes of a weight and O of its optimizer states: the weights in the model's own format
    and in DeepSpeed's, the fp32 masters, the states. With LoRA (4 + W + 4 + O) Pt, because the Trainer has DeepSpeed
    leave out the frozen weights (`_save_optimizer_and_scheduler` of transformers 5.23.0). Not counted: scheduler and
    random states, some kB a rank.
    """
    tensors = tensor_set(model, workload)
    trained = tensors.trainable_numel
    optimizer = OPTIMIZERS.get(workload.optimizer)
    states = _LARGEST_STATES_BYTES if optimizer is None else optimizer.state_bytes
    whole = tensors.trainable_numel if workload.method == "full" else tensors.copied
    saved = workload.weight_bytes * whole + _ADAPTER_BYTES * (trained - whole)
    return int(saved + (workload.weight_bytes + _MASTER_BYTES + states) * trained)
