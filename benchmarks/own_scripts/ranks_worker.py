"""One process of the comparison of `ranks.py`: a rank that really trains on the CPU, or the dry run of its command.

    python -c "..." FOLDER                     the worker of the dry run (see `run.py` in probes/command)
    python ranks_worker.py FOLDER ROUND WORDS  one rank, started by torchrun

A real rank's device is the host, which answers as a GPU does, so that the script, its trainer and the engine take a
GPU's branches; tensors, kernels and collectives (gloo) are real. Both sides compute attention without a fused kernel,
which keeps other tensors on a CPU than on a GPU, draw their data in the same order, and take `STEPS` optimizer steps.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from collections import Counter
from datetime import timedelta
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

_execve = os.execve  # before it is followed
STEPS = 4
"""ZeRO-3 prefetches from the third step on, so that the fourth is as all others."""
LIMIT = timedelta(seconds=300)


def install_for_both(recorder: Any) -> None:
    """What both sides do otherwise than a dry run of the product."""
    import torch

    recorder.marks = []
    end = recorder.end

    def marked() -> None:
        counter = recorder.ledger.total
        phase = recorder.recorded[-1]
        places = {"live": recorder.ledger.events, "peak": counter.peak_event}
        recorder.marks.append((f"{phase.iteration} {phase.name}", counter.peak_bytes, places))
        end()

    begin = recorder.begin

    def begun(iteration: int, name: str, part: str = "") -> None:
        if name not in ("forward", "backward", "step"):
            gc.collect()  # cycles of engine and trainer die when the collector runs, on each side at another time
        begin(iteration, name, part)

    recorder.end, recorder.begin = marked, begun
    recorder.repeats = lambda *_: False
    functional: Any = torch.nn.functional
    functional.scaled_dot_product_attention = _attention
    # Before data are shuffled: models with and without numbers have drawn other amounts.
    loader: Any = torch.utils.data.DataLoader
    loader.__iter__ = _seeded(loader.__iter__)
    if "accelerate" in sys.modules:
        prepare: Any = importlib.import_module("accelerate.data_loader").prepare_data_loader
        libraries: Any = importlib.import_module("ds_advise.probes.simulated_gpu.libraries")
        libraries.replace_in_loaded("prepare_data_loader", _seeded(prepare))


def _seeded(function: Any) -> Any:
    import torch

    def run(*arguments: Any, **options: Any) -> Any:
        torch.default_generator.manual_seed(0)
        return function(*arguments, **options)

    return run


def held(recorder: Any) -> str:
    """JSON: by phase and figure, how many tensors of each size, shape and dtype lived at the end and at the peak."""
    events: dict[str, int] = {}
    peaks = Counter[str]()
    for phase, peak_bytes, places in recorder.marks:
        events[f"{phase} live"] = places["live"]
        if peak_bytes >= peaks[phase]:
            peaks[phase], events[f"{phase} peak"] = peak_bytes, places["peak"]
    found = {
        name: Counter(
            f"{life.size_bytes} {list(life.shape)} {str(life.dtype)[6:]} {life.category}"
            for life in recorder.ledger.storages
            if life.is_live_at(event)
        )
        for name, event in events.items()
    }
    return "held " + json.dumps(found)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    import torch

    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -1e4)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout_p, training=dropout_p > 0)
    return weights @ value


def dry_run() -> None:
    """The worker of the dry run."""
    from ds_advise.probes.command import worker
    from ds_advise.probes.simulated_gpu import kernels

    kernels.patch_trl = lambda *_: None  # on a CPU its losses are torch's
    prepare = worker.Session.prepare

    def prepared(session: worker.Session) -> None:
        prepare(session)
        install_for_both(session.recorder)

    succeed = worker.Session.succeed

    def succeeded(session: worker.Session) -> None:
        session.observer.close()
        session.remarks.append(held(session.recorder))
        succeed(session)

    session_class: Any = worker.Session
    session_class.prepare, session_class.succeed = prepared, succeeded
    worker.main()


class RealRank:
    """One rank that trains: the counterpart of `Session`.

    alone: whether the other ranks do not exist; what they would send is junk.
    """

    def __init__(self, folder: Path, *, steps: int = STEPS, alone: bool = False, evaluated_batches: int = 3) -> None:
        from ds_advise.probes.command.rows import Rows
        from ds_advise.probes.recording.allocation_classifier import AllocationClassifier
        from ds_advise.probes.recording.ledger import Ledger
        from ds_advise.probes.recording.phases import PhaseRecorder
        from ds_advise.probes.recording.schedule import ScheduleRecorder

        # By its path: the tests are no part of an installed package.
        jobs = Path(__file__).parents[2] / "tests" / "probes" / "dry_run" / "dry_run_jobs.py"
        self.jobs = SourceFileLoader("dry_run_jobs", str(jobs)).load_module()
        self.folder = folder
        self.alone = alone
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        classifier = AllocationClassifier()
        ledger = Ledger("none", classifier.classify)
        schedule = ScheduleRecorder(lambda: ledger.stream, ledger.is_pinned)
        self.recorder = PhaseRecorder(ledger, classifier, schedule)
        self.observer = _observer(self.recorder, lambda: self.loaders.has_varying_shapes, steps)
        self.loaders: Any = _loaders(self.observer, evaluated_batches)
        self.rows = Rows(1 << 40)
        self.remarks: list[str] = []

    def prepare(self, meeting: Path) -> None:
        import deepspeed
        import torch
        from deepspeed.accelerator import set_accelerator
        from ds_advise.probes.command import follow
        from ds_advise.probes.simulated_gpu import collectives, kernels

        accelerator: Any = importlib.import_module("ds_advise.probes.simulated_gpu.accelerator")

        jobs, ledger, schedule = self.jobs, self.recorder.ledger, self.recorder.schedule
        if self.alone:
            collectives.join(self.rank, self.world_size, self.world_size)
        else:
            c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
            c10d.ProcessGroupGloo = jobs.OneThreadGloo
            os.environ["LOCAL_SIZE"] = str(self.world_size + 1)  # unequal: no collectives in shared memory
            distributed: Any = importlib.import_module("torch.distributed")
            store = distributed.FileStore(str(meeting), self.world_size)
            torch.distributed.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=LIMIT
            )
        kernels.CountingHandle = jobs.FileHandle  # type: ignore[misc]
        kernels.op_builder = accelerator.op_builder = jobs.op_builder
        gpu = jobs.RealAccelerator(ledger, schedule, device_count=self.world_size, memory_bytes=80 << 30)
        set_accelerator(gpu)
        kernels.install(ledger, schedule)
        deepspeed.init_distributed("gloo")
        collectives.silence_comparisons()
        self.mode = jobs.RealMode(ledger, schedule, alone=self.alone)
        self.mode.invented, self.mode.unknown_masks = {}, 0
        importlib.import_module("transformers.modeling_utils")
        _answer_as_gpu(gpu, ledger, self.world_size)
        _install_libraries(self.observer, self.world_size)
        self.loaders.install()
        self.observer.observe()
        install_for_both(self.recorder)
        follow.install()

    def run(self, round_number: int, words: list[str]) -> None:
        from ds_advise.probes.command import follow, launchers
        from ds_advise.probes.command.words import RANK_VARIABLES
        from ds_advise.probes.recording.engine_phases import TrainingEnded

        try:
            self.prepare(self.folder / f"meeting{round_number}")
            launch = launchers.read_launch(words, folder=Path.cwd())
            self.observer.enter("load", iteration=0)
            with self.mode:
                launchers.run_target(launch)
        except TrainingEnded:
            pass
        except follow.Relaunch as other:
            places = {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}
            os.chdir(other.folder)
            again = [sys.executable, __file__, str(self.folder), str(round_number + 1), *other.words]
            _execve(sys.executable, again, {**other.environment, **places})
        except BaseException as error:
            ended = isinstance(error, SystemExit) and error.code in (None, 0)
            if not ended and not self.observer.finished:
                self.write({"error": "".join(traceback.format_exception(error))})
            self.failure = error  # its frames hold tensors, as in the dry run
            if not ended:
                self.remarks.append("".join(traceback.format_exception(error)))
        self.succeed()

    def succeed(self) -> None:
        from dataclasses import asdict

        from ds_advise.estimators.json_form import to_json
        from ds_advise.probes.command.observe import observed

        self.observer.close()
        if not self.observer.engines:
            self.write({"error": "no engine"})
        self.remarks.append(held(self.recorder))
        phases = [asdict(phase) for phase in self.recorder.phases]
        seen = observed(self.observer, self.loaders, self.mode, self.rows, self.remarks)
        self.write({"phases": phases, "observed": to_json(seen)})

    def write(self, answer: dict[str, Any]) -> None:
        (self.folder / f"rank{self.rank}.json").write_text(json.dumps(answer))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit("error" in answer)


def _observer(recorder: Any, varies: Any, steps: int) -> Any:
    import torch
    from ds_advise.probes.recording.engine_phases import EngineObserver

    class Observer(EngineObserver):
        def _describe(self, module: Any) -> None:
            # Files are read by other threads and in C++, which the mode does not see.
            others = [each for each in gc.get_objects() if isinstance(each, torch.nn.Parameter)]
            for each in (*others, *(module.buffers() if module is not None else ())):
                self.recorder.ledger.track(getattr(each, "ds_tensor", each))
            super()._describe(module)

    return Observer(recorder, last_step=steps, varies=varies)


def _loaders(observer: Any, evaluated_batches: int) -> Any:
    from ds_advise.probes.simulated_gpu.loaders import Loaders
    from torch.utils._pytree import tree_iter

    class RealLoaders(Loaders):
        """Batches are on the host: to move one is to copy it."""

        def _next(self, *arguments: Any) -> Any:
            batch = super()._next(*arguments)
            for each in tree_iter(dict(batch) if hasattr(batch, "items") else batch):
                if hasattr(each, "untyped_storage"):
                    each._is_on_host = True
            return batch

    return RealLoaders.following(observer, longest=False, evaluated_batches=evaluated_batches)


def _answer_as_gpu(gpu: Any, ledger: Any, world_size: int) -> None:
    """`torch.cuda` is the host, and functions that a CPU computes in other pieces than a GPU are computed as there."""
    import torch
    from ds_advise.estimators.gpu_catalogue import find_gpu
    from ds_advise.estimators.hardware import Cluster

    autocast: Any = importlib.import_module("ds_advise.probes.simulated_gpu.autocast")
    cuda: Any = importlib.import_module("ds_advise.probes.simulated_gpu.cuda")
    torch_module: Any = torch
    cuda.DEVICE_TYPE = autocast.DEVICE_TYPE = "cpu"
    cuda.gpu_number = lambda _number: torch.device("cpu")  # with a number it is another device than the tensors'
    cuda.install(gpu, ledger, Cluster(gpu=find_gpu("H100"), nodes=1, gpus_per_node=world_size))
    autocast._replace_contexts()
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda _tensor, _stream: None
    tensor.is_pinned = lambda own, *_: ledger.is_pinned(own)

    def pin_memory(own: Any, *_: Any, **__: Any) -> Any:
        with ledger.births_pinned():
            return own.clone()

    tensor.pin_memory = pin_memory
    move = tensor.to

    def to(own: Any, *arguments: Any, **options: Any) -> Any:
        moved = move(own, *arguments, **options)
        return own.clone() if moved is own and getattr(own, "_is_on_host", False) else moved

    def cpu(own: Any, **_: Any) -> Any:
        if own.dtype is not torch.int64:  # tokens of a batch
            return own
        copied = own.clone(memory_format=torch.contiguous_format)
        copied._is_on_host = True
        return copied

    def dropout(input: Any, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Any:
        return torch.native_dropout(input, p, True)[0] if training and p > 0 else input

    numpy = tensor.numpy
    tensor.to = to
    tensor.cpu = cpu
    tensor.numpy = lambda own, **options: numpy(own, **options).copy()  # on a host, it is the tensor's own memory
    torch_module.nn.functional.dropout = dropout
    foreach: Any = importlib.import_module("torch.utils._foreach_utils")
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    kinds = [*foreach._get_foreach_kernels_supported_devices(), "cpu"]
    for module in (foreach, optimizers):
        module._get_foreach_kernels_supported_devices = lambda: kinds


def _install_libraries(observer: Any, world_size: int) -> None:
    """accelerate, transformers and torch.distributed as on a simulated rank, but with real collectives."""
    import torch.distributed as dist
    from ds_advise.probes.command.imports import on_import
    from ds_advise.probes.simulated_gpu import libraries

    new_group, barrier, all_gather = dist.new_group, dist.barrier, dist.all_gather_into_tensor

    def all_gather_into_tensor(output: Any, given: Any, *arguments: Any, **options: Any) -> Any:
        # As NCCL, which does not compare the shapes.
        return all_gather(output.view(-1, *given.shape[1:]), given, *arguments, **options)

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    modules: list[Any] = [dist, c10d]
    for module in modules:
        for name in ("init_process_group", "destroy_process_group"):
            setattr(module, name, lambda *_, **__: None)
        module.all_gather_into_tensor = all_gather_into_tensor
        module.new_group = lambda ranks=None, *_, **__: new_group(ranks)
        module.barrier = lambda group=None, *_, **__: barrier(group)
    vars(dist)["get_backend"] = lambda *_, **__: "nccl"
    if libraries.has("accelerate"):
        operations: Any = importlib.import_module("accelerate.utils.operations")
        kept = {name: getattr(operations, name) for name in ("gather_object", "broadcast_object_list")}
        libraries.install_accelerate(world_size)
        for name, function in kept.items():
            setattr(operations, name, function)
            libraries.replace_in_loaded(name, function)
    scaler: Any = importlib.import_module("deepspeed.runtime.fp16.loss_scaler").DynamicLossScaler
    init = scaler.__init__

    def with_small_scale(own: Any, init_scale: float, *arguments: Any, **options: Any) -> None:
        init(own, min(init_scale, 16.0), *arguments, **options)  # from the usual 65,536 the first steps overflow

    scaler.__init__ = with_small_scale
    model: Any = importlib.import_module("transformers").PreTrainedModel
    save = model.save_pretrained
    for name in ("grpo", "rloo"):
        on_import(f"trl.trainer.{name}_trainer", partial(libraries.phase_scoring, observer.phased))
    libraries.install_transformers(observer, is_finished=lambda: observer.finished)
    model.save_pretrained = observer.phased("saving", save)


def main() -> None:
    folder, round_number, *words = sys.argv[1:]
    # The package alone, not its neighbours: a script may have modules of their names.
    sys.path[:1] = [folder]
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    from ds_advise.probes.simulated_gpu import patches

    patches.before_deepspeed()
    RealRank(Path(folder)).run(int(round_number), words)


if __name__ == "__main__":
    main()
