"""What the subprocess is to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ds_configs.read import ranks_per_sample_in, sequence_parallel_size_in
from ...estimators.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One rank of a `Run`, in JSON's types (`dataclasses.asdict` writes it)."""

    config: dict[str, Any]
    """The ds_config, `auto` still in it."""
    model: dict[str, Any] | None
    """A transformers `config.json`; None where `factory` is given."""
    factory: str | None
    """ "FILE.py:FUNCTION"; the function returns the module."""
    input_shape: tuple[int, ...] | None
    """Shape of one sample for a factory without `make_batch`."""
    workload: Workload
    micro_batch_size: int | None
    """This and the next fill `auto`, or an absent value; None leaves them to DeepSpeed."""
    gradient_accumulation_steps: int | None
    gradient_checkpointing: bool
    cpu_checkpointing: bool
    world_size: int
    gpus_per_node: int
    rank: int
    compute_capability: int
    """The GPU's, which decides its kernels: major * 10 + minor."""
    gpu_memory_bytes: int
    """What the simulated GPU claims to have; nothing fails when it is exceeded."""
    iterations: int
    """Optimizer steps at most; 0 ends with the initialization."""
    expandable_segments: bool

    @property
    def sequence_parallel_size(self) -> int:
        """Ranks that share a sample."""
        return sequence_parallel_size_in(self.config)

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that work on one sample, in either way."""
        return ranks_per_sample_in(self.config)
