"""The price table: `prices.csv`, or the user's own file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from math import inf
from pathlib import Path

from ...ds_configs.job import Offer
from ...estimators.errors import ClusterError, ConfigFileError, WorkloadError
from ...estimators.hardware import Cluster
from ...estimators.time.job import HOUR_S, Price
from ..data.rows import DataError, read_csv
from .cluster import parse_cluster
from .gpu_text import MOST_NODES
from .job import CURRENCY

_SHIPPED = Path(__file__).with_name("prices.csv")

COLUMNS = (
    "provider",
    "machine",
    "gpus",
    "price_per_gpu",
    "price_per_machine",
    "nodes",
    "ram",
    "interconnect",
    "currency",
    "date",
    "source",
)
"""The columns of a table. Prices are per hour, and a row has one price of each pair; empty cells are unknown."""

_OTHER_COLUMNS = {
    **dict.fromkeys(("name", "instance", "type", "sku"), "machine"),
    **dict.fromkeys(("cloud", "vendor", "company"), "provider"),
    **dict.fromkeys(("price", "cost", "rate", "hourly", "usd"), "price_per_gpu or price_per_machine"),
    **dict.fromkeys(("network", "bandwidth"), "interconnect"),
    **dict.fromkeys(("gpu", "accelerator", "card", "cards"), "gpus"),
    **dict.fromkeys(("memory", "mem"), "ram"),
    "link": "source",
    "url": "source",
}
"""Columns by words that other tables use for them. The first word of a name that is here decides."""

SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "INR": "₹"}
"""Currencies whose sign precedes the amount."""

MOST_PER_HOUR = 10_000.0
"""The highest plausible price of a GPU per hour, in any currency."""

_COUNTS = re.compile(r"\s*((?:\d{1,2}\s*/\s*)*\d{1,2})\s*x\s*(.+)", re.IGNORECASE)

_MONEY = re.compile(
    rf"(?P<before>{CURRENCY})\s*(?P<figure>(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,12}})(?:\.\d{{1,6}})?(?:e\d{{1,2}})?)"
    rf"(?P<kilo>[km]?)\s*(?P<after>{CURRENCY})",
    re.IGNORECASE | re.ASCII,
)
_KILO = {"": 1, "k": 10**3, "m": 10**6}

_EXAMPLE = "write it like: gpus,price_per_gpu then 8xH100-SXM5,2.49"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that can be rented: one size of a row of a table."""

    provider: str
    machine: str
    """The provider's name of the machine; "" for none."""
    cluster: Cluster
    """A cluster of one such machine."""
    most_nodes: int
    """Maximum number of machines that their network joins."""
    price: Price | None
    """The on-demand price of a node; None if unknown."""
    price_date: str
    """The day of the price; "" if unknown."""
    price_source: str

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.provider, self.machine) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """The machines of one file, with prices in one currency."""

    name: str
    machines: tuple[Machine, ...]
    currency: str
    """The currency's three-letter code."""
    is_shipped: bool = False
    """Whether it is the table of this package."""

    @property
    def sign(self) -> str:
        """The sign before an amount, or the code after it."""
        return SIGNS.get(self.currency, self.currency)

    @property
    def dates(self) -> tuple[str, str] | None:
        """The days of the oldest and the newest price; None if no row has one."""
        dates = sorted(machine.price_date for machine in self.machines if machine.price_date)
        return (dates[0], dates[-1]) if dates else None


def parse_money(option: str, value: float | str, currency: str) -> float:
    """The amount in `500`, `$500`, `1,500 USD` or `1.5k`. currency: the code or sign of the prices that the amount is
    compared with; "" if it is unknown. Raises WorkloadError for any other text, for an amount that is not above 0, and
    for another currency."""
    match = _MONEY.fullmatch(str(value).strip())
    amount = float(match["figure"].replace(",", "")) * _KILO[match["kilo"].lower()] if match else 0.0
    if match is None or not 0 < amount < inf:
        why = "an amount above 0 is needed"
        raise WorkloadError(f"{option} {str(value)[:40]!r} is not an amount", why=why, fix=f"write {option} 500")
    for named in filter(None, (match["before"].upper(), match["after"].upper())):
        if currency and SIGNS.get(named, named) != SIGNS.get(currency.upper(), currency.upper()):
            raise WorkloadError(
                f"{option} {str(value).strip()} is not in the currency of the prices, {currency.upper()}",
                fix=f"write the amount in {currency.upper()}, or give prices in {named}",
            )
    return amount


def shipped_prices() -> PriceTable:
    """The table of this package."""
    return replace(read_prices(_SHIPPED), is_shipped=True)


@cache
def offers() -> tuple[Offer, ...]:
    """The machines of this package's table that have a price, for a job file."""
    return tuple(
        Offer(each.provider, each.cluster, each.most_nodes, each.price.cost(each.cluster, HOUR_S), each.price_date)
        for each in shipped_prices().machines
        if each.price is not None
    )


def read_prices(path: Path) -> PriceTable:
    """The machines of a table. Raises ConfigFileError for a file that is not such a table, an invalid price, and
    several currencies; ClusterError for an unknown GPU, RAM or network. Both name the line."""
    machines: list[Machine] = []
    currency: str | None = None
    for where, row in _rows(path):
        own = row.get("currency", "").upper() or "USD"
        if not re.fullmatch("[A-Z]{3}", own):
            fix = "write its code, such as USD, EUR or CNY"
            raise ConfigFileError(f"{where}: {own[:20]!r} is not a currency", fix=fix)
        currency = currency or own
        if own != currency:
            what = f"{where}: prices in {currency} and {own} cannot be compared"
            raise ConfigFileError(what, fix="give all of them in one currency")
        machines += _machines(row, where)
    if currency is None:
        raise ConfigFileError(f"{path.name} lists no machine", fix=_EXAMPLE)
    return PriceTable(name=path.name, machines=tuple(machines), currency=currency)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(place in words, cells by column) of each row that is not empty."""
    try:
        for row in read_csv(path):
            cells = {name.strip().lower(): cell.strip() for name, cell in row.fields.items()}
            unknown = [name for name in cells if name not in COLUMNS]
            if unknown or "gpus" not in cells:
                what = f"has a column {unknown[0][:40]!r}" if unknown else "has no column gpus"
                meant = _meant_column(unknown[0]) if unknown else ""
                fix = f"rename it to {meant}" if meant else _EXAMPLE
                raise ConfigFileError(f"{path.name} {what}", why=f"the columns are {', '.join(COLUMNS)}", fix=fix)
            if any(cells.values()):
                yield row.place, cells
    except DataError as error:
        raise ConfigFileError(error.what, fix=_EXAMPLE) from None


def _meant_column(name: str) -> str:
    """The columns that another name may mean; "" if none is near."""
    words = re.split(r"[\W_]+", name)
    meant = next((_OTHER_COLUMNS[word] for word in words if word in _OTHER_COLUMNS), "")
    return meant or next(iter(get_close_matches(name, COLUMNS, n=1, cutoff=0.7)), "")


def _machines(row: Mapping[str, str], where: str) -> Iterator[Machine]:
    match = _COUNTS.fullmatch(row["gpus"])
    counts, kind = (match[1], match[2]) if match else ("1", row["gpus"])
    sizes = [int(count) for count in counts.split("/")]
    if len(sizes) > 1 and row.get("price_per_machine"):
        raise ConfigFileError(
            f"{where}: machines of {counts} GPUs have the same price", fix="use price_per_gpu, or a row for each size"
        )
    nodes = _number(row, "nodes", where, most=MOST_NODES) if row.get("nodes") else 1
    for size in sizes:
        yield Machine(
            provider=row.get("provider", ""),
            machine=row.get("machine", ""),
            cluster=_cluster(size if match else None, kind, row, where, ram_factor=size if len(sizes) > 1 else 1),
            most_nodes=int(nodes),
            price=_price(row, size, where),
            price_date=row.get("date", ""),
            price_source=row.get("source", ""),
        )


def _cluster(gpus: int | None, kind: str, row: Mapping[str, str], where: str, *, ram_factor: int) -> Cluster:
    """The cluster of one machine, with the network between two machines. gpus: None if the row gives the kind alone.
    ram_factor: factor on the row's RAM, which is per GPU in a row of several sizes."""
    try:
        alone = parse_cluster(kind if gpus is None else f"{gpus}x{kind}", ram=row.get("ram") or None)
        # Two nodes, because `parse_cluster` reads an interconnect only between nodes.
        network = parse_cluster(f"2x{gpus or 1}x{kind}", interconnect=row.get("interconnect") or None)
    except ClusterError as error:  # the columns have the names of the options
        what, why, fix = (re.sub(r"--(?=\w)", "", text) for text in (error.what, error.why, error.fix))
        raise ClusterError(f"{where}: {what}", why=why, fix=fix) from None
    ram = alone.host_memory_bytes_per_node
    return replace(
        alone,
        host_memory_bytes_per_node=None if ram is None else ram * ram_factor,
        interconnect_bytes_per_s=network.interconnect_bytes_per_s,
        assumptions=(),
    )


def _price(row: Mapping[str, str], gpus: int, where: str) -> Price | None:
    if row.get("price_per_gpu") and row.get("price_per_machine"):
        raise ConfigFileError(f"{where} has both price_per_gpu and price_per_machine", fix="leave one of them empty")
    if row.get("price_per_gpu"):
        return Price(per_hour=gpus * _number(row, "price_per_gpu", where, most=MOST_PER_HOUR), unit="node")
    if row.get("price_per_machine"):
        return Price(per_hour=_number(row, "price_per_machine", where, most=MOST_PER_HOUR * gpus), unit="node")
    return None


def _number(row: Mapping[str, str], column: str, where: str, *, most: float) -> float:
    text = row[column]
    is_number = re.fullmatch(r"\d{1,9}(\.\d{1,20})?", text, re.ASCII)
    if is_number is None or not 0 < float(text) <= most:
        fix = "leave it empty where it is not known"
        if re.fullmatch(r"\d{1,9},\d{1,20}", text, re.ASCII):
            fix = f"write the decimals behind a point: {text.replace(',', '.')}"
        elif is_number is not None and not float(text):
            fix = "for a machine of your own write what an hour costs you, such as 0.01"
        raise ConfigFileError(
            f"{where}: {column} is {text[:40]!r}",
            why=f"a number above 0 and up to {most:,.0f} is needed, without a currency",
            fix=fix,
        )
    return float(text)
