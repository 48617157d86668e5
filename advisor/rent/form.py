"""The advice as JSON types."""

from __future__ import annotations

from typing import TypedDict

from ...estimators.json_form import SCHEMA_VERSION
from ...estimators.plan import PlainPyTorch, Rung
from ..answer.advice import JobFigures, job_figures
from .rent import Offer, RentAdvice


class RentPlanJson(TypedDict):
    """The fastest plan that fits on the machines."""

    rung: Rung | PlainPyTorch
    micro_batch_size: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    cpu_checkpointing: bool
    sequence_parallel_size: int
    autotp_size: int
    tokens_per_second: float
    device_bytes_per_gpu: int
    host_bytes_per_node: int
    fit_probability: float


class InterruptionsJson(TypedDict):
    """What a provider that takes machines back makes of the job, on average."""

    count: float
    checkpoint_interval_s: float
    waiting_s: float
    """Between an interruption and the next start, while nothing is paid."""
    cost: float
    """Of what is done again, of restarts and checkpoints."""


class OfferJson(TypedDict):
    """A number of machines, and the job on them."""

    provider: str
    machine: str
    gpus: str
    """As --gpus takes it."""
    nodes: int
    gpus_per_node: int
    spot: bool
    price_per_hour: float
    """All machines together."""
    price_date: str
    price_source: str
    cost: float
    cost_low: float | None
    """The interval to cost_high holds four of five true costs, as far as the step's time decides."""
    cost_high: float | None
    cost_per_million_tokens: float
    duration_s: float
    """From the first start to the end, interruptions included."""
    duration_s_low: float | None
    duration_s_high: float | None
    on_pareto_front: bool
    """No other is both cheaper and faster."""
    meets_limits: bool
    """It is in time and within the budget."""
    plan: RentPlanJson
    job: JobFigures
    """The job without interruptions."""
    interruptions: InterruptionsJson | None
    """Null where the machines stay."""


class LeftOutJson(TypedDict):
    """Machines on which the job cannot run."""

    provider: str
    machine: str
    gpus: str
    reason: str


class RentJson(TypedDict):
    """Which machine to rent."""

    schema_version: int
    currency: str
    prices: str
    """The name of the table's file."""
    oldest_price: str
    """A date, "" where the table has none."""
    newest_price: str
    deadline_s: float | None
    budget: float | None
    recommended: OfferJson | None
    """The cheapest in time and within the budget; with a budget alone the fastest."""
    offers: list[OfferJson]
    """By rising cost."""
    left_out: list[LeftOutJson]
    basis: list[str]
    """Sentences on how much is trained."""


def rent_json(advice: RentAdvice) -> RentJson:
    front = {id(offer) for offer in advice.front}

    def form(offer: Offer) -> OfferJson:
        return _offer(offer, on_front=id(offer) in front, meets=advice.meets(offer))

    chosen, dates = advice.recommended, advice.table.dates or ("", "")
    return {
        "schema_version": SCHEMA_VERSION,
        "currency": advice.table.currency,
        "prices": advice.table.name,
        "oldest_price": dates[0],
        "newest_price": dates[1],
        "deadline_s": advice.deadline_s,
        "budget": advice.budget,
        "recommended": None if chosen is None else form(chosen),
        "offers": [form(offer) for offer in advice.offers],
        "left_out": [
            {
                "provider": one.machine.provider,
                "machine": one.machine.name,
                "gpus": one.gpus,
                "reason": one.reason,
            }
            for one in advice.left_out
        ],
        "basis": list(advice.basis),
    }


def _offer(offer: Offer, *, on_front: bool, meets: bool) -> OfferJson:
    cluster, candidate, interrupted = offer.cluster, offer.candidate, offer.interrupted
    low, high = offer.duration_s_range or (None, None)
    least, most = offer.cost_range or (None, None)
    return {
        "provider": offer.machine.provider,
        "machine": offer.machine.name,
        "gpus": offer.gpus,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "spot": offer.is_spot,
        "price_per_hour": offer.price.per_hour * cluster.nodes,
        "price_date": offer.machine.date,
        "price_source": offer.machine.source,
        "cost": offer.cost,
        "cost_low": least,
        "cost_high": most,
        "cost_per_million_tokens": offer.cost_per_million_tokens,
        "duration_s": offer.duration_s,
        "duration_s_low": low,
        "duration_s_high": high,
        "on_pareto_front": on_front,
        "meets_limits": meets,
        "plan": {
            "rung": candidate.rung,
            "micro_batch_size": candidate.plan.micro_batch_size,
            "gradient_accumulation_steps": candidate.plan.gradient_accumulation_steps,
            "gradient_checkpointing": candidate.plan.gradient_checkpointing,
            "cpu_checkpointing": candidate.plan.cpu_checkpointing,
            "sequence_parallel_size": candidate.plan.sequence_parallel_size,
            "autotp_size": candidate.plan.autotp_size,
            "tokens_per_second": candidate.tokens_per_s,
            "device_bytes_per_gpu": candidate.device_bytes,
            "host_bytes_per_node": candidate.memory.host_bytes_per_node,
            "fit_probability": candidate.fit.probability,
        },
        "job": job_figures(offer.duration, None),
        "interruptions": None
        if interrupted is None
        else {
            "count": interrupted.count,
            "checkpoint_interval_s": interrupted.interval_s,
            "waiting_s": interrupted.waiting_s,
            "cost": offer.cost_of_interruptions,
        },
    }
