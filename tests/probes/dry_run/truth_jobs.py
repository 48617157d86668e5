"""One process of a comparison: a command run dry, or one rank of it run for real, counted by the same ledger.

    python truth_jobs.py TASK

TASK, pickled: {"dry": whether it is run dry, "words", "cluster", "rank", "steps", "evaluated_batches", "alone": whether
    the peers of a real rank do not exist (torch's fake process group), "seconds": its limit, "folder": the folder of
    the answer}.
"""

import faulthandler
import importlib
import os
import pickle
import sys
import time
from pathlib import Path

ranks_worker = importlib.import_module("benchmarks.own_scripts.ranks_worker")


def run_dry(task):
    """The dry run of the task's command, with what `ranks_worker` changes on both sides. Ends the process."""
    from ds_advise.probes.command.files import View
    from ds_advise.probes.command.request import CommandRequest
    from ds_advise.probes.command.worker import Session
    from ds_advise.probes.simulated_gpu import kernels

    kernels.patch_trl = kernels.patch_chunked_softmax = lambda *_: None  # on a CPU these losses are torch's
    folder = task["folder"]
    request = CommandRequest(
        words=task["words"],
        folder=Path.cwd(),
        cluster=task["cluster"],
        rank=task["rank"],
        iterations=task["steps"],
        offline=True,
        evaluated_batches=task["evaluated_batches"],
        is_default_script=True,
    )
    os.chdir(View(folder).mirror(Path.cwd()))
    session = Session(request, folder, time.monotonic() + task["seconds"])
    prepare = session.prepare

    def prepared():
        prepare()
        ranks_worker.install_for_both(session.recorder)

    session.prepare = prepared
    session.run()


class Rank(ranks_worker.RealRank):
    """A rank that also answers `largest_shard_bytes` and `persistent_shard_bytes`: under ZeRO-3 its largest shard of a
    parameter, and its shards of those that stay gathered."""

    def prepare(self, meeting):
        from ds_advise.probes.simulated_gpu import patches

        super().prepare(meeting)

        def finite(model):
            """The peak of the dry run, whose weights are never drawn; an engine skips its steps for infinite ones."""
            if any(hasattr(parameter, "ds_tensor") for parameter in model.parameters()):
                patches.gather_largest_module(model)
            for parameter in model.parameters():
                for shard in (
                    getattr(parameter, "ds_tensor", parameter),
                    getattr(parameter, "ds_secondary_tensor", None),
                ):
                    if shard is not None:
                        shard.data.normal_(0, 0.02)

        import numpy
        import transformers
        from deepspeed.runtime.zero import stage3

        transformers.integrations.deepspeed.initialize_weights_zero3 = finite
        transformers.PreTrainedModel.initialize_weights = finite
        # What an evaluation copies to the host would be counted with the GPU's memory.
        transformers.trainer_pt_utils.nested_numpify = lambda _: numpy.zeros(1)
        stage3.is_invalid_grad_norm = lambda _: False  # states on NVMe begin with what the file system holds

    def write(self, answer):
        shards = [
            (parameter.ds_tensor.nbytes, parameter.ds_persist)
            for engine in self.observer.engines
            for parameter in engine.module.parameters()
            if hasattr(parameter, "ds_tensor")
        ]
        answer |= {
            "versions": {"deepspeed": sys.modules["deepspeed"].__version__},
            "largest_shard_bytes": max((size for size, _ in shards), default=0),
            "persistent_shard_bytes": sum(size for size, persists in shards if persists),
        }
        super().write(answer)


def main():
    """Answer one task; a failure is printed, and the process ends with 1."""
    task = pickle.loads(Path(sys.argv[1]).read_bytes())
    faulthandler.dump_traceback_later(task["seconds"], exit=True)
    if task["dry"]:
        run_dry(task)
    size = task["cluster"].world_size
    os.environ |= {"RANK": str(task["rank"]), "LOCAL_RANK": str(task["rank"]), "WORLD_SIZE": str(size)}
    rank = Rank(task["folder"], steps=task["steps"], alone=task["alone"], evaluated_batches=task["evaluated_batches"])
    rank.run(0, list(task["words"]))


if __name__ == "__main__":
    main()
