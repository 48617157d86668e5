"""Price tables: the one that comes along, a user's own, and one sentence for what is wrong with it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from ds_advise.advisor.question.prices import COLUMNS, read_prices, shipped_prices
from ds_advise.estimators.errors import DsAdviseError


def test_every_shipped_price_has_a_date_and_a_source() -> None:
    table = shipped_prices()
    assert table.currency == "USD" and len(table.machines) > 60
    for machine in table.machines:
        assert machine.provider and machine.price_source
        assert date.fromisoformat(machine.price_date) <= date(2026, 11, 23)
        assert machine.price is not None
        assert 0.1 < machine.price.per_hour / machine.cluster.gpus_per_node < 20
        assert not machine.cluster.gpu.assumed


def _table(folder: Path, text: str) -> Path:
    path = folder / "prices.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_row_of_a_users_table(tmp_path: Path) -> None:
    header = "provider,gpus,price_per_gpu,ram,nodes,interconnect,currency"
    table = read_prices(_table(tmp_path, f"{header}\nMine,8xH100,2.5,1800GiB,4,400Gb/s,eur\n"))
    (machine,) = table.machines
    assert machine.price is not None and machine.price.per_hour == 20
    assert machine.cluster.host_memory_bytes_per_node == 1800 * 2**30
    assert machine.cluster.interconnect_bytes_per_s == 50e9
    assert (machine.most_nodes, table.currency, table.dates) == (4, "EUR", None)


def test_a_row_of_several_sizes_is_a_machine_of_each(tmp_path: Path) -> None:
    table = read_prices(_table(tmp_path, "gpus,price_per_gpu,ram\n1/2/8xA100-80GB,1.5,100GiB\n"))
    assert [machine.cluster.gpus_per_node for machine in table.machines] == [1, 2, 8]
    assert [machine.price and machine.price.per_hour for machine in table.machines] == [1.5, 3, 12]
    assert table.machines[-1].cluster.host_memory_bytes_per_node == 800 * 2**30


HEADER = "gpus,price_per_gpu\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lists no machine"),
        ("price_per_gpu\n1\n", "no column gpus"),
        ("gpus,price\n8xH100,1\n", "a column 'price'"),
        (HEADER, "lists no machine"),
        (HEADER + "8xH100\n", "line 2: 1 field, but the header names 2"),
        (HEADER + '"8xH100,1\n', "line 2: unexpected end of data"),
        (HEADER + "8xH1000,1\n", "line 2: no GPU called 'H1000'"),
        (HEADER + "99xH100,1\n", "line 2: .* 99 GPUs in one node"),
        (HEADER + "8xH100,-1\n", "price_per_gpu is '-1'"),
        (HEADER + "8xH100,0\n", "price_per_gpu is '0'"),
        (HEADER + "8xH100,$2\n", "price_per_gpu is '\\$2'"),
        ("gpus,price_per_gpu,price_per_machine\n8xH100,1,8\n", "both price_per_gpu and price_per_machine"),
        ("gpus,price_per_machine\n1/2xH100,8\n", "have the same price"),
        ("gpus,currency\n8xH100,USD\n8xA100-80GB,CNY\n", "line 3: prices in USD and CNY cannot be compared"),
        ("gpus,ram\n8xH100,lots\n", "line 2: ram 'lots' is not a size"),
        ("gpus\n8H100\n", "line 2: gpus '8H100' is not GPUs x kind; write gpus 8xH100$"),
        ("gpus,nodes\n8xH100,0\n", "nodes is '0'"),
    ],
)
def test_errors_of_a_table_are_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(DsAdviseError, match=why) as raised:
        read_prices(_table(tmp_path, text))
    assert "prices.csv" in raised.value.what


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, why in ((tmp_path / "none.csv", "No such file"), (tmp_path, "directory"), (tmp_path / "binary", "UTF-8")):
        with pytest.raises(DsAdviseError, match=why):
            read_prices(path)


def test_the_manual_names_every_column() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "rent.md").read_text(encoding="utf-8")
    assert all(f"`{column}`" in manual for column in COLUMNS)
