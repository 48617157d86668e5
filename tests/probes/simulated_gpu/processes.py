"""Cases that need a patched torch run in a process of their own: all cases of a module in one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_CHECKOUT = Path(__file__).parents[3]
_START = f"""import sys
sys.path[:0] = [{str(_CHECKOUT)!r}, {str(_CHECKOUT.parent)!r}]
from tests.probes.simulated_gpu.processes import run_cases
run_cases(sys.argv[1])"""


def names(module: ModuleType) -> list[str]:
    """The functions of a module of cases."""
    return [name for name, value in vars(module).items() if name.startswith("case_") and callable(value)]


def failures(module: ModuleType) -> dict[str, str]:
    """Traceback by name of each case; "" for one that passed."""
    done = subprocess.run(
        [sys.executable, "-c", _START, module.__name__], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_cases(path: str) -> None:
    """Run the cases on a simulated GPU of four, as a worker runs a script. A case takes the mode of values."""
    from ds_advise.estimators.gpu_catalogue import find_gpu
    from ds_advise.estimators.hardware import Cluster
    from ds_advise.probes.simulated_gpu import autocast, cuda, libraries, values
    from ds_advise.probes.simulated_gpu.fast_fake_tensor import FastFakeTensorMode
    from ds_advise.probes.simulated_gpu.rank import simulate, simulated_recorder

    module = importlib.import_module(path)
    cluster = Cluster(nodes=1, gpus_per_node=4, gpu=find_gpu("A100-40GB"))
    recorder = simulated_recorder(lambda _name: None)
    accelerator = simulate(cluster, 0, recorder.ledger, recorder.schedule)
    libraries.install_distributed()
    fake = FastFakeTensorMode()
    mode = values.ValueRecordingMode(recorder.ledger, recorder.schedule, fake.cached_result)
    mode.script_folders = (str(Path(str(module.__file__)).parent),)
    values.install(mode)
    cuda.install(accelerator, recorder.ledger, cluster)
    autocast.install()
    recorder.begin(0, "load")
    with fake, mode:
        found = {name: _failure(getattr(module, name), mode) for name in names(module)}
    print(json.dumps(found))


def _failure(case: Callable[[Any], None], mode: Any) -> str:
    try:
        case(mode)
    except Exception:
        return traceback.format_exc()
    return ""
