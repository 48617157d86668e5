"""Load, initialize and train for a few iterations, with a ledger that watches; on the simulated GPU or on a real
device."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import auto_values, models
from .recording import allocation_classifier as origins
from .recording.ledger import Ledger
from .request import Request
from .result import PhaseMemory


@dataclass(slots=True, kw_only=True)
class RecordedPhase:
    """One phase as it ran (micro batches apart), by the ledger's event clock."""

    iteration: int
    name: str
    first_event: int
    gpu_peak_bytes: int = 0
    gpu_peak_event: int = 0
    total_peak_event: int = 0


class PhaseRecorder:
    """Divides the run into phases. `current` names the one that runs, for the report of an error; `on_phase` gets it
    too."""

    def __init__(
        self,
        ledger: Ledger,
        origin: origins.AllocationClassifier,
        on_phase: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.ledger, self.origin, self.on_phase = ledger, origin, on_phase
        self.current = "start"
        self.phases: list[PhaseMemory] = []
        self.recorded = [RecordedPhase(iteration=0, name="start", first_event=0)]

    @contextlib.contextmanager
    def phase(self, iteration: int, name: str) -> Iterator[None]:
        ledger = self.ledger
        self.current = name if iteration == 0 else f"{name} of iteration {iteration}"
        self.on_phase(self.current)
        self.origin.begin(name)
        ledger.begin_phase()
        recorded = RecordedPhase(iteration=iteration, name=name, first_event=ledger.events)
        self.recorded.append(recorded)
        yield
        recorded.gpu_peak_bytes, recorded.gpu_peak_event = ledger.gpu.peak_bytes, ledger.gpu.peak_event
        recorded.total_peak_event = ledger.total.peak_event
        self.phases.append(
            PhaseMemory(
                iteration=iteration,
                phase=name,
                gpu_live_bytes=ledger.gpu.live_bytes,
                gpu_peak_bytes=ledger.gpu.peak_bytes,
                host_live_bytes=ledger.host.live_bytes,
                host_peak_bytes=ledger.host.peak_bytes,
                host_pinned_live_bytes=ledger.pinned.live_bytes,
                host_pinned_peak_bytes=ledger.pinned.peak_bytes,
                host_held_peak_bytes=ledger.host_held.peak_bytes,
                total_live_bytes=ledger.total.live_bytes,
                total_peak_bytes=ledger.total.peak_bytes,
                nvme_read_bytes=ledger.nvme_read_bytes,
                nvme_written_bytes=ledger.nvme_written_bytes,
            )
        )

    def sweep(self, module: torch.nn.Module, optimizer: Any) -> None:
        """Give every storage that the module or an optimizer holds its owner's name."""
        seen: set[int] = set()
        for tensor, category, name in origins.owners(module, optimizer):
            block = self.ledger.block_of(tensor)
            if block is not None and id(block) not in seen:
                seen.add(id(block))
                block.category, block.owned = category, True
                if name:
                    block.module = name.rpartition(".")[0]


def run(request: Request, recorder: PhaseRecorder, device: str) -> tuple[dict[str, Any], int, int]:
    """Train; answers the configuration that DeepSpeed got, the number of parameters and of trainable ones."""
    import deepspeed

    model_config = models.transformers_config(request) if request.model is not None else None
    config = auto_values.filled(request, models.hidden_size(model_config) if model_config is not None else None)
    dtype = model_dtype(config)
    keep_alive = announce_zero3(request, config)
    with recorder.phase(0, "load"):
        if model_config is not None:
            subject = models.from_config(request, model_config, dtype, device)
        else:
            subject = models.from_file(request, dtype, device)
        gc.collect()  # weights that tying replaced are in cycles; when Python finds them is chance
    model = subject.model
    recorder.origin.vocab_size = subject.vocab_size
    recorder.origin.weight_shapes = frozenset(
        tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in model.parameters()
    )
    parameters, trainable = _count(model)
    with recorder.phase(0, "initialize"):
        chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = client_optimizer(request, config, chosen)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=chosen, optimizer=optimizer, config=config)
        del optimizer
        recorder.origin.watch_modules(engine.module)
        recorder.sweep(engine.module, engine.optimizer)
    _name_gradients(engine.module, recorder.ledger)
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    config |= {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    recorder.origin.tokens = micro * request.workload.seq_len
    for iteration in range(1, request.iterations + 1):
        parts: dict[str, list[PhaseMemory]] = {"forward": [], "backward": [], "step": []}
        kept = len(recorder.phases)
        for _ in range(steps):
            with recorder.phase(iteration, "forward"):
                batch = subject.make_batch(micro)
                output = engine(**batch) if isinstance(batch, dict) else engine(*batch)
                loss = subject.loss(output, batch)
                del output  # as the Trainer: only the loss outlives the forward pass
            with recorder.phase(iteration, "backward"):
                engine.backward(loss)
                del loss, batch
                recorder.sweep(engine.module, engine.optimizer)
            with recorder.phase(iteration, "step"):
                engine.step()
                recorder.sweep(engine.module, engine.optimizer)
        for memory in recorder.phases[kept:]:
            parts[memory.phase].append(memory)
        recorder.phases[kept:] = [_together(part) for part in parts.values()]
    del keep_alive
    return config, parameters, trainable


def _together(parts: list[PhaseMemory]) -> PhaseMemory:
    """The micro batches of one phase as one: last live, highest peak, summed NVMe."""
    combine: dict[str, Callable[[list[int]], int]] = {"live": lambda v: v[-1], "peak": max, "read": sum, "written": sum}
    values: dict[str, Any] = {"iteration": parts[0].iteration, "phase": parts[0].phase}
    for name in PhaseMemory.__dataclass_fields__:
        if name not in values:
            how = next(how for word, how in combine.items() if f"_{word}" in name)
            values[name] = how([getattr(part, name) for part in parts])
    return PhaseMemory(**values)


def model_dtype(config: dict[str, Any]) -> torch.dtype:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if (config.get(name) or {}).get("enabled"):
            return dtype
    return torch.float32


def announce_zero3(request: Request, config: dict[str, Any]) -> Any:
    """Tell transformers about ZeRO-3, as creating TrainingArguments does, so that the model is partitioned while it is
    built (`zero.Init`); the returned object must outlive the run."""
    if request.workload.framework != "hf" or request.model is None:
        return None
    integrations: Any = importlib.import_module("transformers.integrations")
    return integrations.HfDeepSpeedConfig(config)


def _count(model: torch.nn.Module) -> tuple[int, int]:
    """(parameters, trainable parameters), tied ones once, partitioned ones in full."""
    sizes = [
        (getattr(parameter, "ds_numel", parameter.numel()), parameter.requires_grad) for parameter in model.parameters()
    ]
    return sum(size for size, _ in sizes), sum(size for size, trainable in sizes if trainable)


def client_optimizer(request: Request, config: dict[str, Any], parameters: list[torch.nn.Parameter]) -> Any:
    """The optimizer that the Trainer brings when the configuration names none; None when it names one.

    torch's fused AdamW is the Trainer's default; with the optimizer offloaded, accelerate exchanges it for DeepSpeed's
    CPU Adam (accelerate `utils/deepspeed.py`, map_pytorch_optim_to_deepspeed).
    """
    if config.get("optimizer"):
        return None
    offload = ((config.get("zero_optimization") or {}).get("offload_optimizer") or {}).get("device", "none")
    if offload != "none":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(parameters, lr=1e-5)
    config["zero_allow_untested_optimizer"] = True
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def _name_gradients(module: torch.nn.Module, ledger: Ledger) -> None:
    """Name each weight's gradient when autograd delivers it; in the backward pass nothing else tells it apart."""

    def named(gradient: torch.Tensor) -> None:
        block = ledger.block_of(gradient)
        if block is not None and not block.owned:
            block.category, block.owned = "gradients", True

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(named)  # type: ignore[no-untyped-call]
