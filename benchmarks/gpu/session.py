"""The measurements of an agenda, one after the other within a given time, each kept as a record."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from ds_advise.probes.machine import Machine, this_machine

from .agenda.order import EXTENSIONS
from .machine.gpu_watch import GpuWatch, wait_until_free
from .machine.place import Place
from .measurement import Measurement, measure
from .records import FINAL, Outcome, Record, Records

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "peft", "bitsandbytes", "liger-kernel")
"""Whose versions make another measurement of the same thing."""

Run = Callable[..., Any]


class Session:
    """Measures until the time is over; what is on record already is not measured again.

    What failed, or took too long, is tried again after all the rest. A measurement that the end of the time cuts off
    leaves no record.
    """

    def __init__(
        self,
        records: Records,
        place: Place,
        *,
        deadline: float,
        say: Callable[[str], None] = print,
        run: Run = measure,
        machine: Machine | None = None,
    ) -> None:
        self._records, self._place, self._deadline, self._say, self._run = records, place, deadline, say, run
        self._machine = machine or this_machine()
        self.versions = versions(self._machine)

    def go(self, agenda: Sequence[Measurement]) -> None:
        """Measure what is missing, in the order of the agenda."""
        found = {measurement.name: self._on_record(measurement) for measurement in agenda}
        missing = [measurement for measurement in agenda if found[measurement.name] is None]
        unsettled = [measurement for measurement in agenda if self._failed(found[measurement.name])]
        self._say(f"{len(agenda)} measurements: {len(missing)} to do, {len(unsettled)} to try again")
        for number, measurement in enumerate(queue := [*missing, *unsettled], start=1):
            left_s = self._deadline - time.monotonic()
            if left_s < measurement.about_s:
                self._say(f"left out, about {measurement.about_s:.0f} s: {measurement.name}")
                continue
            self._say(f"[{number}/{len(queue)}, {left_s / 60:.1f} min left] {measurement.name}")
            self._measured(measurement, min(measurement.limit_s, left_s))

    def _measured(self, measurement: Measurement, limit_s: float) -> None:
        began, started = datetime.datetime.now(datetime.UTC), time.monotonic()
        wait_until_free()
        with GpuWatch() as watch:
            answer = self._run(measurement, replace(self._place, broken=self._broken()), limit_s=limit_s)
        seconds = time.monotonic() - started
        outcome = cast(Outcome, answer["outcome"])
        self._say(f"    {outcome}, {seconds:.0f} s{_last_line(answer['reason'])}")
        if outcome == "timed out" and limit_s < measurement.limit_s:
            return  # not its own limit
        self._records.add(
            Record(
                name=measurement.name,
                kind=measurement.kind,
                arguments=measurement.arguments,
                outcome=outcome,
                value=answer["value"],
                reason=answer["reason"],
                device=self._place.device,
                versions=self.versions,
                machine=self._machine.to_json(),
                gpu=watch.summary(),
                began=began.isoformat(timespec="seconds"),
                seconds=seconds,
            )
        )

    def _on_record(self, measurement: Measurement) -> Record | None:
        if measurement.kind == "extensions" and not any(Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/*.so")):
            return None  # compiled on a machine that is gone
        return self._find(measurement.name, measurement.arguments)

    def _find(self, name: str, arguments: Mapping[str, Any] | None = None) -> Record | None:
        return self._records.latest(
            name,
            device=self._place.device,
            versions=self.versions,
            gpus=self._machine.gpus,
            arguments=arguments,
        )

    def _failed(self, record: Record | None) -> bool:
        return record is not None and record.outcome not in FINAL

    def _broken(self) -> Mapping[str, str]:
        record = self._find(EXTENSIONS)
        compiled = {} if record is None else record.value
        return {builder: found["error"] for builder, found in compiled.items() if found["error"]}


def versions(machine: Machine) -> dict[str, str]:
    """Of what decides the figures; "" for a package that is not installed."""
    found = {"driver": machine.driver}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _last_line(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return f": {lines[-1][:160]}" if lines else ""
