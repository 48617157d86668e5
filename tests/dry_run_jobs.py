"""Run dry runs, and the same requests for real on the CPU counted by the same ledger, many to a process.

    python dry_run_jobs.py JOBS.json

JOBS.json: a list of {"kind": "dry" | "gloo" | "alone", "request", "answer": file, "real_kernels"}. "gloo" really trains all
ranks and answers for `request["rank"]`; "alone" really trains that rank of a job whose other ranks do not exist (torch's
fake process group). Importing torch, DeepSpeed and transformers takes longer than a tiny run, so each job is a fork of
this process.
"""

import json
import os
import socket
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import deepspeed
import peft  # noqa: F401
import torch
import transformers
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from ds_advise.probes.dry_run import collectives, kernels, training, unknown_values, worker
from ds_advise.probes.dry_run.accelerator import SimulatedAccelerator
from ds_advise.probes.dry_run.ledger import Ledger
from ds_advise.probes.dry_run.mode import RecordingMode
from ds_advise.probes.dry_run.origins import Origins
from ds_advise.probes.dry_run.request import Request


class RealMode(RecordingMode):
    """Counts real tensors. Alone, what other ranks would have sent is junk, so reading a value answers 0, as in a dry run."""

    def __init__(self, ledger, values_are_junk):
        super().__init__(ledger)
        self._values_are_junk = values_are_junk

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if self._values_are_junk and operation is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].dtype.is_floating_point else 0
        return super().__torch_dispatch__(operation, types, args, kwargs)


class RealAccelerator(SimulatedAccelerator):
    """A device that is the host but answers as a GPU does, so that the engine takes a GPU's branches."""

    device_type = "cpu"
    real_kernels = False

    def current_device_name(self):
        return "cpu"

    def pin_memory(self, tensor, *_, **__):
        return tensor.clone()

    def _torch_empty_pinned(self, tensor, shape):
        return tensor.new_empty(shape)

    def is_pinned(self, _tensor):
        return True

    def get_op_builder(self, class_name):
        if self.real_kernels or class_name == "AsyncIOBuilder":
            return CPU_Accelerator.get_op_builder(self, class_name)
        return super().get_op_builder(class_name)

    communication_backend_name = CPU_Accelerator.communication_backend_name


class SettlingRecorder(training.Recorder):
    """Waits at the end of a phase: gloo's threads drop a reduced tensor a moment after the collective has returned."""

    def sweep(self, module, optimizer):
        super().sweep(module, optimizer)
        time.sleep(0.05)


def settled(collective):
    """The collective, and time for gloo's threads to drop its tensors, which otherwise they do at some later moment."""

    def call(*args, **kwargs):
        work = collective(*args, **kwargs)
        time.sleep(0.002)
        return work

    return call


def with_finite_weights(build):
    """A dry run takes weights as memory comes; real ones must be finite, or the engine skips its steps."""

    def built(*args):
        subject = build(*args)
        with torch.no_grad():
            for parameter in subject.model.parameters():
                getattr(parameter, "ds_tensor", parameter).normal_(0, 0.02)
        return subject

    return built


def train(request, rank, port, real_kernels):
    """Train for real; answers the phases as the dry run does."""
    alone = port == 0
    if alone:
        collectives.join(rank, request.world_size, request.world_size)
    else:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request.world_size),
                          LOCAL_SIZE=str(request.world_size + 1), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=request.world_size)
    origin = Origins()
    ledger = Ledger("none", origin.classify)
    accelerator = RealAccelerator(ledger, device_count=request.world_size, memory_bytes=80 << 30)
    accelerator.real_kernels = real_kernels
    set_accelerator(accelerator)
    if not real_kernels:
        kernels.install(ledger)
        from deepspeed.ops.op_builder.cpu import AsyncIOBuilder
        for module in list(sys.modules.values()):
            if hasattr(module, "AsyncIOBuilder") and module.__name__.startswith("deepspeed.runtime"):
                module.AsyncIOBuilder = AsyncIOBuilder
    if not alone:
        for name in ("broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"):
            setattr(torch.distributed, name, settled(getattr(torch.distributed, name)))
    deepspeed.init_distributed("gloo")
    if alone:
        collectives.silence_comparisons()
    torch.Tensor.record_stream = lambda _tensor, _stream: None
    transformers.integrations.deepspeed.initialize_weights_zero3 = unknown_values.gather_largest_module
    training.models.from_config = with_finite_weights(training.models.from_config)
    training.models.from_file = with_finite_weights(training.models.from_file)
    torch.manual_seed(0)
    recorder = SettlingRecorder(ledger, origin)
    with RealMode(ledger, alone):
        training.run(request, recorder, "cpu")
    if not alone:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return {"phases": [asdict(phase) for phase in recorder.phases]}


def in_a_fork(function, answer_file):
    """Start `function` in a child; its answer, or its traceback, goes to the file. Answers the child's id."""
    child = os.fork()
    if child:
        return child
    try:
        answer = function()
    except BaseException:
        answer = {"error": traceback.format_exc()}
    if answer_file is not None:
        Path(answer_file).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


def run(job):
    values = job["request"]
    for name in ("input_shape", "lora_targets"):
        values[name] = tuple(values[name]) if values[name] is not None else None
    request = Request(**values)
    if job["kind"] == "dry":
        children = [in_a_fork(lambda: worker.answer_to(request), job["answer"])]
    else:
        port, ranks = 0, [request.rank]
        if job["kind"] == "gloo":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = range(request.world_size)
        children = [in_a_fork(lambda rank=rank: train(request, rank, port, job["real_kernels"]),
                              job["answer"] if rank == request.rank else None) for rank in ranks]
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    assert transformers.__version__
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run(job)
