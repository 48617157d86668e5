"""One process of a comparison: a request run dry, or one rank of it run for real, counted by the same ledger.

    python dry_run_jobs.py TASK

TASK, pickled: {"dry": whether it is run dry, "request", "meeting": the file in which the real ranks meet, None for a
    rank whose peers do not exist (torch's fake process group), "seconds": its limit, "answer": its file}.

Ranks meet in a file, not at a port that another process could take in between. Nothing is compiled: what DeepSpeed's
extensions do for Adam and NVMe is done here in torch and Python.
"""

import faulthandler
import json
import os
import pickle
import sys
import weakref
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "GLOO_SOCKET_IFNAME": "lo",
}

import deepspeed
import torch
import transformers
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from ds_advise.estimators.memory.activations import loss as tiles
from ds_advise.probes.dry_run import training, worker
from ds_advise.probes.recording.allocation_classifier import AllocationClassifier
from ds_advise.probes.recording.ledger import Ledger, RecordingMode
from ds_advise.probes.recording.phases import PhaseRecorder
from ds_advise.probes.recording.schedule import ScheduleRecorder
from ds_advise.probes.simulated_gpu import accelerator, collectives, kernels
from ds_advise.probes.simulated_gpu import kernels as aio
from ds_advise.probes.simulated_gpu import patches as unknown_values
from ds_advise.probes.simulated_gpu.accelerator import SimulatedAccelerator
from torch.distributed import ProcessGroup, ProcessGroupGloo, distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

Gloo = ProcessGroupGloo
tiles.TILE_OF_LOGITS_BYTES = 1 << 19  # a model of these has several


class OneThreadGloo(Gloo):
    """gloo with one worker thread instead of two, so that its collectives run, and are let go of, one after the
    other."""

    def __init__(self, store, rank, size, timeout, **_):  # torch 2.14 passes enable_reconfigure
        options = Gloo._Options()
        options._devices, options._threads, options._timeout = [Gloo.create_default_device()], 1, timeout
        super().__init__(store, rank, size, options)


aten = torch.ops.aten
PRODUCTS = {id(operation) for operation in (aten.mm.default, aten.bmm.default, aten.addmm.default)}


def product_in_fp32(operation, args, kwargs):
    """The result of a matrix product in 16 bits, NotImplemented for another operation. CPUs without instructions for
    16 bits compute it in fp32 in a fiftieth of the time. The mode does not see the copies."""
    kind = args[0].dtype if id(operation) in PRODUCTS else torch.float32
    if kind is torch.float32 or any(each.dtype is not kind for each in args):  # torch refuses several dtypes
        return NotImplemented
    return operation(*(each.float() for each in args), **kwargs).to(kind)


class RealMode(RecordingMode):
    """Counts real tensors.

    gloo's thread holds a collective's tensors for a moment after the collective has finished (torch
    ProcessGroupGloo.cpp, `runLoop`: the work dies at the end of the loop's body). If the caller drops a tensor in that
    moment, it is freed later, by the thread. The thread's next work starts after that: here it is one of a single
    element. To reduce and scatter, gloo reduces a copy of everything and takes its part, which NCCL does not: that
    copy, seen where it is split, is not counted.

    Alone, what other ranks would have sent is junk, so reading a value answers 0, as in a dry run.
    """

    def __init__(self, ledger, schedule, *, alone):
        super().__init__(ledger, schedule, product_in_fp32)
        self._alone = alone
        self._element = torch.zeros(1)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._alone and operation is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].dtype.is_floating_point else 0
        if operation is torch.ops.aten.split.Tensor and self._ledger.find_storage(args[0]) is None:
            return operation(*args, **kwargs)
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if not self._alone and operation.namespace == "c10d":
            group = next(value for value in args if isinstance(value, torch.ScriptObject))
            ProcessGroup.unbox(group).allreduce([self._element]).wait()
        if not self._alone and operation._schema.name == "deepspeed::dim_zero_all_to_all":  # its c10d is below the mode
            distributed_c10d._resolve_process_group(args[1]).allreduce([self._element]).wait()
        return result


class RealAccelerator(SimulatedAccelerator):
    """A device that is the host but answers as a GPU does, so that the engine takes a GPU's branches."""

    device_type = "cpu"

    def current_device_name(self):
        return "cpu"

    def pin_memory(self, tensor, *_, **__):
        return tensor.clone()

    def _torch_empty_pinned(self, tensor, shape):
        return tensor.new_empty(shape)

    def is_pinned(self, _tensor):
        return True

    communication_backend_name = CPU_Accelerator.communication_backend_name


class AdamKernels:
    """The functions of DeepSpeed's Adam extensions. The mode does not see what they allocate; the kernels allocate
    nothing."""

    def load(self, **_):
        return self

    def create_adam(self, *_): ...
    def destroy_adam(self, *_): ...

    def multi_tensor_adam(self, _chunk, _overflow, tensors, lr, beta1, beta2, eps, step, _mode, _correction, decay):
        for gradient, parameter, first, second in zip(*tensors, strict=True):
            self.adam_update(0, step, lr, beta1, beta2, eps, decay, True, parameter, gradient, first, second)

    @torch.no_grad()
    def adam_update(self, _id, step, lr, beta1, beta2, eps, decay, _correction, parameter, gradient, first, second):
        with _disable_current_modes():
            gradient = gradient.to(first.dtype)
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            change = first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + eps)
            parameter.sub_(lr * (change + decay * parameter))


def op_builder(class_name, *rest, stand_in=kernels.op_builder):
    return AdamKernels if class_name in ("CPUAdamBuilder", "FusedAdamBuilder") else stand_in(class_name, *rest)


class FileHandle(aio.CountingHandle):
    """Really writes files and reads them back, as DeepSpeed's own handle does."""

    def _transfer(self, kind, buffer, path):
        memory = memoryview(buffer.detach().view(torch.uint8).numpy())
        if kind == "write":
            Path(path).write_bytes(memory)
        else:
            with Path(path).open("rb") as file:
                assert file.readinto(memory) == buffer.nbytes
        super()._transfer(kind, buffer, path)


def finite_weights(build, parameters):
    """A dry run takes weights as memory comes; real ones must be finite, or the engine skips its steps."""

    def built(*args):
        subject = build(*args)
        parameters.extend(map(weakref.ref, subject.model.parameters()))  # the engine may put others in their place
        with torch.no_grad():
            for parameter in subject.model.parameters():
                getattr(parameter, "ds_tensor", parameter).normal_(0, 0.02)
                if getattr(parameter, "ds_secondary_tensor", None) is not None:
                    parameter.ds_secondary_tensor.normal_(0, 0.02)
        return subject

    return built


def train(request, meeting, seconds):
    """Train for real, with the ranks that meet in the file `meeting`, or alone; answers the phases as the dry run does.

    `largest_shard_bytes`, `persistent_shard_bytes`: under ZeRO-3 this rank's largest shard of a parameter, and its
        shards of
    those that stay gathered.
    """
    alone = meeting is None
    rank = request.rank
    world_size = request.run.cluster.world_size
    if alone:
        collectives.join(rank, world_size, world_size)
    else:
        distributed_c10d.ProcessGroupGloo = OneThreadGloo
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_SIZE=str(world_size + 1),
        )  # unequal: no shared-memory collectives
        torch.distributed.init_process_group(
            "gloo",
            store=torch.distributed.FileStore(meeting, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=seconds),
        )
    classifier = AllocationClassifier()
    ledger = Ledger("none", classifier.classify)
    schedule = ScheduleRecorder(lambda: ledger.stream, ledger.is_pinned)
    aio.CountingHandle = FileHandle
    kernels.op_builder = accelerator.op_builder = op_builder
    set_accelerator(RealAccelerator(ledger, schedule, device_count=world_size, memory_bytes=80 << 30))
    kernels.install(ledger, schedule)
    deepspeed.init_distributed("gloo")
    if alone:
        collectives.silence_comparisons()
    torch.Tensor.record_stream = lambda _tensor, _stream: None
    transformers.integrations.deepspeed.initialize_weights_zero3 = unknown_values.gather_largest_module
    recorder = PhaseRecorder(ledger, classifier, schedule)
    if request.run.workload.objective != "next-token":
        from trl_training import train_by_trl

        with RealMode(ledger, schedule, alone=alone):
            train_by_trl(request, recorder)
        return {"phases": [asdict(phase) for phase in recorder.phases]}
    if request.run.workload.eval_batch is not None:
        from evaluation_training import train_and_evaluate

        with RealMode(ledger, schedule, alone=alone):
            train_and_evaluate(request, recorder)
        return {"phases": [asdict(phase) for phase in recorder.phases]}
    parameters = []
    training.models.from_config = finite_weights(training.models.from_config, parameters)
    training.user_module.from_file = finite_weights(training.user_module.from_file, parameters)
    torch.manual_seed(0)
    with RealMode(ledger, schedule, alone=alone):
        training.run(request, recorder, "cpu")
    shards = [
        (parameter.ds_tensor.nbytes, parameter.ds_persist)
        for parameter in (reference() for reference in parameters)
        if hasattr(parameter, "ds_tensor")
    ]
    return {
        "phases": [asdict(phase) for phase in recorder.phases],
        "versions": {"deepspeed": deepspeed.__version__},
        "largest_shard_bytes": max((size for size, _ in shards), default=0),
        "persistent_shard_bytes": sum(size for size, persists in shards if persists),
    }


def main():
    """Answer one task; a failure is printed, and the process ends with 1."""
    task = pickle.loads(Path(sys.argv[1]).read_bytes())
    faulthandler.dump_traceback_later(task["seconds"], exit=True)
    request = task["request"]
    kernels.patch_trl = lambda _recorder: None  # on a CPU its losses are torch's, as DeepSpeed's
    kernels.install_losses = lambda _workload, _recorder: None
    answer = worker.run_request(request) if task["dry"] else train(request, task["meeting"], task["seconds"])
    task["answer"].write_text(json.dumps(answer))
    if "error" in answer:
        print(answer["traceback"], file=sys.stderr)
    sys.stdout.flush()
    os._exit("error" in answer)


if __name__ == "__main__":
    main()
