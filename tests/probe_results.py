"""Results of probes that nobody ran."""

from __future__ import annotations

from typing import Any

from ds_advise.probes.real_run import ProbeResult, RankReport
from ds_advise.probes.real_run.result import StepTime


def ran(step: StepTime, *, world_size: int, device: Any, tokens_per_step: int, **memory: int | None) -> ProbeResult:
    """A probe whose first rank took this time for every step; memory: fields of its report."""
    report: dict[str, Any] = {
        "rank": 0,
        "allocated_bytes": None,
        "reserved_bytes": None,
        "device_bytes": None,
        "host_baseline_bytes": 0,
        "host_loading_peak_bytes": 0,
        "host_peak_bytes": 0,
        "host_pinned_bytes": None,
        "nvme_bytes": 0,
        "nvme_read_bytes": 0,
        "nvme_written_bytes": 0,
        "steps": (step,),
        "losses": (1.0,),
    }
    return ProbeResult(
        world_size=world_size,
        device=device,
        solo=False,
        tokens_per_step=tokens_per_step,
        ranks=(RankReport(**report | memory),),
        failure=None,
        versions={},
    )
