"""Run by every Python process of an observed command (`..environment`), which may be of another environment: starts the
observation, then runs the `sitecustomize` that this one hides."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _observe() -> None:
    """Import the package from its own folder, and start. The command must run also where this fails."""
    import importlib.util

    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    if "ds_advise" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "ds_advise",
            os.path.join(root, "__init__.py"),
            submodule_search_locations=[root],
        )
        assert spec is not None and spec.loader is not None, "it is a file"
        sys.modules["ds_advise"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    from ds_advise.probes.real_run.observe import start

    start()


def _run_hidden() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
try:
    _observe()
except Exception as error:
    sys.stderr.write(f"ds-advise: this process is not observed: {type(error).__name__}: {error}\n")
_run_hidden()
