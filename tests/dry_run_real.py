"""Really execute a dry run's request on the CPU, counted by the same ledger: the truth that the dry run is held against.

    python dry_run_real.py REQUEST.json ANSWER.json RANK PORT

PORT 0 joins a fake process group (rank RANK of N alone), any other one a real gloo group.
"""

import json
import os
import sys
from pathlib import Path

import torch

os.environ["DS_ACCELERATOR"] = "cpu"
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from ds_advise.probes.dry_run import collectives, training
from ds_advise.probes.dry_run.accelerator import SimulatedAccelerator
from ds_advise.probes.dry_run.ledger import Ledger
from ds_advise.probes.dry_run.mode import RecordingMode
from ds_advise.probes.dry_run.origins import Origins
from ds_advise.probes.dry_run.request import Request


class RealMode(RecordingMode):
    """Counts real tensors. With a fake group the gathered values are junk, so reading one answers 0, as in the dry run."""

    def __init__(self, ledger, values_are_junk):
        super().__init__(ledger)
        self._values_are_junk = values_are_junk

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if self._values_are_junk and operation is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].dtype.is_floating_point else 0
        return super().__torch_dispatch__(operation, types, args, kwargs)


class RealAccelerator(SimulatedAccelerator):
    """A device that is the host, but answers as a GPU does, so that the engine takes a GPU's branches; real kernels."""

    device_type = "cpu"

    def current_device_name(self):
        return "cpu"

    def pin_memory(self, tensor, *_, **__):
        return tensor.clone()

    def _torch_empty_pinned(self, tensor, shape):
        return tensor.new_empty(shape)

    def is_pinned(self, tensor):
        return True

    get_op_builder = CPU_Accelerator.get_op_builder
    communication_backend_name = CPU_Accelerator.communication_backend_name


def with_finite_weights(build):
    """The dry run leaves weights as memory comes; real ones must be finite, or the engine skips its steps."""

    def built(*args):
        subject = build(*args)
        with torch.no_grad():
            for parameter in subject.model.parameters():
                getattr(parameter, "ds_tensor", parameter).normal_(0, 0.02)
        return subject

    return built


def main() -> None:
    values = json.loads(Path(sys.argv[1]).read_text())
    for name in ("input_shape", "lora_targets"):
        values[name] = tuple(values[name]) if values[name] is not None else None
    request, rank, port = Request(**values), int(sys.argv[3]), sys.argv[4]
    origin = Origins()
    ledger = Ledger("none", origin.classify)
    set_accelerator(RealAccelerator(ledger, device_count=request.world_size, memory_bytes=80 << 30))
    if port == "0":
        collectives.join(rank, request.world_size, request.world_size)
    else:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request.world_size),
                          LOCAL_SIZE=str(request.world_size + 1), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        torch.distributed.init_process_group("gloo", rank=rank, world_size=request.world_size)
    import deepspeed
    deepspeed.init_distributed("gloo")
    if port == "0":
        collectives.silence_comparisons()
    torch.manual_seed(0)
    torch.Tensor.record_stream = lambda self, stream: None
    training.models.from_config = with_finite_weights(training.models.from_config)
    training.models.from_file = with_finite_weights(training.models.from_file)
    recorder = training.Recorder(ledger, origin)
    with RealMode(recorder.ledger, port == "0"):
        training.run(request, recorder, "cpu")
    phases = [[phase.iteration, phase.phase, phase.total_live_bytes, phase.total_peak_bytes] for phase in recorder.phases]
    if os.environ.get("PEAK_OF"):
        iteration, name = os.environ["PEAK_OF"].split(",")
        at = recorder.names.index((int(iteration), name))
        print("PEAK", *sorted(((b.size_bytes, b.category, b.module, b.shape, str(b.dtype)) for b in ledger.blocks if b.alive_at(recorder.total_peaks[at])), reverse=True)[:40], sep="\n")
    Path(sys.argv[2]).write_text(json.dumps(phases))
    if port != "0":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
