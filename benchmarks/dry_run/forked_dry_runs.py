"""Many dry runs quickly: torch, DeepSpeed and transformers are imported once, and every run is a fork of that process.

What a dry run changes in torch and DeepSpeed stays in its fork. The process that imports runs nothing and starts no
thread, so its forks start as a fresh process does; the answers are those of `dry_run`, byte for byte.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

from ds_advise.estimators.json_form import from_json
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Request

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def answers(requests: Sequence[Request], *, workers: int = 2) -> Iterator[DryRunResult | str]:
    """The results in the order of the requests, as they become known; the error's text where a run failed."""
    os.environ.update(ENVIRONMENT)  # what the server's imports see
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__ + "_imports"])
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as folder, ThreadPoolExecutor(workers) as threads:
        yield from threads.map(lambda request: _ask(context, request, folder), requests)


def _ask(context: ForkServerContext, request: Request, folder: str) -> DryRunResult | str:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, request, folder), daemon=True)
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        return "the process died"
    finally:
        process.join()
    return (
        from_json(DryRunResult, answer["result"])
        if "result" in answer
        else f"{answer['kind']} in {answer['phase']}: {answer['error']}"
    )


def _run(sender: Connection, request: Request, folder: str) -> None:
    """In the fork."""
    from ds_advise.probes.dry_run.worker import run_request

    warnings.simplefilter("ignore")
    os.chdir(folder)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    gc.freeze()  # what was imported is no garbage
    sender.send(run_request(request))
    sender.close()
    os._exit(0)  # as in `worker.main`
