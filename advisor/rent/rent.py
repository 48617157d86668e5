"""Every machine of a table, in every number, with its best plan and what the job then takes and costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...estimators.errors import ClusterError, DsAdviseError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.time.interruptions import Interrupted, interrupted_run
from ...estimators.time.job import HOUR_S, JobDuration, Price
from ..answer.what_if import gpus_argument
from ..ask import ask
from ..question.job import batch_of, parse_duration
from ..question.question import Question
from ..question.workload import resolve_precision
from ..search.candidate import Candidate, duration_of
from ..search.search import SampleBytes, fastest
from .prices import Machine, PriceTable, read_prices, shipped_prices

BOOT_S = 300.0
"""From the order of another machine to the start of the training on it: boot, image, drivers; an assumption."""

WAIT_S = 2.3 * HOUR_S
"""From an interruption until such a machine is to be had again: the traces behind `HOURS_BETWEEN_INTERRUPTIONS` lack
1,853 machine-hours for 802 preemptions. Nothing is paid meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A number of machines on which the job can run, and what it takes there."""

    machine: Machine
    question: Question
    """The question about these machines."""
    candidate: Candidate
    """The fastest plan that fits on them."""
    duration: JobDuration
    """The job without interruptions."""
    price: Price
    interrupted: Interrupted | None
    """What interruptions make of the job; None where the machines stay."""

    @property
    def cluster(self) -> Cluster:
        return self.question.cluster

    @property
    def is_spot(self) -> bool:
        return self.interrupted is not None

    @property
    def paid_s(self) -> float:
        """Seconds for which the machines are paid."""
        if self.interrupted is None:
            return self.duration.duration_s
        return self.duration.loading_s + self.interrupted.paid_s

    @property
    def duration_s(self) -> float:
        """Seconds from the first start to the end."""
        return self.paid_s + (self.interrupted.waiting_s if self.interrupted is not None else 0.0)

    @property
    def duration_s_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `duration_s`, as far as the step's time decides."""
        ends = self.duration.duration_s_range
        stretched = self.duration_s / self.duration.duration_s
        return ends and (ends[0] * stretched, ends[1] * stretched)

    @property
    def cost(self) -> float:
        return self.price.cost(self.cluster, self.paid_s)

    @property
    def cost_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `cost`, likewise."""
        ends = self.duration.duration_s_range
        stretched = self.cost / self.duration.duration_s
        return ends and (ends[0] * stretched, ends[1] * stretched)

    @property
    def gpus(self) -> str:
        """As --gpus takes it."""
        return gpus_argument(self.cluster)

    @property
    def cost_of_interruptions(self) -> float:
        """What of the cost is for work done again, restarts, and the checkpoints that are written for them."""
        return self.price.cost(self.cluster, self.paid_s - self.duration.duration_s)

    @property
    def cost_per_million_tokens(self) -> float:
        return self.cost / (self.duration.tokens / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Machines on which the job cannot run."""

    machine: Machine
    nodes: int
    reason: str

    @property
    def gpus(self) -> str:
        """As --gpus takes it."""
        return gpus_argument(replace(self.machine.cluster, nodes=self.nodes))


class Market:
    """What a job takes on one kind of machine or another; machines that are alike are searched once."""

    def __init__(self, question: Question, *, precision: str, global_batch: int | None) -> None:
        """question: about any machine. precision and global_batch: as they were asked, since what is left open depends
        on the machine."""
        assert question.job is not None, "a cost is that of a job"
        self._question, self._precision, self._global_batch = question, precision, global_batch
        self._sample_bytes: SampleBytes = {}
        self._known: dict[Cluster, tuple[Question, Candidate, JobDuration] | str] = {}

    def offers(self, machines: tuple[Machine, ...], *, most_nodes: int) -> Iterator[Offer | LeftOut]:
        """Every machine in numbers of 1, 2, 4 ... up to `most_nodes` and what it can be joined to, on demand and spot,
        as far as it has a price."""
        for machine in machines:
            nodes = 1
            while nodes <= min(most_nodes, machine.most_nodes):
                yield from self._of(machine, nodes)
                nodes *= 2

    def _of(self, machine: Machine, nodes: int) -> Iterator[Offer | LeftOut]:
        found = self._on(_joined(machine.cluster, nodes))
        if isinstance(found, str):
            yield LeftOut(machine=machine, nodes=nodes, reason=found)
            return
        question, candidate, duration = found
        for price, is_spot in ((machine.price, False), (machine.spot, True)):
            if price is None:
                continue
            interrupted = _interrupted(duration, machine, nodes) if is_spot else None
            if is_spot and interrupted is None:
                yield LeftOut(machine=machine, nodes=nodes, reason="is interrupted more often than it can save")
                continue
            yield Offer(
                machine=machine,
                question=question,
                candidate=candidate,
                duration=duration,
                price=price,
                interrupted=interrupted,
            )

    def _on(self, cluster: Cluster) -> tuple[Question, Candidate, JobDuration] | str:
        """The best plan on a cluster and the job under it, or why there is none."""
        if cluster not in self._known:
            self._known[cluster] = self._searched(cluster)
        return self._known[cluster]

    def _searched(self, cluster: Cluster) -> tuple[Question, Candidate, JobDuration] | str:
        try:
            question = self._about(cluster)
            candidate = fastest(question, self._sample_bytes)
        except (ClusterError, WorkloadError) as error:
            return error.what
        if candidate is None:
            return "nothing fits"
        duration = duration_of(question, candidate)
        assert duration is not None, "the question has a job"
        return question, candidate, duration

    def _about(self, cluster: Cluster) -> Question:
        """The question about other machines."""
        asked = self._question
        assert asked.job is not None
        batch = self._global_batch or batch_of(asked.job, ranks=cluster.world_size, micro_batch=asked.micro_batch_size)
        precision = resolve_precision(self._precision, cluster.gpu)
        workload = replace(asked.workload, precision=precision, global_batch_size=batch)
        return replace(asked, cluster=cluster, workload=workload)


def _joined(machine: Cluster, nodes: int) -> Cluster:
    network = machine.interconnect_bytes_per_s if nodes > 1 else None
    return replace(machine, nodes=nodes, interconnect_bytes_per_s=network)


def _interrupted(duration: JobDuration, machine: Machine, nodes: int) -> Interrupted | None:
    """The job on machines that may be taken back. A restart boots, loads the model, and reads the checkpoint, which is
    taken to last as long as writing it."""
    write_s = duration.saving.write_s
    return interrupted_run(
        duration.training_s + duration.evaluation_s,
        write_s=write_s,
        restart_s=BOOT_S + duration.loading_s + write_s,
        between_s=machine.hours_between_interruptions * HOUR_S / nodes,
        wait_s=WAIT_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RentAdvice:
    """The answer to "which machine should I rent"."""

    table: PriceTable
    offers: tuple[Offer, ...]
    """By rising cost."""
    left_out: tuple[LeftOut, ...]
    deadline_s: float | None
    budget: float | None
    """In the table's currency."""
    basis: tuple[str, ...]
    """Sentences on the job: what was counted, what was taken for granted."""

    @property
    def front(self) -> tuple[Offer, ...]:
        """The offers than which none is both cheaper and faster, by rising cost and falling time."""
        front: list[Offer] = []
        for offer in self.offers:
            if not front or offer.duration_s < front[-1].duration_s:
                front.append(offer)
        return tuple(front)

    @property
    def cheapest(self) -> Offer | None:
        return min(self.offers, key=lambda offer: offer.cost, default=None)

    @property
    def fastest(self) -> Offer | None:
        return min(self.offers, key=lambda offer: offer.duration_s, default=None)

    @property
    def recommended(self) -> Offer | None:
        """The cheapest that meets the deadline, or without one the fastest that the budget pays; without either the
        cheapest. None where none is both in time and within the budget."""
        possible = [offer for offer in self.offers if self.meets(offer)]
        if self.deadline_s is None and self.budget is not None:
            return min(possible, key=lambda offer: offer.duration_s, default=None)
        return min(possible, key=lambda offer: offer.cost, default=None)

    @property
    def sure(self) -> Offer | None:
        """The cheapest whose interval of time ends before the deadline, within the budget; None without a deadline."""
        if self.deadline_s is None:
            return None
        deadline_s = self.deadline_s
        possible = [
            offer
            for offer in self.offers
            if self.meets(offer) and offer.duration_s_range is not None and offer.duration_s_range[1] <= deadline_s
        ]
        return min(possible, key=lambda offer: offer.cost, default=None)

    def meets(self, offer: Offer) -> bool:
        """Whether an offer is in time and within the budget."""
        return (self.deadline_s is None or offer.duration_s <= self.deadline_s) and (
            self.budget is None or offer.cost <= self.budget
        )


def sorted_offers(found: Iterable[Offer | LeftOut]) -> tuple[tuple[Offer, ...], tuple[LeftOut, ...]]:
    """The offers by rising cost, of equals the faster first, and what was left out."""
    listed = list(found)
    offers = [one for one in listed if isinstance(one, Offer)]
    return (
        tuple(sorted(offers, key=lambda offer: (offer.cost, offer.duration_s))),
        tuple(one for one in listed if isinstance(one, LeftOut)),
    )


TOKENS = "100M"
"""What is trained where nobody said how much: a small fine-tuning, long enough that loading hardly counts."""

MOST_NODES = 4
"""Machines that are joined at most where nobody said."""

_MOST_BUDGET = 1e9
_AMOUNT = re.compile(r"([$€£₹]|[a-z]{3})?\s*(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]{3})?", re.ASCII)


def rent(
    model: str,
    *,
    prices: str | Path | None = None,
    deadline: str | None = None,
    budget: str | float | None = None,
    most_nodes: int = MOST_NODES,
    **question: Any,
) -> RentAdvice:
    """Every machine of a table of prices with its best plan for a job: hours, cost, and which of them to take.

    prices: a CSV file (`docs/rent.md`), by default the table that comes along. deadline: `24h`, `90m`, `3d`. budget: an
    amount in the table's currency. most_nodes: machines that are joined at most. question: the arguments of `advise`
    but the machines and the price.

    Raises DsAdviseError for what is unknown, impossible or contradictory; that nothing is in time or within the budget
    is an answer (`recommended` is None).
    """
    deadline_s = None if deadline is None else parse_duration("--deadline", deadline)
    table = shipped_prices() if prices is None else read_prices(Path(prices).expanduser())
    limit = None if budget is None else budget_amount(budget, table.currency)
    basis: tuple[str, ...] = ()
    if all(question.get(name) is None for name in ("data", "samples", "tokens")):
        question["tokens"] = TOKENS
        basis = (f"{TOKENS} tokens are taken for the job (--data, --samples or --tokens say how much is trained).",)
    about = _about_any(model, table, question)
    market = Market(about, precision=question.get("precision", "auto"), global_batch=question.get("global_batch"))
    offers, left_out = sorted_offers(market.offers(table.machines, most_nodes=most_nodes))
    return RentAdvice(
        table=table,
        offers=offers,
        left_out=left_out,
        deadline_s=deadline_s,
        budget=limit,
        basis=(*about.job_basis, *basis),
    )


def _about_any(model: str, table: PriceTable, question: dict[str, Any]) -> Question:
    """The question about one GPU of the table, or about the first machine on which it can be asked at all.

    Raises DsAdviseError where it cannot be asked about any.
    """
    clusters = list(dict.fromkeys(machine.cluster for machine in table.machines))
    alone = sorted((replace(cluster, gpus_per_node=1) for cluster in clusters), key=lambda one: not one.gpu.has_bf16)
    problem: DsAdviseError | None = None
    for cluster in (alone[0], *clusters):
        try:
            return ask(model, gpus=cluster, **question)
        except (ClusterError, WorkloadError) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def budget_amount(text: str | float, currency: str) -> float:
    """The amount of `50`, `$50` or `50 EUR`. Raises WorkloadError for anything else, and for another currency."""
    match = _AMOUNT.fullmatch(str(text).strip().lower())
    amount = float(match[2]) if match else 0.0
    if match is None or not 0 < amount <= _MOST_BUDGET:
        raise WorkloadError(f"--budget {str(text)[:40]!r} is no amount", fix="write it as 50, or 50 USD")
    said = match[1] or match[3]
    code = {"$": "usd", "€": "eur", "£": "gbp", "₹": "inr"}.get(said or "", said)
    if code is not None and code != currency.lower():
        raise WorkloadError(
            f"--budget is in {code.upper()}, and the prices are in {currency}", fix=f"give it in {currency}"
        )
    return amount
