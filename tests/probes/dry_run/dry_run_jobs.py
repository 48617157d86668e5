"""Parts of a rank that really trains on the CPU under a dry run's ledger: what `ranks_worker` installs.

Ranks meet in a file, not at a port that another process could take in between. Nothing is compiled: what DeepSpeed's
extensions do for Adam and NVMe is done here in torch and Python.
"""

import os
from pathlib import Path

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "GLOO_SOCKET_IFNAME": "lo",
}

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from ds_advise.probes.recording.ledger import RecordingMode
from ds_advise.probes.simulated_gpu import kernels
from ds_advise.probes.simulated_gpu.accelerator import SimulatedAccelerator
from torch.distributed import ProcessGroup, ProcessGroupGloo, distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

Gloo = ProcessGroupGloo


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


class FileHandle(kernels.CountingHandle):
    """Really writes files and reads them back, as DeepSpeed's own handle does."""

    def _transfer(self, kind, buffer, path):
        memory = memoryview(buffer.detach().view(torch.uint8).numpy())
        if kind == "write":
            Path(path).write_bytes(memory)
        else:
            with Path(path).open("rb") as file:
                assert file.readinto(memory) == buffer.nbytes
        super()._transfer(kind, buffer, path)
