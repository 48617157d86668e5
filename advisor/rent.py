"""Which machine to rent: every machine of a price table with its best plan, and the hours and the cost of the job.

An offer is conditional if its plan needs RAM that the table does not give (`Fit.assumed_host_bytes`). A conditional
offer is recommended only if no other meets the limits. The prediction does not tell costs apart that lie within the
cheapest offer's interval; of these, the offer with the smallest product of cost and time is recommended: more is paid
only for a larger relative saving of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from ..estimators.errors import ClusterError, DsAdviseError, WorkloadError
from ..estimators.hardware import Cluster
from ..estimators.json_form import SCHEMA_VERSION, from_attributes
from ..estimators.time.job import HOUR_S, JobDuration, Price
from .advise import build_question
from .answer.advice import JobFigures, PlanFigures, job_figures, plan_figures
from .answer.what_if import other_methods
from .question.cluster import gpus_argument, machine_arguments
from .question.file_question import question_words
from .question.job import parse_duration
from .question.options import OPTIONS
from .question.prices import Machine, PriceTable, parse_money, read_prices, shipped_prices
from .question.question import Question
from .search.candidate import Candidate, candidate_duration
from .search.choice import SAME_SPEED
from .search.rollouts import choose_rollout
from .search.search import best_over_losses, fastest

TOKENS = "100M"
"""Default amount of training: a small fine-tuning, long enough that the loading time is negligible."""

_YEAR_S = 365 * 24 * HOUR_S

MOST_NODES = 4
"""Default maximum of machines joined by their network."""


@dataclass(frozen=True, kw_only=True)
class OfferFigures:
    """Figures of a number of equal machines and of the job on them."""

    provider: str
    machine: str
    gpus: str
    """The machines in the syntax of --gpus."""
    nodes: int
    gpus_per_node: int
    price_per_hour: float
    """Price of all machines together."""
    price_date: str
    price_source: str
    cost: float
    cost_low: float | None
    """Lower end of the interval to cost_high, which contains the true cost in four of five cases, as far as the step's
    time decides it."""
    cost_high: float | None
    cost_per_million_tokens: float
    duration_s: float
    """Seconds from the start to the end of the job."""
    duration_s_low: float | None
    duration_s_high: float | None
    on_pareto_front: bool = False
    """Whether no other offer is both cheaper and faster; a conditional offer rules out only conditional ones."""
    meets_limits: bool = False
    """Whether the job ends before the deadline and within the budget."""
    host_memory_bytes: int | None
    """RAM of a machine that programs can use; null if the table does not give it."""
    is_conditional: bool
    """Whether the plan fits only if a machine has more RAM than its GPUs have memory, which the table does not tell."""
    plan: PlanFigures
    """The fastest plan that fits."""
    job: JobFigures


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Machines that are no offers, with the reason."""

    provider: str
    machine: str
    gpus: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RentFigures:
    """Figures of the advice on which machine to rent."""

    schema_version: int
    currency: str
    prices: str
    """The name of the table's file."""
    oldest_price: str
    """The day of the oldest price; "" if the table has no dates."""
    newest_price: str
    deadline_s: float | None
    budget: float | None
    recommended: OfferFigures | None
    """The best value within deadline and budget; with a budget alone the fastest."""
    offers: tuple[OfferFigures, ...]
    """Offers by ascending cost: the Pareto front, or all with --all."""
    left_out: tuple[LeftOut, ...]
    basis: tuple[str, ...]
    """The amount of training, as sentences."""


class Offer(NamedTuple):
    """A number of equal machines with the question about them, its answer, and the job's duration and cost."""

    machine: Machine
    question: Question
    candidate: Candidate
    figures: OfferFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class RentAdvice:
    """The offers, and the choice among them."""

    table: PriceTable
    offers: tuple[Offer, ...]
    """Offers by ascending cost."""
    left_out: tuple[LeftOut, ...]
    deadline_s: float | None
    budget: float | None
    """The budget in the table's currency."""
    basis: tuple[str, ...]
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the question by name, with `model`."""
    most_nodes: int = MOST_NODES
    amount_is_assumed: bool = False
    """Whether the amount of training is `TOKENS`, because the question has none."""
    remedy: tuple[str, Offer] | None = None
    """Where nothing is recommended: the flags of another method under which a machine is, and that machine."""
    refused_methods: tuple[str, ...] = ()
    """Where nothing is recommended and there is no remedy: the flags of the methods under which nothing is, either."""

    @property
    def front(self) -> tuple[Offer, ...]:
        """The Pareto front, by ascending cost and descending time."""
        return tuple(offer for offer in self.offers if offer.figures.on_pareto_front)

    @property
    def cheapest(self) -> Offer | None:
        return next(iter(self.offers), None)

    @property
    def fastest(self) -> Offer | None:
        return min(self.offers, key=lambda offer: offer.figures.duration_s, default=None)

    @property
    def cheapest_within(self) -> Offer | None:
        """The cheapest offer within the limits, conditional or not."""
        return next((offer for offer in self.offers if offer.figures.meets_limits), None)

    @property
    def cheapest_choice(self) -> Offer | None:
        """The cheapest offer within the limits, conditional only if all are. One that costs at most the upper end of
        its cost may cost as little."""
        return next(iter(_choices(offer for offer in self.offers if offer.figures.meets_limits)), None)

    @property
    def cheapest_of_all(self) -> Offer | None:
        """The cheapest offer, whatever the limits, conditional only if all are."""
        return next(iter(_choices(self.offers)), None)

    @property
    def cheapest_in_time(self) -> Offer | None:
        """The cheapest offer that ends before the deadline, whatever it costs, conditional only if all are."""
        latest = inf if self.deadline_s is None else self.deadline_s
        return next(iter(_choices(offer for offer in self.offers if offer.figures.duration_s <= latest)), None)

    @property
    def recommends_fastest(self) -> bool:
        """Whether the fastest offer within the limits is recommended: with a budget alone."""
        return self.budget is not None and self.deadline_s is None

    @property
    def sure(self) -> Offer | None:
        """The cheapest offer whose intervals are within the limits too, and that has no condition; with a budget alone
        the fastest."""
        found = [offer for offer in self.offers if not offer.figures.is_conditional and self.is_sure(offer)]
        if self.recommends_fastest:
            return min(found, key=lambda offer: offer.figures.duration_s, default=None)
        return next(iter(found), None)

    def is_sure(self, offer: Offer) -> bool:
        """Whether the upper ends of time and cost, where they are known, are within the limits."""
        most_s, most = inf if self.deadline_s is None else self.deadline_s, inf if self.budget is None else self.budget
        duration_s, cost = offer.figures.duration_s_high, offer.figures.cost_high
        return (duration_s or offer.figures.duration_s) <= most_s and (cost or offer.figures.cost) <= most

    @property
    def fastest_affordable(self) -> Offer | None:
        """The fastest offer within the budget, however long it takes, conditional only if all are."""
        most = inf if self.budget is None else self.budget
        affordable = _choices(offer for offer in self.offers if offer.figures.cost <= most)
        return min(affordable, key=lambda offer: offer.figures.duration_s, default=None)

    @property
    def could_join_more(self) -> bool:
        """Whether the table has machines that can be joined in larger numbers than were tried."""
        return any(machine.most_nodes > self.most_nodes for machine in self.table.machines)

    @property
    def recommended(self) -> Offer | None:
        """The best offer within the limits, or with a budget alone the fastest, conditional only if all are. None if no
        offer is within the limits."""
        choices = _choices(offer for offer in self.offers if offer.figures.meets_limits)
        if self.recommends_fastest:
            return min(choices, key=lambda offer: offer.figures.duration_s, default=None)
        return _best_value(choices)

    @property
    def best_value(self) -> Offer | None:
        """The best offer without limits, conditional only if all are."""
        return _best_value(_choices(self.offers))

    def advise_command(self, offer: Offer) -> str:
        """The command that asks for the plan of an offer, and its cost."""
        price = offer.machine.price
        options: dict[str, Any] = {**machine_arguments(offer.question.cluster), **self.asked}
        if price is not None:
            options["price"] = f"{price.per_hour:g}/{price.unit}/h"
        model = options.pop("model", offer.question.model.name)
        return f"ds-advise {question_words(model, options)}"

    def figures(self, *, all_offers: bool) -> RentFigures:
        """The advice as JSON. all_offers: whether to include every offer or only the Pareto front."""
        oldest, newest = self.table.dates or ("", "")
        chosen = self.recommended
        return from_attributes(
            RentFigures,
            self,
            self.table,
            schema_version=SCHEMA_VERSION,
            prices=self.table.name,
            oldest_price=oldest,
            newest_price=newest,
            recommended=None if chosen is None else chosen.figures,
            offers=tuple(offer.figures for offer in (self.offers if all_offers else self.front)),
        )


def _choices(offers: Iterable[Offer]) -> list[Offer]:
    """The offers that are not conditional, or all if all are."""
    found = list(offers)
    return [offer for offer in found if not offer.figures.is_conditional] or found


def _best_value(choices: Sequence[Offer]) -> Offer | None:
    """The offer of the least cost times time, of those that cost at most the upper end of the cheapest's interval.
    choices: by ascending cost."""
    if not choices:
        return None
    cheapest = choices[0].figures
    equal = [offer for offer in choices if offer.figures.cost <= (cheapest.cost_high or cheapest.cost)]
    return min(equal, key=lambda offer: offer.figures.cost * offer.figures.duration_s)


def rent(
    model: str,
    *,
    prices: str | Path | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    most_nodes: int = MOST_NODES,
    **question: Any,
) -> RentAdvice:
    """Every machine of a price table with its best plan for a job, and the one to rent.

    prices: a CSV file (`docs/rent.md`), by default the table of this package. deadline: `24h`, `90m`, `3d`. budget: an
    amount in the table's currency, `500` or `$500`. most_nodes: limit on the machines joined by their network.
    question: the arguments of `advise` except the machines and the price.

    Raises DsAdviseError for what is unknown, impossible or contradictory. Without an offer within the limits
    `recommended` is None.
    """
    deadline_s = None if deadline is None else parse_duration("--deadline", deadline)
    table = shipped_prices() if prices is None else read_prices(Path(prices).expanduser())
    most = None if budget is None else parse_money("--budget", budget, table.currency)
    basis: tuple[str, ...] = ()
    is_assumed = all(question.get(name) is None for name in ("data", "samples", "tokens"))
    if is_assumed:
        question["tokens"] = TOKENS
        basis = (f"{TOKENS} tokens are assumed for the job (--data, --samples or --tokens set it).",)
    about = _about_any(model, table, question)
    if question.get("samples") is not None and about.model.unit == "tokens" and about.workload.rollouts is None:
        length = f"{about.workload.seq_len:,} tokens each"
        basis = (f"Samples are assumed to have {length}, which time and cost depend on (--seq-len, --data FILE).",)
    found = _without_extremes(_market(about, table.machines, most_nodes), table)
    advice = RentAdvice(
        table=table,
        offers=ranked((one for one in found if isinstance(one, Offer)), deadline_s, most),
        left_out=tuple(one for one in found if isinstance(one, LeftOut)),
        deadline_s=deadline_s,
        budget=most,
        basis=(*about.job_basis, *basis),
        asked={"model": model} | {name: value for name, value in question.items() if name in OPTIONS},
        most_nodes=most_nodes,
        amount_is_assumed=is_assumed,
    )
    return advice if advice.recommended is not None else _with_other_methods(about, advice)


def _with_other_methods(about: Question, advice: RentAdvice) -> RentAdvice:
    """The advice with the first other method under which a machine is recommended, or the methods without one."""
    refused: list[str] = []
    for flags, altered in other_methods(about):
        refused.append(flags)
        market = _without_extremes(_market(altered, advice.table.machines, advice.most_nodes), advice.table)
        offers = (one for one in market if isinstance(one, Offer))
        other = replace(advice, offers=ranked(offers, advice.deadline_s, advice.budget))
        if other.recommended is not None:
            return replace(advice, remedy=(flags, other.recommended))
    return replace(advice, refused_methods=tuple(refused))


def _without_extremes(found: Iterable[Offer | LeftOut], table: PriceTable) -> list[Offer | LeftOut]:
    """The market without offers on which the job takes more than a year, and without those of unknown RAM that need
    more of it per GPU than any machine of the table is known to have; unless there is no other."""
    found = list(found)
    clusters = [each.cluster for each in table.machines]
    known = ((each.host_memory_bytes_per_node, each.gpus_per_node) for each in clusters)
    most = max((ram / count for ram, count in known if ram is not None), default=inf)

    def needs_most(offer: Offer) -> bool:
        figures = offer.figures
        return figures.is_conditional and figures.plan.host_bytes_per_node > most * figures.gpus_per_node

    for is_out, reason in (
        (lambda offer: offer.figures.duration_s > _YEAR_S, "it would take more than a year"),
        (needs_most, "the table does not give the RAM, and the plan needs more per GPU than any other machine has"),
    ):
        offers = [one for one in found if isinstance(one, Offer)]
        if not all(map(is_out, offers)):
            found = [
                from_attributes(LeftOut, one.figures, reason=reason) if isinstance(one, Offer) and is_out(one) else one
                for one in found
            ]
    return found


def ranked(offers: Iterable[Offer], deadline_s: float | None, budget: float | None) -> tuple[Offer, ...]:
    """The offers by ascending cost, then by time, with `on_pareto_front` and `meets_limits` set. A dearer offer is on
    the front if it is faster by more than `SAME_SPEED`."""
    ordered: list[Offer] = []
    fastest_s = fastest_known_s = inf
    for offer in sorted(offers, key=lambda offer: (offer.figures.cost, offer.figures.duration_s)):
        figures = offer.figures
        in_time = deadline_s is None or figures.duration_s <= deadline_s
        affordable = budget is None or figures.cost <= budget
        beaten_s = fastest_s if figures.is_conditional else fastest_known_s
        on_front = figures.duration_s < beaten_s * (1 - SAME_SPEED)
        fastest_s = min(fastest_s, figures.duration_s)
        if not figures.is_conditional:
            fastest_known_s = min(fastest_known_s, figures.duration_s)
        figures = replace(figures, on_pareto_front=on_front, meets_limits=in_time and affordable)
        ordered.append(offer._replace(figures=figures))
    return tuple(ordered)


def _about_any(model: str, table: PriceTable, question: dict[str, Any]) -> Question:
    """The question about one GPU of the table, or about the first machine for which it is possible. Raises
    DsAdviseError if it is possible for none."""
    clusters = list(dict.fromkeys(machine.cluster for machine in table.machines))
    # bf16 first: a GPU without it would refuse a question that most machines can answer.
    alone = sorted((replace(cluster, gpus_per_node=1) for cluster in clusters), key=lambda one: not one.gpu.has_bf16)
    problem: DsAdviseError | None = None
    for cluster in (alone[0], *clusters):
        try:
            return build_question(model, gpus=cluster, **question)
        except (ClusterError, WorkloadError) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _market(question: Question, machines: Iterable[Machine], most_nodes: int) -> Iterator[Offer | LeftOut]:
    """Offers for every machine in numbers of 1, 2, 4 ... up to `most_nodes` and the machine's own limit. Each distinct
    cluster is searched once. question: a question about any machine."""
    found: dict[Cluster, tuple[Question, Candidate, JobDuration] | str] = {}
    for machine in machines:
        nodes = 1
        while nodes <= min(most_nodes, machine.most_nodes):
            # One machine alone has no network, so that rows with different networks share a search.
            network = machine.cluster.interconnect_bytes_per_s if nodes > 1 else None
            cluster = replace(machine.cluster, nodes=nodes, interconnect_bytes_per_s=network)
            if cluster not in found:
                found[cluster] = _search(question, cluster)
            job = found[cluster]
            if isinstance(job, str):
                yield from_attributes(LeftOut, machine, gpus=gpus_argument(cluster), reason=job)
            elif machine.price is not None:
                yield _offer(machine, machine.price, *job)
            nodes *= 2


def _search(about: Question, cluster: Cluster) -> tuple[Question, Candidate, JobDuration] | str:
    """The question about a cluster, its best plan and the job under it, or the reason that there is none."""
    try:
        question, _ = choose_rollout(about.about_cluster(cluster))
        candidate = fastest(question)
    except (ClusterError, WorkloadError) as error:
        return error.what
    if candidate is None:
        return "nothing fits"
    question, candidate = best_over_losses(question, candidate)
    duration = candidate_duration(question, candidate)
    assert duration is not None, "the question has a job"
    return question, candidate, duration


def _offer(machine: Machine, price: Price, question: Question, candidate: Candidate, duration: JobDuration) -> Offer:
    cluster, cost = duration.cluster, price.cost(duration.cluster, duration.duration_s)
    low_s, high_s = duration.duration_s_range or (None, None)
    figures = from_attributes(
        OfferFigures,
        machine,
        cluster,
        gpus=gpus_argument(cluster),
        price_per_hour=price.per_hour * cluster.nodes,
        cost=cost,
        cost_low=None if low_s is None else price.cost(cluster, low_s),
        cost_high=None if high_s is None else price.cost(cluster, high_s),
        cost_per_million_tokens=cost / (duration.tokens / 1e6),
        duration_s=duration.duration_s,
        duration_s_low=low_s,
        duration_s_high=high_s,
        host_memory_bytes=cluster.host_memory_bytes_per_node,
        is_conditional=candidate.fit.assumed_host_bytes > 0,
        plan=plan_figures(candidate),
        job=job_figures(duration, None),
    )
    return Offer(machine, question, candidate, figures)
