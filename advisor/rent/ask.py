"""From what a user says to the advice."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.errors import ClusterError, DsAdviseError, WorkloadError
from ..ask import ask
from ..question.job_options import parse_duration
from ..question.question import Question
from .advice import RentAdvice, sorted_offers
from .offers import Market
from .table import PriceTable, read_prices, shipped_prices

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
