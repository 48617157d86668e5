"""A machine that can be rented, and what it costs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...estimators.errors import ClusterError, ConfigFileError
from ...estimators.hardware.cluster import Cluster
from ...estimators.time.job import Price
from ..question.cluster import MOST_NODES, parse_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One size of a row of a price table."""

    provider: str
    name: str
    """What the provider calls it; "" where it has no name."""
    cluster: Cluster
    """One such machine."""
    most_nodes: int
    """How many may be joined by their network."""
    price: Price | None
    """On demand; None where the table does not say. This and the next are those of a node."""
    spot: Price | None
    """Where the provider may take it back."""
    hours_between_interruptions: float
    """Of one machine that may be taken back, on average."""
    date: str
    """The day of the price, "" where the table does not say."""
    source: str

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.provider, self.name) if part)


_SHIPPED = Path(__file__).with_name("prices.csv")

COLUMNS = (
    "provider",
    "machine",
    "gpus",
    "price_per_gpu",
    "spot_per_gpu",
    "price_per_machine",
    "spot_per_machine",
    "nodes",
    "ram",
    "interconnect",
    "hours_between_interruptions",
    "currency",
    "date",
    "source",
)
"""Columns that are read; of each pair of prices one, by the hour, and empty where it is not known."""

HOURS_BETWEEN_INTERRUPTIONS = 4.4
"""Of one machine that may be taken back, where the table does not say: 802 preemptions in 3,498 machine-hours of AWS
p3.2xlarge in 2023 (github.com/skypilot-org/spot-traces, preemption/1-node/aws-04-22-2023 and 4-node/aws-08-03-2023, of
"Can't Be Late", NSDI 2024). Calmer machines and providers are common, hence the column."""

MOST_PER_HOUR = 10_000.0
"""A price of a GPU above this is a typing error."""

_MOST_BYTES, _MOST_ROWS = 5_000_000, 10_000

_CURRENCIES = re.compile(
    "AED|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|IDR|ILS|INR|JPY|KRW|MXN|MYR|NOK|NZD|PHP|PLN|SAR|SEK|SGD|THB|TRY|TWD|"
    "USD|VND|ZAR"
)

_COUNTS = re.compile(r"\s*((?:\d{1,2}\s*/\s*)*\d{1,2})\s*x\s*(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """The machines of one file, whose prices are in one currency."""

    name: str
    machines: tuple[Machine, ...]
    currency: str
    """A code of three letters."""
    is_shipped: bool = False
    """It comes with this package."""

    @property
    def sign(self) -> str:
        """What stands before an amount or, of several letters, after it."""
        return {"USD": "$", "EUR": "€", "GBP": "£", "INR": "₹"}.get(self.currency, self.currency)

    @property
    def dates(self) -> tuple[str, str] | None:
        """The days of the oldest and the newest price; None where no row tells."""
        dates = sorted(machine.date for machine in self.machines if machine.date)
        return (dates[0], dates[-1]) if dates else None


def shipped_prices() -> PriceTable:
    """The table that comes with this package."""
    return replace(read_prices(_SHIPPED), is_shipped=True)


def read_prices(path: Path) -> PriceTable:
    """The machines of a table.

    Raises ConfigFileError for a file that cannot be read or is no such table, a price that is none, and several
    currencies; ClusterError for a GPU, RAM or network that is unknown. Both name the line.
    """
    machines: list[Machine] = []
    currencies: dict[str, int] = {}
    for number, row in _rows(path):
        where = f"{path.name} line {number}"
        currencies.setdefault(_currency(row, where), number)
        if len(currencies) > 1:
            listed = " and ".join(currencies)
            raise ConfigFileError(
                f"{where}: prices in {listed} cannot be compared", fix="give all of them in one currency"
            )
        machines += _machines(row, where)
    if not machines:
        raise ConfigFileError(f"{path.name} has no machine in it", fix=_example())
    return PriceTable(name=path.name, machines=tuple(machines), currency=next(iter(currencies)))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, cells by column) of the rows that are not empty."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigFileError(f"{path.name} is larger than a table of prices", fix=_example())
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror or error}", fix="give a table of prices (CSV)") from None
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path.name} is not text in UTF-8", fix="save it as CSV in UTF-8") from None
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        unknown = [name for name in header if name not in COLUMNS]
        if "gpus" not in header or unknown or len(set(header)) < len(header):
            what = f"has a column {unknown[0][:40]!r}" if unknown else "has no column gpus, or one twice"
            raise ConfigFileError(f"{path.name} {what}", why=f"the columns are {', '.join(COLUMNS)}", fix=_example())
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header) or reader.line_num > _MOST_ROWS:
                raise ConfigFileError(
                    f"{path.name} line {reader.line_num} has {len(cells)} cells, the header {len(header)}",
                    fix="put what holds a comma in quotes",
                )
            yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise ConfigFileError(f"{path.name} line {reader.line_num} is no CSV: {error}", fix=_example()) from None


def _example() -> str:
    return "write it like: gpus,price_per_gpu then 8xH100-SXM5,2.49"


def _currency(row: Mapping[str, str], where: str) -> str:
    code = row.get("currency", "").upper() or "USD"
    if not _CURRENCIES.fullmatch(code):
        raise ConfigFileError(
            f"{where}: {code[:20]!r} is no currency that is known", fix="write its code, such as USD, EUR or CNY"
        )
    return code


def _machines(row: Mapping[str, str], where: str) -> Iterator[Machine]:
    """The row's machine, in each of its sizes."""
    match = _COUNTS.fullmatch(row["gpus"])
    counts, kind = (match[1], match[2]) if match else ("1", row["gpus"])
    sizes = [int(count) for count in counts.split("/")]
    if len(sizes) > 1 and (row.get("price_per_machine") or row.get("spot_per_machine")):
        raise ConfigFileError(
            f"{where}: machines of {counts} GPUs have one price", fix="use price_per_gpu, or a row for each size"
        )
    nodes = _number(row, "nodes", where, 1.0, most=MOST_NODES)
    hours = _number(row, "hours_between_interruptions", where, HOURS_BETWEEN_INTERRUPTIONS, most=100_000)
    for size in sizes:
        yield Machine(
            provider=row.get("provider", ""),
            name=row.get("machine", ""),
            cluster=_cluster(f"{size}x{kind}", row, where, of_each_gpu=size if len(sizes) > 1 else 1),
            most_nodes=int(nodes),
            price=_price(row, "price", size, where),
            spot=_price(row, "spot", size, where),
            hours_between_interruptions=hours,
            date=row.get("date", ""),
            source=row.get("source", ""),
        )


def _cluster(gpus: str, row: Mapping[str, str], where: str, *, of_each_gpu: int) -> Cluster:
    """One machine; of a row with several sizes the RAM is that of each GPU. Two of them bring the network in."""
    try:
        alone = parse_cluster(gpus, ram=row.get("ram") or None)
        network = parse_cluster(f"2x{gpus}", interconnect=row.get("interconnect") or None)
    except ClusterError as error:
        raise ClusterError(f"{where}: {error.what}", why=error.why, fix=error.fix) from None
    ram = alone.host_memory_bytes_per_node
    return replace(
        alone,
        host_memory_bytes_per_node=None if ram is None else ram * of_each_gpu,
        interconnect_bytes_per_s=network.interconnect_bytes_per_s,
        assumptions=(),
    )


def _price(row: Mapping[str, str], kind: str, gpus: int, where: str) -> Price | None:
    """The price of a machine; None where the row has none."""
    of_gpu, of_machine = f"{kind}_per_gpu", f"{kind}_per_machine"
    if row.get(of_gpu) and row.get(of_machine):
        raise ConfigFileError(f"{where} has both {of_gpu} and {of_machine}", fix="leave one of them empty")
    column, scale = (of_gpu, gpus) if row.get(of_gpu) else (of_machine, 1)
    if not row.get(column):
        return None
    most = MOST_PER_HOUR * (gpus if scale == 1 else 1)
    return Price(per_hour=scale * _number(row, column, where, 0.0, most=most), unit="node")


def _number(row: Mapping[str, str], column: str, where: str, otherwise: float, *, most: float) -> float:
    """The number of a cell, above 0; `otherwise` where it is empty."""
    text = row.get(column, "")
    if not text:
        return otherwise
    known = re.fullmatch(r"\d{1,9}(\.\d{1,20})?", text, re.ASCII)
    if known is None or not 0 < float(text) <= most:
        raise ConfigFileError(
            f"{where}: {column} is {text[:40]!r}",
            why=f"a number above 0 and up to {most:,.0f} is needed, without a currency",
            fix="leave it empty where it is not known",
        )
    return float(text)
