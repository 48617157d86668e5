"""The subprocess: cases from JSON on stdin to answers in the folder named by the first argument, each in a fork of it.

A fork inherits what is imported, and what a case changes in torch and DeepSpeed ends with it. A dispatch mode counts
the operations, module calls and hooks of one step.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ds_advise.estimators.hardware import Cluster, gpu_of_memory
from ds_advise.estimators.workload import Workload
from ds_advise.probes.benchmark_rank import HostScore
from ds_advise.probes.run import Run
from ds_advise.probes.simulated_gpu import collectives
from torch.utils._python_dispatch import TorchDispatchMode

from .host_time_cases import PHASES, HostCounts, HostTime, HostTimeCase, defaults, narrow

_TOKENS = 4
_WARM_UP_STEPS = 4
"""Stage 3 records its trace in the first pass and prefetches from the third."""


def main() -> None:
    """Answer the cases on stdin one after the other: side by side they would disturb each other."""
    folder, (cases, steps) = Path(sys.argv[1]), json.loads(sys.stdin.read())
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    for name in (
        "deepspeed.runtime.engine",
        "transformers.integrations.deepspeed",
        "transformers.modeling_utils",
        "torch.testing._internal.distributed.fake_pg",
        "torch._dynamo",  # the stages' decorators load it with their first call
        "deepspeed.runtime.bf16_optimizer",
        "deepspeed.runtime.zero.stage_1_and_2",
        "deepspeed.runtime.zero.stage3",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "peft.peft_model",
    ):
        importlib.import_module(name)
    from ds_advise.probes.dry_run import models, training  # noqa: F401

    gc.collect()
    gc.freeze()  # what is imported is no garbage
    for index, values in enumerate(cases):
        case = HostTimeCase(**{**values, "lora_targets": values["lora_targets"] and tuple(values["lora_targets"])})
        fork = os.fork()
        if not fork:
            _answer(folder / f"answer-{index}.json", case, steps)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(fork, 0)
    os._exit(0)


def _answer(file: Path, case: HostTimeCase, steps: int) -> None:
    try:
        answer: dict[str, Any] = asdict(_measure(case, steps))
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    file.write_text(json.dumps(answer), encoding="utf-8")


def _measure(case: HostTimeCase, steps: int) -> HostTime:
    import deepspeed

    collectives.join(0, case.world_size, case.world_size)
    deepspeed.init_distributed(dist_backend="fake")
    collectives.silence_comparisons()
    engine, batch = _engine(case)
    for _ in range(_WARM_UP_STEPS):
        _step(engine, batch, case.accumulation)
    score, scores = HostScore(), []
    seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        scores.append(score.measure())
        for phase, found in _step(engine, batch, case.accumulation).items():
            seconds[phase] += found
    return HostTime(
        forward_s=median(seconds["forward"]),
        backward_s=median(seconds["backward"]),
        last_backward_s=median(seconds["last backward"]),
        step_s=median(seconds["step"]),
        counts=_counts(
            engine, batch, case.accumulation, Counting(engine.module, recomputes=case.checkpointing != "none")
        ),
        parameters=sum(parameter.requires_grad for parameter in engine.module.parameters()),
        score_s=median(scores),
    )


def _step(engine: Any, batch: dict[str, Any], accumulation: int) -> dict[str, list[float]]:
    """Seconds of the passes of one optimizer step."""
    seconds: dict[str, list[float]] = {"forward": [], "backward": []}
    for last in [False] * (accumulation - 1) + [True]:
        started = time.thread_time()
        loss = engine(**batch).loss
        forwarded = time.thread_time()
        engine.backward(loss)
        backwarded = time.thread_time()
        engine.step()
        done = time.thread_time()
        seconds["forward"].append(forwarded - started)
        seconds.setdefault("last backward" if last else "backward", []).append(backwarded - forwarded)
        if last:
            seconds["step"] = [done - backwarded]
    return seconds


def _counts(engine: Any, batch: dict[str, Any], accumulation: int, counting: Counting) -> dict[str, HostCounts]:
    """What happens in one more step; what is recomputed is that of its first micro batch."""
    with counting:
        for micro_batch in range(accumulation):
            last, first = micro_batch == accumulation - 1, micro_batch == 0
            counting.phase = "forward" if first else ""
            loss = engine(**batch).loss
            counting.phase = "last backward" if last else "backward" if first else ""
            engine.backward(loss)
            counting.phase = "step" if last else ""
            engine.step()
            counting.phase = ""
    return counting.counts()


def _engine(case: HostTimeCase) -> tuple[Any, dict[str, Any]]:
    """DeepSpeed's engine around the case's model, and a batch for it."""
    from ds_advise.probes.dry_run import models, training

    run = _run_of(case)
    config = dict(run.config)
    keep_alive = training.announce_zero3(run, config)
    subject = models.from_config(run, models.transformers_config(run.description or {}), torch.bfloat16, "cpu")
    model: Any = subject.model
    if case.checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": case.checkpointing == "reentrant"})
        if case.lora_targets is not None:
            model.enable_input_require_grads()  # as the Trainer does for adapters
    with torch.no_grad():
        for parameter in model.parameters():
            getattr(parameter, "ds_tensor", parameter).normal_(0, 0.02)
    engine = training.initialize(config, model, subject.groups, run.workload)
    engine.host_time_keeps = keep_alive
    return engine, subject.make_batch(1)


def _run_of(case: HostTimeCase) -> Run:
    return Run(
        config=_ds_config(case),
        model=narrow(defaults(case.model), layers=case.layers, width=case.width),
        cluster=Cluster(nodes=1, gpus_per_node=case.world_size, gpu=gpu_of_memory(64)),
        workload=Workload(
            method="full" if case.lora_targets is None else "lora",
            lora_targets=case.lora_targets if case.lora_targets != ("all-linear",) else None,
            seq_len=_TOKENS,
        ),
        micro_batch_size=1,
        gradient_accumulation_steps=case.accumulation,
        gradient_checkpointing=False,
    )


def _ds_config(case: HostTimeCase) -> dict[str, Any]:
    """As transformers fills `auto`, with sizes that are to the width as the real ones are to a real width."""
    square = case.width * case.width
    zero: dict[str, Any] = {
        "stage": case.zero_stage,
        "overlap_comm": True,
        "reduce_bucket_size": case.reduce_bucket or square,
    }
    if case.offload_optimizer != "none":
        zero["offload_optimizer"] = {"device": case.offload_optimizer}
    if case.zero_stage == 3:
        # A layer has about 12 squares; DeepSpeed's 1e9 elements are 5 layers of a model of 7B parameters, 1 of 70B.
        layer = 12 * square
        zero |= {
            "stage3_prefetch_bucket_size": int(0.9 * square),
            "stage3_param_persistence_threshold": 10 * case.width if case.gathers else 10**9,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": 2 * layer,
        }
        if case.offload_param != "none":
            zero["offload_param"] = {"device": case.offload_param}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": case.accumulation,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
    }


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every dispatched operation and module call by the phase that runs."""

    def __init__(self, model: torch.nn.Module, *, recomputes: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recomputes = recomputes
        self.phase = ""
        self._found: dict[str, Counter[str]] = {}
        self._depth = 0
        """Modules that are being called."""
        self._hooks = 0
        """Hooks of DeepSpeed that are running."""
        self._wrap_modules()
        self._wrap_hooks()
        for parameter in model.parameters():
            if hasattr(parameter, "all_gather_coalesced"):
                self._wrap_gathers(parameter)

    def counts(self) -> dict[str, HostCounts]:
        return {phase: HostCounts(**found) for phase, found in self._found.items()}

    def note(self, what: str, times: int = 1) -> None:
        phase = self.phase
        if self._recomputes and "backward" in phase and (self._depth or _records_in_backward()):
            # Every micro batch recomputes alike.
            phase = "recompute" if phase == "backward" else ""
        if phase:
            self._found.setdefault(phase, Counter())[what] += times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = "views" if is_view(func) else "kernels"
        self.note(f"hook_{kind}" if self._hooks else kind)
        return func(*args, **(kwargs or {}))

    def _wrap_modules(self) -> None:
        call: Any = torch.nn.Module._call_impl

        @functools.wraps(call)
        def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            self.note("calls")
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        setattr(torch.nn.Module, "_call_impl", counted)  # noqa: B010

    def _wrap_hooks(self) -> None:
        def module(name: str) -> Any:
            return importlib.import_module(f"deepspeed.runtime.{name}")

        coordinator = module("zero.partitioned_param_coordinator").PartitionedParameterCoordinator
        self._within(coordinator, "fetch_sub_module")
        self._within(coordinator, "release_sub_module")
        third = module("zero.stage3").DeepSpeedZeroOptimizer_Stage3
        second = module("zero.stage_1_and_2").DeepSpeedZeroOptimizer
        self._within(third, "reduce_ready_partitions_and_remove_grads", "reduced")
        self._within(third, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads", "buckets")
        self._within(second, "process_gradients", "reduced")
        self._within(second, "reduce_ipg_grads", "buckets")

    def _wrap_gathers(self, parameter: Any) -> None:
        all_gather = parameter.all_gather_coalesced

        def counted(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            self.note("gathers")
            self.note("gathered", len(parameters))
            return all_gather(parameters, *args, **kwargs)

        parameter.all_gather_coalesced = counted

    def _within(self, owner: Any, name: str, noted: str = "") -> None:
        """What the method dispatches belongs to hooks."""
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if noted:
                self.note(noted)
            self._hooks += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._hooks -= 1

        setattr(owner, name, counted)


def _records_in_backward() -> bool:
    """A backward pass runs, and operations are recorded for one: they are recomputed, for autograd's own are not."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1


def is_view(operation: Any) -> bool:
    """Nothing is launched: the result shares its input's memory, or is not a tensor."""
    if operation.is_view:
        return True
    name = operation._schema.name.rpartition("::")[2]
    return name in _NOTHING_LAUNCHED


_NOTHING_LAUNCHED = frozenset(
    ("_unsafe_view", "detach", "_reshape_alias", "empty", "empty_like", "new_empty", "set_", "resize_")
)
"""Operations that share or reserve memory and launch no kernel, although their schema does not call them views."""


if __name__ == "__main__":
    main()
