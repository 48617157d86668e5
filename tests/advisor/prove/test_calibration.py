"""What one probe teaches about other plans."""

from __future__ import annotations

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.verification.probe_order import calibration
from ds_advise.estimators.estimate import TimeEstimate
from ds_advise.probes.real_run.result import ProbeResult, StepTime

from tests.helpers import ran

OPTIMIZER = ("optimizer", "optimizer on the host")


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return advise("Qwen2.5-7B", gpus="4xA100-80GB", ram="1TB", deepspeed_estimate=False, offline=True)


def plan(answer: Recommendation, rung: str) -> Candidate:
    return next(step.candidate for step in answer.ladder if step.rung == rung and step.candidate is not None)


def parts(time: TimeEstimate) -> tuple[float, float, float]:
    """(device, optimizer, links) seconds."""
    optimizer = sum(term.seconds for term in time.terms if term.name in OPTIMIZER)
    links = sum(term.seconds for term in time.terms if term.resource in ("gpu links", "network"))
    return time.step_s - optimizer - links, optimizer, links


def probed(time: TimeEstimate, device: float, optimizer: float, links: float, *, waits: bool = True) -> ProbeResult:
    """A probe of a machine whose three kinds of work take so many times the prediction."""
    on_device, in_optimizer, waiting = (
        part * factor for part, factor in zip(parts(time), (device, optimizer, links), strict=True)
    )
    step = StepTime(
        total_s=on_device + in_optimizer + waiting,
        forward_s=on_device / 3,
        backward_s=on_device * 2 / 3 + waiting * 0.7,
        optimizer_s=in_optimizer + waiting * 0.3,
        waiting_s=waiting if waits else None,
        optimizer_waiting_s=waiting * 0.3 if waits else None,
    )
    return ran(step, world_size=4, device="cuda", tokens_per_step=time.tokens_per_step, allocated_bytes=1)


def test_one_probe_predicts_the_other_rungs_of_an_unlike_machine(answer: Recommendation) -> None:
    """The factors found on ZeRO-2 give the step of ZeRO-3, whose shares of the work are others."""
    factors = {"device": 1.7, "optimizer": 3.0, "links": 0.4}
    known = plan(answer, "zero2").estimate.time
    found = calibration(probed(known, **factors), known)
    assert (found.device, found.optimizer, found.links) == pytest.approx((1.7, 3.0, 0.4))
    other = plan(answer, "zero3").estimate.time
    truth = sum(part * factor for part, factor in zip(parts(other), factors.values(), strict=True))
    assert found.apply(other).step_s == pytest.approx(truth)
    assert found.apply(other).step_s != pytest.approx(other.step_s, rel=0.1)


def test_a_device_that_waits_by_itself_gives_one_factor(answer: Recommendation) -> None:
    """On CUDA the step as a whole is known."""
    known = plan(answer, "zero2").estimate.time
    found = calibration(probed(known, 2.0, 2.0, 2.0, waits=False), known)
    assert found.device == found.optimizer == found.links == pytest.approx(2.0)


def test_the_probed_plan_itself_is_then_exact(answer: Recommendation) -> None:
    """Whatever the machine."""
    for rung in ("zero1", "zero3", "zero3-offload"):
        known = plan(answer, rung).estimate.time
        result = probed(known, 0.5, 2.0, 5.0)
        assert calibration(result, known).apply(known).step_s == pytest.approx(result.step_s)
