"""All measurements that need a GPU, on this machine, within a given time.

    python -m benchmarks.gpu --minutes 20 --out DIR [--wheels WHEELS]
    python -m benchmarks.gpu --minutes 5 --out DIR --device cpu     # the same script at toy sizes

Run it from the root of a checkout, whose folder may have any name; nothing needs to be installed but torch,
transformers, accelerate, peft, psutil and nvidia-ml-py, and what `python -m benchmarks.gpu.wheels` gathers elsewhere.
Every measurement is kept at once as a line of DIR/records.jsonl. Called again, it goes on where it stopped; three calls
of nine minutes do what one of twenty-seven does. `python -m benchmarks.gpu.tables DIR` makes tables of the records.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from .machine import environment
from .machine.checkout import make_importable


def main() -> int:
    started = time.monotonic()
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that what was started is ended too
    asked.out.mkdir(parents=True, exist_ok=True)
    cache = environment.cache_folder()
    packages = [environment.install(asked.wheels, cache)] if asked.wheels else []
    environment.prepare(cache, asked.device)
    make_importable(cache, packages)

    # Only now can anything of the program be imported.
    from ds_advise.advisor.question.cluster import parse_size

    from .agenda.order import agenda
    from .machine.place import Place
    from .records import Records
    from .session import Session

    with tempfile.TemporaryDirectory(prefix="ds-advise-gpu-drive-", dir=asked.drive or _drive()) as drive:
        place = Place(
            device=asked.device,
            limit_s=0,
            ram_bytes=parse_size("--ram", asked.ram, least=10**9, most=10**14) if asked.ram else None,
            nvme_folder=drive,
        )
        say = partial(print, flush=True)
        session = Session(Records(asked.out), place, deadline=started + 60 * asked.minutes - asked.spare, say=say)
        if not session.versions["deepspeed"]:
            say("DeepSpeed is not installed: --wheels names a folder with it; what needs it will fail")
        session.go([measurement for measurement in agenda(place) if asked.only in measurement.name])
    return 0


def _drive() -> str:
    """A folder that lies on a disk; where temporary files go may be memory."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True, help="how long it may take, from its start")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the records are kept")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu runs toy sizes")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install the wheels of this folder first")
    parser.add_argument("--ram", metavar="SIZE", help="host memory that may be used, where the machine says too little")
    parser.add_argument("--drive", metavar="DIR", help="a folder on the drive to measure and to swap to")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what has this in its name")
    parser.add_argument("--spare", type=float, default=5.0, metavar="SECONDS", help="stop so much before the end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
