"""Depth extrapolation: three shallow dry runs answer for a deep model.

What is loaded and initialized is run at full depth, since that is quick: the flat parameters, the sub-groups and the
page-locked blocks in host memory, which are rounded up to powers of two, are then those of the whole model. Training
adds to them. The layers of a decoder are alike, so what a phase adds is a + b L in the number of layers L, once what
has a fixed size is filled: the reduce bucket; at ZeRO-3 the gathered parameters that may stay
(`stage3_max_live_parameters`), and the parameters that stay in host memory although they are offloaded to NVMe
(`max_in_cpu`); at ZeRO-1 and 2 a rank's piece of the parameters, which lies within the embedding or holds it twice
over. Two terms are not linear and are counted: what ZeRO-3's optimizer needs to step sub-group by sub-group follows one
of them; and at ZeRO-1 and 2 a rank keeps the gradients of all tensors that its piece touches, in part or whole.

Two depths give the line, and the third must lie on it: where the lines through the outer two and through the last two
differ by more than `TOLERANCE` at the full depth, or where the reasons above do not hold, `DepthNotLinearError` says
why, and the full depth is run. A phase that is off the line but far from the peak is no reason for that; the result
names it (`approximate`).

Not extrapolated: page-locked memory that grows with the depth while the model trains; modules and tensors at the peak;
the timeline; the schedule. Reserved memory is not linear either: the widest gap to the allocated bytes is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...estimators.memory.partition import shard_numel, sub_group_numels
from ...estimators.memory.trainable import shard_tensors, tensor_set
from ...estimators.models.families import FAMILIES, shape_from_config
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Workload
from ..recording.result import DryRunResult, Peak, PhaseMemory, Reserved
from ..run import Request

TOLERANCE = 0.005
"""How far apart the two lines may be at the full depth, as a part of a figure's largest value over all phases."""

FAR_FROM_PEAK = 0.9
"""A phase that stays below this part of the peak, by either line, does not decide whether the model fits."""

NEGLIGIBLE_BYTES = 1 << 20
"""A difference without weight: counters and masks that come and go."""

_WORTHWHILE = 14
"""Layers below which the shallow models, of six layers or more, would take as long."""

_DEPTH_KEYS = ("num_hidden_layers", "n_layer")
_ELEMENTS = {"reduce_bucket_size": 5e8, "max_live_parameters": 1e9, "max_reuse_distance": 1e9, "sub_group_size": 1e9}
"""Keys of zero_optimization that count elements, with DeepSpeed's defaults (runtime/zero/config.py)."""

_MAX_IN_CPU = 1e9
"""DeepSpeed's default (runtime/zero/offload_config.py)."""


class DepthNotLinearError(Exception):
    """This configuration is not answered by shallower ones; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSeries:
    """The depths to run, and the request at each."""

    full: int
    zero_stage: int
    depths: tuple[int, int, int]
    requests: tuple[Request, ...]
    """One for each depth, and at last the full depth up to the end of its initialization."""
    sub_groups: tuple[tuple[int, ...], ...]
    """Elements of ZeRO-3's sub-groups at each depth, and at last at the full one."""
    touched_bytes: tuple[int, ...]
    """Gradients of the tensors that a rank's piece touches at ZeRO-1 and 2, likewise."""

    @property
    def not_on_a_line(self) -> str:
        return f"the runs with {', '.join(map(str, self.depths))} layers do not lie on a line"


def depth_series(request: Request) -> DepthSeries:
    """Three depths deep enough for this request. Raises DepthNotLinearError where they would not answer for it."""
    if request.model is None:
        raise DepthNotLinearError("a module of one's own has no known layers")
    kind = str(request.model.get("model_type"))
    if kind not in FAMILIES or "depth_extrapolation" not in FAMILIES[kind].supports:
        raise DepthNotLinearError(f"it has not been shown for {kind}")
    zero = request.config.get("zero_optimization") or {}
    if not isinstance(zero, dict) or not isinstance(zero.get("stage", 0), int):
        raise DepthNotLinearError("zero_optimization is for DeepSpeed to judge")
    for block in (zero.get("offload_optimizer"), zero.get("offload_param")):
        if block and not (isinstance(block, dict) and block.get("device") in ("none", None, "cpu", "nvme")):
            raise DepthNotLinearError("an offload is for DeepSpeed to judge")
    if (zero.get("offload_optimizer") or {}).get("ratio", 1) != 1:
        raise DepthNotLinearError("a share of the optimizer stays on the GPU in whole sub-groups, not layer by layer")
    if (request.config.get("expert_parallel") or {}).get("enabled"):
        raise DepthNotLinearError("it has not been shown for experts that are spread over ranks")
    key = next((key for key in _DEPTH_KEYS if key in request.model), None)
    if key is None:
        raise DepthNotLinearError("its configuration does not say how many layers it has")
    full = int(request.model[key])
    if full < _WORTHWHILE:
        raise DepthNotLinearError(f"{full} layers are few enough to run")
    first, period = _repeats(_layers(request.model, key, full))
    shape = shape_from_config(request.model, name="full")
    per_layer = sum(block.parameters for block in shape.blocks) / full
    needed = max(
        _filling_elements(zero, shape), _partition_elements(zero, shape, request), _kept_elements(zero, shape, request)
    )
    filled = max(6, first + 2 * period, math.ceil(needed / per_layer))
    start = filled + (full - filled) % period  # so that whole periods are missing at the end
    depths = (start, start + period, start + 3 * period)
    if sum(depths) > 1.6 * full:  # two processors share them
        raise DepthNotLinearError(f"{' + '.join(map(str, depths))} layers, which would answer for {full}, take as long")
    models = [_at_depth(request.model, key, depth, full) for depth in (*depths, full)]
    return DepthSeries(
        full=full,
        zero_stage=int(zero.get("stage", 0)),
        depths=depths,
        sub_groups=tuple(_sub_groups(model, request) for model in models),
        touched_bytes=tuple(_touched_bytes(model, request) for model in models),
        requests=(*(replace(request, model=model) for model in models[:-1]), replace(request, iterations=0)),
    )


def _at_depth(model: dict[str, Any], key: str, depth: int, full: int) -> dict[str, Any]:
    """The configuration with fewer layers: lists with an entry for each layer are shorter too."""
    per_layer = {name: value[:depth] for name, value in model.items() if isinstance(value, list) and len(value) == full}
    return {**model, **per_layer, key: depth}


def _layers(model: dict[str, Any], key: str, full: int) -> list[Any]:
    """What tells one layer from another, for each: the block that a model with one layer more has more of."""
    lists = [value for value in model.values() if isinstance(value, list) and len(value) == full]
    layers = []
    before = Counter[Any]()
    for depth in range(1, full + 1):
        shape = shape_from_config(_at_depth(model, key, depth, full), name="shallow")
        blocks = Counter({replace(block, count=1): block.count for block in shape.blocks})
        more = list((blocks - before).elements())
        if len(more) != 1 or blocks.total() != depth:
            raise DepthNotLinearError("it has more than one stack of layers")
        layers.append((more[0], *(str(value[depth - 1]) for value in lists)))
        before = blocks
    return layers


def _repeats(layers: list[Any]) -> tuple[int, int]:
    """(number of layers that come first and only once, period of those that follow)."""
    for period in range(1, len(layers) // 3 + 1):
        first = len(layers) - period
        while first and layers[first - 1] == layers[first - 1 + period]:
            first -= 1
        if first <= len(layers) // 4:
            return first, period
    raise DepthNotLinearError("its layers do not repeat")


def _elements(zero: dict[str, Any], name: str, shape: ModelShape) -> float:
    value = zero.get(f"stage3_{name}", zero.get(name, _ELEMENTS[name]))
    if value == "auto":
        return float(shape.hidden_size**2)
    if not isinstance(value, int | float):
        raise DepthNotLinearError(f"{name} is for DeepSpeed to judge")
    return float(value)


def _filling_elements(zero: dict[str, Any], shape: ModelShape) -> float:
    """Elements of layers after which nothing of a fixed size is left to fill."""
    needed = 2 * _elements(zero, "reduce_bucket_size", shape)
    if zero.get("stage") == 3:
        live = max(_elements(zero, "max_live_parameters", shape), _elements(zero, "max_reuse_distance", shape))
        if shape.parameters > live:
            needed = max(needed, 1.5 * live)
    return needed


def _partition_elements(zero: dict[str, Any], shape: ModelShape, request: Request) -> int:
    """Elements of layers with which a rank's piece of the parameters is twice the largest tensor outside them.

    At stages 1 and 2 a piece within the embedding is one case, one that holds it and much more another; in between, the
    moments that are highest change places. Raises DepthNotLinearError where the full model lies in between.
    """
    if zero.get("stage") not in (1, 2) or request.workload.method != "full":
        return 0  # adapters are small, and none is outside the layers
    if request.rank:
        raise DepthNotLinearError("only rank 0 has its piece at the same place at every depth")
    outside = [tensor.numel for tensor in shape.outside]
    piece, largest = shape.parameters / request.world_size, max(outside)
    if piece < largest:
        return 0
    if piece < 2 * largest:
        raise DepthNotLinearError("a rank's piece of the parameters is hardly larger than the embedding")
    return 2 * largest * request.world_size - sum(outside)


def _kept_elements(zero: dict[str, Any], shape: ModelShape, request: Request) -> float:
    """Elements of layers whose shards are more than `max_in_cpu` elements, which stay in host memory although the
    parameters are offloaded to NVMe; 0 where all of the full model's stay."""
    offload = zero.get("offload_param") or {}
    kept = offload.get("max_in_cpu", _MAX_IN_CPU) if offload.get("device") == "nvme" else math.inf
    if not isinstance(kept, int | float):
        raise DepthNotLinearError("max_in_cpu is for DeepSpeed to judge")
    return 1.5 * kept * request.world_size if shape.parameters > kept * request.world_size else 0


def _sub_groups(model: dict[str, Any], request: Request) -> tuple[int, ...]:
    """Elements of each sub-group that one rank steps after the other; none where they do not matter."""
    zero = request.config.get("zero_optimization") or {}
    if zero.get("stage") != 3 or request.workload.method != "full":  # adapters are one small sub-group
        return ()
    shape = shape_from_config(model, name="shallow")
    inside = [tensor for block in shape.blocks for _ in range(block.count) for tensor in block.tensors]
    before = [tensor for tensor in shape.outside if tensor.role in ("embedding", "position")]
    after = [tensor for tensor in shape.outside if tensor not in before]
    shards = tuple(shard_numel(tensor.numel, request.world_size) for tensor in (*before, *inside, *after))
    return sub_group_numels(shards, int(_elements(zero, "sub_group_size", shape)))


def _touched_bytes(model: dict[str, Any], request: Request) -> int:
    """Gradients that the rank keeps whole because its piece of the parameters touches them, at stages 1 and 2."""
    if (request.config.get("zero_optimization") or {}).get("stage") not in (1, 2) or request.workload.method != "full":
        return 0
    trained = tensor_set(shape_from_config(model, name="shallow"), Workload())
    return request.workload.weight_bytes * shard_tensors(trained, request.world_size).loads[request.rank].touched


def extrapolated(series: DepthSeries, results: Sequence[DryRunResult]) -> DryRunResult:
    """The full depth's result from those of the series' requests. Raises DepthNotLinearError where what training adds
    does not lie on a line."""
    *shallow, start = results
    if len({tuple((phase.iteration, phase.phase) for phase in result.phases) for result in shallow}) != 1:
        raise DepthNotLinearError("the shallow runs have other phases")
    if len({_locked_in_training(result) for result in shallow}) != 1:
        raise DepthNotLinearError("page-locked memory, which is rounded up to powers of two, grows while it trains")
    line = _Line(series)
    names = [field.name for field in fields(PhaseMemory) if field.name not in ("iteration", "phase")]
    before = {name: [_before_training(result, name) for result in results] for name in names}
    highest = {
        name: [max(getattr(phase, name) for phase in result.phases if phase.iteration) for result in shallow]
        for name in names
    }
    phases, off_line = [*start.phases], {}
    for same in zip(*([phase for phase in result.phases if phase.iteration] for result in shallow), strict=True):
        stepped = _step_peaks(series, same) if same[0].phase == "step" else {}
        values = {}
        for name in names:
            *held, at_full = before[name]
            added = [getattr(phase, name) - already for phase, already in zip(same, held, strict=True)]
            allowed_bytes = TOLERANCE * line.at_full(highest[name]) + NEGLIGIBLE_BYTES
            more, doubt_bytes = line.figure(added)
            values[name] = max(0, at_full + more)
            if name in stepped:
                values[name] = values[name.replace("peak", "live")] + stepped[name]
            elif doubt_bytes > allowed_bytes:
                off_line[same[0].iteration, same[0].phase, name] = values[name] + doubt_bytes
        phases.append(replace(same[0], **values))
    for (_, phase, name), most_bytes in off_line.items():
        if most_bytes > FAR_FROM_PEAK * max(getattr(phase, name) for phase in phases):
            raise DepthNotLinearError(f"{series.not_on_a_line} ({name} of {phase})")
    whole = _whole(line, shallow, start, tuple(phases))
    rough = [phase for _, phase, _ in off_line]
    if series.zero_stage == 3 and whole.peak.phase != "step":
        rough.append("step")  # it begins with the layers that the backward pass left gathered, now two, now three
    return replace(whole, approximate=tuple(dict.fromkeys(rough)))


def _before_training(result: DryRunResult, name: str) -> int:
    """What was there when training began of what a figure of a phase counts."""
    return 0 if name.startswith("nvme") else int(getattr(result.phase("initialize"), name.replace("peak", "live")))


def _locked_in_training(result: DryRunResult) -> tuple[int, ...]:
    """By how much page-locked memory is above what it was when training began, at most, phase by phase."""
    before = _before_training(result, "host_pinned_peak_bytes")
    return tuple(phase.host_pinned_peak_bytes - before for phase in result.phases if phase.iteration)


def _step_peaks(series: DepthSeries, same: Sequence[PhaseMemory]) -> dict[str, int]:
    """How far a step's peaks are above what it leaves, where a sub-group decides it; none where one is all there is, or
    nothing is put on top, so that the peak is on a line."""
    if len(series.sub_groups[-1]) < 2:
        return {}
    peaks: dict[str, int] = {}
    for pool in ("gpu", "host", "host_held", "total"):
        name = f"{pool}_peak_bytes"
        above: list[int] = [getattr(phase, name) - getattr(phase, f"{pool}_live_bytes") for phase in same]
        for decisive in (max, _decisive_first):
            *shallow, full = (decisive(groups) for groups in series.sub_groups)
            ratios = [size / numel for size, numel in zip(above, shallow, strict=True)]
            if 0 < max(ratios) <= (1 + TOLERANCE) * min(ratios):
                peaks.setdefault(name, round(ratios[-1] * full))
    return peaks


def _decisive_first(numels: tuple[int, ...]) -> int:
    """The elements that decide the first step, in which every sub-group leaves two float32 states behind, twice what
    its float32 gradient takes: those of the sub-group that, less twice those after it, is the largest."""
    return max(numel - 2 * sum(numels[index + 1 :]) for index, numel in enumerate(numels))


def _whole(
    line: _Line, results: Sequence[DryRunResult], start: DryRunResult, phases: tuple[PhaseMemory, ...]
) -> DryRunResult:
    """The result around the phases. The peak is the highest of training, as in a run."""
    last = results[-1]
    training = [phase for phase in phases if phase.iteration]
    highest = max(training, key=lambda phase: phase.gpu_peak_bytes)
    allocated = highest.gpu_peak_bytes

    def held(setting: Callable[[Peak], Peak | Reserved]) -> dict[str, int]:
        return {
            name: allocated
            + max(getattr(setting(result.peak), name) - result.peak.allocated_bytes_per_gpu for result in results)
            for name in ("reserved_bytes_per_gpu", "required_bytes_per_gpu")
        }

    by_phase = {
        name: _parts(line, results, name, max(phase.gpu_peak_bytes for phase in training if phase.phase == name))
        for name in last.peak_by_phase
    }
    peak = Peak(
        iteration=highest.iteration,
        phase=highest.phase,
        allocated_bytes_per_gpu=allocated,
        **held(lambda peak: peak),
        with_expandable_segments=Reserved(**held(lambda peak: peak.with_expandable_segments)),
        without_expandable_segments=Reserved(**held(lambda peak: peak.without_expandable_segments)),
        device_bytes_per_gpu=None,
        host_bytes_per_node=min(last.gpus_per_node, last.world_size)
        * max(phase.host_held_peak_bytes for phase in phases),
        by_category=by_phase[highest.phase],
        by_module={},
        largest=(),
    )
    return replace(
        last,
        phases=phases,
        peak=peak,
        peak_by_phase=by_phase,
        timeline=(),
        schedule=None,
        extrapolated_from=line.depths,
        peak_loading_gpu_bytes=max(phase.gpu_peak_bytes for phase in phases if not phase.iteration),
        nvme_bytes_per_rank=line.at_full([result.nvme_bytes_per_rank for result in results]),
        parameters=start.parameters,
        trainable_parameters=start.trainable_parameters,
        seconds=max(result.seconds for result in (*results, start)),
    )


def _parts(line: _Line, results: Sequence[DryRunResult], phase: str, whole_bytes: int) -> dict[str, int]:
    """The peak of a phase by category. What the parts' lines do not explain is gradients in the step, which follow the
    largest sub-group, and else belongs to the largest part."""
    names = {name for result in results for name in result.peak_by_phase[phase]}
    parts = {
        name: max(0, line.at_full([result.peak_by_phase[phase].get(name, 0) for result in results])) for name in names
    }
    rest = "gradients" if phase == "step" and "gradients" in parts else max(parts, key=lambda name: parts[name])
    parts[rest] += whole_bytes - sum(parts.values())
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


class _Line:
    """Figures at the ladder's depths, prolonged to the full one."""

    def __init__(self, series: DepthSeries) -> None:
        self._series, self.depths = series, series.depths

    def at_full(self, values: Sequence[int]) -> int:
        """The figure at the full depth, by the outer two depths."""
        return round(self._through(values, 0))

    def figure(self, values: Sequence[int]) -> tuple[int, float]:
        """(the figure at the full depth, how much it may be off): by itself, or with the gradients that the piece
        touches set apart where that is nearer to a line."""
        *shallow, full = self._series.touched_bytes
        apart = [value - touched for value, touched in zip(values, shallow, strict=True)]
        nearest, rest = min(((values, 0), (apart, full)), key=lambda figures: self.spread(figures[0]))
        return self.at_full(nearest) + rest, self.spread(nearest)

    def spread(self, values: Sequence[int]) -> float:
        """How far apart the line through the outer two and the line through the last two are at the full depth."""
        return abs(self._through(values, 0) - self._through(values, 1))

    def _through(self, values: Sequence[int], other: int) -> float:
        slope = (values[-1] - values[other]) / (self.depths[-1] - self.depths[other])
        return values[-1] + (self._series.full - self.depths[-1]) * slope
