"""Whether a dry run works with the torch of this machine, and what it says; elsewhere it is made afterwards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ds_advise.probes.dry_run.run import DryRunError, dry_run

from ..configuration import from_arguments
from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """arguments: of a `Configuration`."""
    configuration = from_arguments(arguments)
    run = configuration.run(place.cluster(configuration.world_size))
    try:
        result = dry_run(
            run, expandable_segments=configuration.expandable_segments, timeout_s=max(5.0, place.limit_s - 5)
        )
    except DryRunError as error:
        if "no Python-defined device" in str(error):
            raise NotPossibleError(str(error)) from None
        return {"outcome": "failed", "reason": f"{error}\n{error.details[-4000:]}"}
    return {"value": {"peak": asdict(result.peak), "seconds": result.seconds, "versions": result.versions}}
