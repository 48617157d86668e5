"""Results of the estimators: named figures with formula, inputs and source.

A formula is text. Juxtaposed factors are multiplied; `min`, `max`, `sum` and `ceil` have their usual meaning. Counts
are in elements, sizes in bytes, rates in bytes or operations per second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple

from .plan import Plan
from .units import gib

Evidence = Literal["analytic", "dry-run", "solo-probe", "probe", "training"]
"""Kinds of evidence for a figure, weakest first."""

COMMON_SYMBOLS: Mapping[str, str] = {
    "w": "bytes per weight in the training precision",
    "Pt": "trainable parameters",
    "N": "GPUs",
    "M": "nodes",
    "L": "layers of this kind",
    "B": "samples per micro batch",
    "S": "tokens of a sample on one GPU",
    "P": "GPUs that share a sample",
    "H": "hidden size",
    "V": "vocabulary size",
    "A": "attention heads",
}
"""Symbols with one meaning in all formulas, unless a term redefines one."""

MEMORY_SYMBOLS: Mapping[str, str] = {
    **COMMON_SYMBOLS,
    "Pt'": "trainable parameters, padded to a multiple of 2 N (stages 1 and 2)",
    "part": "one rank's part of the flat trainable parameters: their number, padded to a multiple of twice the GPUs, "
    "divided by the GPUs; experts that are spread over ranks count by their own ranks",
    "shards": "one rank's shards of the trainable tensors, each rounded up (stage 3)",
    "m": "bytes per master weight",
    "o": "bytes of optimizer states per master weight",
    "G": "elements of a sub-group (sub_group_size)",
    "largest": "elements of the largest trainable tensor",
    "frozen": "bytes of the frozen parameters",
}
"""Symbols that several memory formulas share."""


class Formula(NamedTuple):
    """The formula of a component's bytes, declared once for all plans."""

    name: str
    text: str
    """The formula, from which a reader can recompute the bytes with a term's `inputs`."""
    source: str
    """A DeepSpeed file and version, a paper's equation, or a measurement."""
    symbols: Mapping[str, str] = MEMORY_SYMBOLS
    """Meanings of the symbols; may include unused ones."""
    not_covered: str = ""
    """Contributions that the component omits, as a phrase."""

    def term(self, size_bytes: float, **inputs: float) -> tuple[MemoryTerm, ...]:
        """Return a one-element tuple, or an empty one for zero bytes, so that terms can be concatenated with `+`."""
        # Terms of zero bytes are dropped here, so that no caller needs a condition of its own.
        return (MemoryTerm(self, int(size_bytes), tuple(inputs.items())),) if size_bytes else ()

    def node_term(self, local_ranks: int, rank_bytes: float, **inputs: float) -> tuple[MemoryTerm, ...]:
        """Return the term of a node whose ranks hold `rank_bytes` each."""
        return self.term(local_ranks * rank_bytes, L=local_ranks, **inputs)


class MemoryTerm(NamedTuple):
    """Bytes of one component. It is a named tuple for speed: an answer builds ten thousand."""

    declared: Formula
    size_bytes: int
    inputs: tuple[tuple[str, float], ...] = ()
    """(symbol, value) pairs."""

    def __repr__(self) -> str:
        return f"MemoryTerm({self.name!r}, size_bytes={self.size_bytes})"

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def formula(self) -> str:
        return self.declared.text

    @property
    def source(self) -> str:
        return self.declared.source

    @property
    def symbols(self) -> Mapping[str, str]:
        return self.declared.symbols

    @property
    def not_covered(self) -> str:
        return self.declared.not_covered


PROCESS_TERMS = ("processes", "launcher", "rank_memory")
"""Components of a node's host memory that are not tensors outside the devices."""


READ_BY_RANK_0 = "checkpoint_read_by_rank_0"
"""Component of the first node's memory while a model loads that the other nodes do not have."""


def total_bytes(terms: Iterable[MemoryTerm]) -> int:
    # A list, because it is faster than a generator and this is the innermost loop of a search.
    return sum([term.size_bytes for term in terms])


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Live tensors on the GPU in one phase of a training step. The peak is the largest phase."""

    name: str
    terms: tuple[MemoryTerm, ...]

    @cached_property
    def allocated_bytes(self) -> int:
        return total_bytes(self.terms)


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryEstimate:
    """Memory of a plan. Three figures per GPU: allocated <= reserved <= device."""

    phases: tuple[Phase, ...]
    """The candidates for the peak of live tensors, per GPU."""
    reserved_terms: tuple[MemoryTerm, ...]
    """Memory that the caching allocator must hold beyond the peak of live tensors (rounding, fragmentation), without
    `cache_terms`."""
    device_terms: tuple[MemoryTerm, ...]
    """Device memory outside the allocator (CUDA context, NCCL, library workspaces)."""
    host_pinned_terms: tuple[MemoryTerm, ...]
    """Page-locked memory of a node while training, all local ranks together."""
    host_pageable_terms: tuple[MemoryTerm, ...]
    """Other memory of a node while training, all local ranks together."""
    host_loading_terms: tuple[MemoryTerm, ...]
    """Peak host memory of a node while the model is loaded and partitioned."""
    nvme_terms: tuple[MemoryTerm, ...]
    """Bytes on the disks of a node."""
    cache: Callable[[MemoryEstimate], tuple[MemoryTerm, ...]] = field(default=lambda _: (), compare=False)
    """Function that computes `cache_terms` on demand, because a search does not need them."""

    def __repr__(self) -> str:
        device, host = gib(self.device_bytes_per_gpu), gib(self.host_bytes_per_node)
        return f"<MemoryEstimate: {device} GiB per GPU, {host} GiB of host RAM per node>"

    @cached_property
    def peak(self) -> Phase:
        return max(self.phases, key=attrgetter("allocated_bytes"))

    @property
    def allocated_bytes_per_gpu(self) -> int:
        """Peak bytes of live tensors: torch.cuda.max_memory_allocated()."""
        return self.peak.allocated_bytes

    @cached_property
    def reserved_bytes_per_gpu(self) -> int:
        """Bytes that the allocator must reserve: torch.cuda.max_memory_reserved() on a full GPU."""
        return self.allocated_bytes_per_gpu + total_bytes(self.reserved_terms)

    @cached_property
    def device_bytes_per_gpu(self) -> int:
        """Device memory that the process needs (nvidia-smi on a full GPU). It must fit into the GPU's memory."""
        return self.reserved_bytes_per_gpu + total_bytes(self.device_terms)

    @cached_property
    def cache_terms(self) -> tuple[MemoryTerm, ...]:
        """Blocks that the allocator caches and can return. nvidia-smi includes them."""
        return self.cache(self)

    @property
    def cached_bytes_per_gpu(self) -> int:
        """Bytes of `cache_terms`. nvidia-smi shows them plus `device_bytes_per_gpu` while memory is free."""
        return sum(term.size_bytes for term in self.cache_terms)

    @property
    def gpu_terms(self) -> tuple[MemoryTerm, ...]:
        return self.peak.terms + self.reserved_terms + self.device_terms

    @property
    def components(self) -> dict[str, int]:
        """Bytes by component name; they add up to `device_bytes_per_gpu`."""
        total: dict[str, int] = {}
        for term in self.gpu_terms:
            total[term.name] = total.get(term.name, 0) + term.size_bytes
        return total

    @property
    def host_pinned_bytes_per_node(self) -> int:
        return total_bytes(self.host_pinned_terms)

    @property
    def host_training_bytes_per_node(self) -> int:
        return self.host_pinned_bytes_per_node + total_bytes(self.host_pageable_terms)

    @property
    def host_tensor_bytes_per_node(self) -> int:
        """Tensors of a node outside its GPUs while training, without the ranks' processes."""
        terms = self.host_pinned_terms + self.host_pageable_terms
        return total_bytes(term for term in terms if term.name not in PROCESS_TERMS)

    @cached_property
    def host_loading_bytes_per_node(self) -> int:
        return total_bytes(self.host_loading_terms)

    @property
    def host_bytes_per_node(self) -> int:
        """Host RAM that a node needs, the larger of loading and training."""
        return max(self.host_training_bytes_per_node, self.host_loading_bytes_per_node)

    @property
    def host_bytes_of_other_nodes(self) -> int:
        """Host RAM that each node but the first one needs, whose first rank reads the checkpoint under `zero.Init`."""
        loading = total_bytes(term for term in self.host_loading_terms if term.name != READ_BY_RANK_0)
        return max(self.host_training_bytes_per_node, loading)

    @property
    def nvme_bytes_per_node(self) -> int:
        return total_bytes(self.nvme_terms)


class TimeTerm(NamedTuple):
    """Seconds of one component of an optimizer step (all micro batches)."""

    name: str
    seconds: float
    """Time on the critical path, without the overlapping part."""
    resource: str
    """"gpu compute", "gpu memory", "launch", "gpu links", "network", "pcie", "cpu" or "nvme"."""
    formula: str
    inputs: tuple[tuple[str, float], ...] = ()
    source: str = ""
    hidden_s: float = 0.0
    """Time that overlaps with other terms."""
    symbols: Mapping[str, str] = COMMON_SYMBOLS
    """Meanings of the symbols; may include unused ones."""
    not_covered: str = ""
    """Contributions that the term omits, as a phrase."""
    passes: str = ""
    """"forward passes" or "backward passes" if the other ones have a term of this name too."""

    def __repr__(self) -> str:
        return f"TimeTerm({self.name!r}, seconds={self.seconds!r})"


# A quote may end a symbol (Pt'), and a dot before a word is that of a file name, not of a product.
_SYMBOL = re.compile(r"(?<![\w'.])[A-Za-z]\w*'?(?!\w)")


def term_symbols(term: MemoryTerm | TimeTerm) -> dict[str, str]:
    """Meanings of the symbols in a term's formula, in order of appearance."""
    return {symbol: term.symbols[symbol] for symbol in _SYMBOL.findall(term.formula) if symbol in term.symbols}


class Spread(NamedTuple):
    """80 % interval of the true speed, as factors of the predicted one."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, repr=False)
class TimeEstimate:
    """Time of one optimizer step; `terms` add up to `step_s`."""

    terms: tuple[TimeTerm, ...]
    tokens_per_step: int
    spread: Spread | None = None
    """Spread of the speed; None if the prediction error is unknown."""

    def __repr__(self) -> str:
        return f"<TimeEstimate: {self.step_s:.4g} s per step>"

    @cached_property
    def step_s(self) -> float:
        return sum([term.seconds for term in self.terms])

    @property
    def components(self) -> dict[str, float]:
        """Seconds by component name; they add up to `step_s`."""
        return self._seconds_by("name")

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole cluster per second."""
        return self.tokens_per_step / self.step_s

    @property
    def tokens_per_s_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `tokens_per_s`."""
        return self.spread and (self.tokens_per_s * self.spread.low, self.tokens_per_s * self.spread.high)

    @property
    def bottleneck(self) -> str:
        """The resource that takes the largest share of the step."""
        shares = self._seconds_by("resource")
        return max(shares, key=lambda resource: shares[resource])

    def _seconds_by(self, field_name: Literal["name", "resource"]) -> dict[str, float]:
        total: dict[str, float] = {}
        for term in self.terms:
            key = getattr(term, field_name)
            total[key] = total.get(key, 0.0) + term.seconds
        return total


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """Peaks of memory that were measured; None for what was not."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    """This and the previous fields: of the fullest GPU."""
    host_bytes: int | None
    """Of all ranks of a node and their launcher."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    plan: Plan
    memory: MemoryEstimate
    time: TimeEstimate
    evidence: Evidence = "analytic"
    measured: MeasuredMemory | None = None
    """What a run of the plan took; None without one."""


Terms = tuple[MemoryTerm, ...]

NODE_SYMBOLS: Mapping[str, str] = {
    **MEMORY_SYMBOLS,
    "L": "ranks of a node",
    "p2": "rounded up to a power of two, as the page-locked allocator does",
    "states": "bytes of optimizer states",
}
"""Symbols of host memory and NVMe."""
