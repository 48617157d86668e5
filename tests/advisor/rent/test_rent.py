"""Which machine to rent: the plans of the advice, the arithmetic of costs, the front, and the limits."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import build_question, predicted
from ds_advise.advisor.answer.advice import job_figures
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.prices import read_prices
from ds_advise.advisor.render.rent import rent_document
from ds_advise.advisor.rent import Offer, RentAdvice, ranked, rent
from ds_advise.advisor.search.candidate import candidate_duration
from ds_advise.estimators.errors import ConfigFileError

from tests.advisor.html_report.report_page import Page
from tests.helpers import printed_document

TABLE = """provider,gpus,price_per_gpu,ram,nodes,interconnect
One,1/8xA100-80GB,1.6,,1,
One,8xH100,3.2,1800GiB,2,400Gb/s
Two,1xRTX4090,0.4,64GiB,1,
Two,1x8GB,0.1,8GiB,1,
Three,1xH100,4.0,,1,
"""
JOB: dict[str, Any] = {"method": "lora", "samples": 20000, "epochs": 2}


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def advice(prices: Path) -> RentAdvice:
    return rent("Qwen2.5-7B", prices=prices, **JOB)


def test_the_plan_of_each_machine_is_that_of_the_advice(advice: RentAdvice) -> None:
    assert len(advice.offers) == 6 and [one.gpus for one in advice.left_out] == ["1x8GB"]
    for offer in advice.offers:
        answer = predicted(build_question("Qwen2.5-7B", gpus=offer.question.cluster, **JOB))
        assert answer.recommended is not None
        assert offer.candidate.plan == answer.recommended.plan
        duration = candidate_duration(answer.question, answer.recommended)
        assert duration is not None and job_figures(duration, None) == offer.figures.job


def test_the_cost_is_price_times_hours_times_machines(advice: RentAdvice) -> None:
    joined = next(offer.figures for offer in advice.offers if offer.figures.nodes == 2)
    assert joined.gpus == "2x8xH100-SXM5"
    assert joined.cost == pytest.approx(2 * 8 * 3.2 * joined.duration_s / 3600)
    assert joined.cost_per_million_tokens == pytest.approx(joined.cost / (joined.job.tokens / 1e6))


def test_nothing_beats_what_is_on_the_front(advice: RentAdvice) -> None:
    every = [offer.figures for offer in advice.offers]
    for offer in every:
        beaten = [other for other in every if other.cost < offer.cost and other.duration_s < offer.duration_s]
        assert bool(beaten) != offer.on_pareto_front
    assert advice.recommended in advice.front


def _limited(advice: RentAdvice, deadline_s: float | None, budget: float | None) -> RentAdvice:
    offers = ranked(advice.offers, deadline_s, budget)
    return replace(advice, offers=offers, deadline_s=deadline_s, budget=budget)


def _chosen(advice: RentAdvice, deadline_s: float | None, budget: float | None) -> str | None:
    recommended = _limited(advice, deadline_s, budget).recommended
    return None if recommended is None else _name(recommended)


def _name(offer: Offer) -> str:
    return f"{offer.machine.title} {offer.figures.gpus}"


def test_of_equal_cost_the_better_value_in_time_and_the_fastest_within_the_budget(advice: RentAdvice) -> None:
    """Costs within the interval of the cheapest are equal. More is paid only for a larger saving of time."""
    for offer in advice.front:
        duration_s, cost = offer.figures.duration_s, offer.figures.cost
        assert [_chosen(advice, *each) for each in ((None, cost), (duration_s, cost))] == [_name(offer)] * 2
        found = _limited(advice, duration_s, None)
        chosen, cheapest = found.recommended, offer.figures  # on the front, cheaper ones are slower
        assert chosen is not None and cheapest.cost_high is not None
        equal = [each.figures for each in found.offers if each.figures.meets_limits]
        equal = [figures for figures in equal if figures.cost <= cheapest.cost_high]
        least = min(figures.cost * figures.duration_s for figures in equal)
        assert chosen.figures.cost * chosen.figures.duration_s == least
    assert _chosen(advice, 1.0, None) is None
    assert _chosen(advice, None, 0.01) is None


def test_a_machine_of_unknown_ram_is_conditional_and_not_the_headline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan needs more RAM than nearly every host has. The table shows it, and does not leave known ones out."""
    monkeypatch.setenv("COLUMNS", "120")
    rows = {"cheap": "1xRTX3090,0.01,", "known": "1xH100,9,400GiB"}
    (tmp_path / "both.csv").write_text("\n".join(["gpus,price_per_gpu,ram", *rows.values()]))
    assert run(["rent", "Qwen2.5-7B", "--prices", str(tmp_path / "both.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = " ".join(" ".join(lines).split())
    assert printed.startswith("The best value: 1 x H100-SXM5.")
    assert "It is the cheapest whose RAM is known to suffice." in printed and "within the interval" not in printed
    assert "3090, takes" not in printed  # of unknown RAM: it stands in the table alone
    assert re.search(r" 1 x RTX 3090 \? +[\d.]+ h +[\d.]+ +\d+ of \? ", printed)
    assert re.search(r"> 1 x H100-SXM5 +[\d.]+ h +[\d.]+ +\d+ of 400 ", printed)
    (tmp_path / "alone.csv").write_text("\n".join(["gpus,price_per_gpu,ram", rows["cheap"]]))
    assert run(["rent", "Qwen2.5-7B", "--prices", str(tmp_path / "alone.csv")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.match(r"The best value and cheapest: 1 x RTX 3090, if it has [\d.]+ GiB of RAM\.", printed)


def test_the_front_is_listed_and_the_chart_has_every_offer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine that another one beats in cost and time; the letters of the rows are in the chart."""
    monkeypatch.setenv("COLUMNS", "80")
    offers = {
        "B200": "8xB200,6",
        "near": "8xH100,3",
        "dear": "8xH100,9",
        "far": "8xV100-SXM2-32GB,9",
        "slow": "1xA100-SXM4-80GB,1",
    }
    (tmp_path / "all.csv").write_text(
        "\n".join(["machine,gpus,price_per_gpu", *(f"{n},{o}" for n, o in offers.items())])
    )
    advice = rent("Qwen2.5-7B", prices=tmp_path / "all.csv", method="lora", most_nodes=1)
    assert [offer.machine.title for offer in advice.front] == ["slow", "B200"]
    assert run(["rent", "Qwen2.5-7B", "--method", "lora", "--prices", str(tmp_path / "all.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if "against hours" in line)
    chart, table = "".join(lines[begin + 1 : begin + 9]), "\n".join(lines[begin + 9 :])
    assert all(chart.count(letter) == 1 for letter in "ab") and chart.count("\u2022") == 3
    assert re.search(r"a slow .*\n.*b B200 ", table) and "near" not in table
    assert " 3 more cost no less than one of these, and take no less time or at most 3 %\n   less (--all)." in table


def test_without_a_job_one_is_taken_and_named(prices: Path) -> None:
    advice = rent("Qwen2.5-7B", prices=prices, method="lora")
    assert advice.offers[0].figures.job.tokens == pytest.approx(1e8)
    assert "100M tokens are assumed" in advice.basis[0]


def test_machines_that_the_batch_does_not_divide_over_are_left_out(prices: Path) -> None:
    advice = rent("Qwen2.5-7B", prices=prices, global_batch=12, **JOB)
    assert 8 not in {offer.question.cluster.world_size for offer in advice.offers}
    assert any("is not divisible by 8" in one.reason for one in advice.left_out)


def test_old_cards_train_in_fp16(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("gpus,price_per_gpu\n1xV100-SXM2-32GB,0.5\n1xA100-80GB,1.5\n")
    advice = rent("Qwen2.5-1.5B", prices=tmp_path / "t.csv", **JOB)
    assert {offer.question.cluster.gpu.name: offer.question.workload.precision for offer in advice.offers} == {
        "V100-SXM2-32GB": "fp16",
        "A100-SXM4-80GB": "bf16",
    }
    printed = printed_document(rent_document(advice, all_offers=True))
    assert re.search(r" 1 x V100-SXM2-32GB .* fp16$", printed, re.MULTILINE)
    assert not re.search(r" 1 x A100-SXM4-80GB .*, bf16$", printed, re.MULTILINE), "the precision above the table"


def _printed(words: str, prices: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(
        ["rent", "Qwen2.5-7B", "--method", "lora", "--samples", "20000", "--prices", str(prices), *words.split()]
    )
    out, error = capsys.readouterr()
    return code, " ".join((out + error).split())


def test_the_cheapest_is_named_next_to_a_much_faster_machine_of_nearly_the_same_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice the GPUs take about half the time, and cost hardly more. No name is cut."""
    name = "A provider with a very long name"
    (tmp_path / "prices.csv").write_text(f"provider,gpus,price_per_gpu\n{name},1/2xA100-80GB,2\n")
    _, printed = _printed("", tmp_path / "prices.csv", capsys)
    assert f"The best value: {name} 2 x A100-SXM4-80GB." in printed
    assert re.search(rf"The cheapest, {name} 1 x A100-SXM4-80GB, takes [\d.]+ h and costs \$[\d.]+\.", printed), printed
    assert printed.count(f"{name} 2 x A100-SXM4-80GB") == 2


def test_the_cheapest_that_misses_a_limit_is_not_called_the_cheapest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prices.csv").write_text("gpus,price_per_gpu\n1/2/4xA100-80GB,2\n")
    _, printed = _printed("--deadline 5h", tmp_path / "prices.csv", capsys)
    assert "The best value that ends within 5 h: 4 x A100-SXM4-80GB." in printed
    assert "The cheapest within the time limit, 2 x A100-SXM4-80GB, takes" in printed


def test_the_answer_names_the_machine_and_what_it_costs(
    prices: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, printed = _printed("--deadline 100h", prices, capsys)
    assert (
        code == 0
        and "The best value and cheapest that ends within 100 h: Two 1 x RTX 4090. 20,000 samples for 3 epochs: $"
        in printed
    )
    assert re.search(r"[\d.]+ of the machine's [\d.]+ GiB of RAM", printed)
    assert "miss your limits" not in printed
    _, late = _printed("--deadline 10h --all", prices, capsys)
    assert "rows with * miss your limits" in late and re.search(r" \* +[\d.]+ (h|min) +[\d.]+", late)
    code, printed = _printed("--deadline 1m", prices, capsys)
    assert (
        code == 1 and "No machine ends within 1 min." in printed and "The fastest is One 2 x 8 x H100-SXM5" in printed
    )
    code, printed = _printed("--budget 1000 --all", prices, capsys)
    assert code == 0 and "The fastest that costs at most $1,000" in printed
    assert "Prices of prices.csv. Storage, " in printed
    assert run(["rent", "Qwen2.5-7B", "--method", "lora", "--tokens", "1B", "--prices", str(prices)]) == 0
    assert "\n 1B tokens: $" in capsys.readouterr().out


def test_the_report_has_the_machines_of_the_front_as_bars_and_in_a_table(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exact cost; where nothing fits there is no picture."""
    path = tmp_path / "report.html"
    _printed(f"--deadline 10h --json --html {path} --plot {tmp_path / 'cost.svg'}", prices, capsys)
    page, picture = Page(path.read_text()), (tmp_path / "cost.svg").read_text()
    front = [offer for offer in page.data["offers"] if offer["on_pareto_front"]]
    costs = [row[2][1] for row in page.sections["cost"][1:]]
    assert [cost for cost in costs if cost in {offer["cost"] for offer in front}] == [offer["cost"] for offer in front]
    assert picture.count('class="row"') == len(front)
    text = path.read_text()
    shown = len(page.data["offers"])
    assert text.count("<circle") >= 2 * shown > 4, "a point for every offer, in the wide and the narrow chart"
    assert all(f">{letter}</text>" in text and f"<td>{letter} " in text for letter in "abc"[:shown])
    assert "the cheapest first</p>" in text and '<div class="scroll folds"' in text
    bars = re.findall(r">([^<]+)</text>", picture)
    rows = [row for row in page.sections["cost"][1:] if row[2][1] in {offer["cost"] for offer in front}]
    places = [bars.index(row[0][0].rstrip(" ?*")) for row in rows]
    assert places == sorted(places), "the bars have the names and the order of the table"
    assert all(bars[at + 1].endswith(f" in {row[1][0]}") for at, row in zip(places, rows, strict=True))
    (tmp_path / "small.csv").write_text("gpus,price_per_gpu\n1x4GB,1\n")
    _printed(f"--html {path} --force", tmp_path / "small.csv", capsys)
    assert "svg" not in Page(path.read_text()).names


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--deadline soon", "--deadline 'soon'"),
        ("--budget 50EUR", "--budget 50EUR is not in the currency of the prices, USD"),
        ("--budget lots", "--budget 'lots' is not an amount"),
        ("--budget 0", "--budget '0' is not an amount: an amount above 0 is needed"),
        ("--max-nodes 0", "not a whole number"),
        ("--tokens 1B", "both set the amount"),
        ("--prices nowhere.csv", "No such file"),
        ("--price 3/h", "no such option --price; write --prices FILE"),
        ("--optimizer nonsense", "unknown optimizer"),
    ],
)
def test_wrong_words_get_one_sentence(words: str, why: str, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = _printed(words, prices, capsys)
    assert code == 2 and why in printed and printed.count("ds-advise:") == 1


@pytest.mark.parametrize(
    ("price", "fix"),
    [
        ('"2,35"', "write the decimals behind a point: 2.35"),
        ("0", "for a machine of your own write what an hour costs you, such as 0.01"),
        ("$2", "leave it empty where it is not known"),
    ],
)
def test_a_price_that_is_none_gets_its_correction(price: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"gpus,price_per_gpu\n8xH100,{price}\n")
    with pytest.raises(ConfigFileError) as caught:
        read_prices(tmp_path / "t.csv")
    assert caught.value.fix == fix


def test_each_of_two_limits_has_its_nearest_machine(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cheapest of those in time, and the fastest of those within the budget."""
    found = rent("Qwen2.5-7B", prices=prices, method="lora", samples=20000, deadline="1h", budget=8)
    assert found.recommended is None
    in_time = [offer.figures for offer in found.offers if offer.figures.duration_s <= 3600]
    affordable = [offer.figures for offer in found.offers if offer.figures.cost <= 8]
    assert found.cheapest_in_time is not None and found.fastest_affordable is not None
    assert found.cheapest_in_time.figures.cost == min(each.cost for each in in_time)
    assert found.fastest_affordable.figures.duration_s == min(each.duration_s for each in affordable)
    code, printed = _printed("--deadline 1h --budget 8", prices, capsys)
    assert code == 1 and "No machine ends within 1 h and costs at most $8.00." in printed
    assert "The cheapest within 1 h is One" in printed and "The fastest within $8.00 is" in printed


def test_the_details_are_a_command_that_gives_the_machines_plan(
    advice: RentAdvice, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the machine's RAM and network, the job and the price."""
    for offer in advice.offers:
        words = shlex.split(advice.advise_command(offer))[1:]
        assert run([*words, "--json", "--offline"]) == 0
        found = json.loads(capsys.readouterr().out)
        plan = found["recommended"]
        assert plan["strategy"] == offer.candidate.strategy
        assert plan["micro_batch_size"] == offer.candidate.plan.micro_batch_size
        assert plan["job"]["cost"] == pytest.approx(offer.figures.cost, rel=1e-6)


def test_more_machines_are_proposed_if_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes in (2, 1):
        (tmp_path / "t.csv").write_text(f"gpus,price_per_gpu,ram,nodes\n1x8GB,0.1,8GiB,{nodes}\n")
        assert run(["rent", "Llama-3.1-70B", "--max-nodes", "1", "--prices", str(tmp_path / "t.csv")]) == 1
        printed = capsys.readouterr().out
        assert ("At most 1 machine was joined; --max-nodes allows more." in printed) == (nodes == 2)


def test_a_long_name_on_a_narrow_terminal_keeps_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for length in range(16, 30):
        (tmp_path / "t.csv").write_text(
            f"provider,gpus,price_per_gpu\n{'P' * length},1xA100-80GB,1\nQ,8xH100,2\nR,4xH100,2\n"
        )
        assert run(["rent", "Qwen2.5-1.5B", "--method", "lora", "--prices", str(tmp_path / "t.csv"), "--all"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (line,) = [each for each in lines if re.match(r"[> ]+a ", each)]
        assert line.startswith(("  a ", "> a ", " > a ")), line


def test_nothing_fits_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("gpus,price_per_gpu,ram\n1x8GB,0.1,8GiB\n")
    assert run(["rent", "Llama-3.1-70B", "--prices", str(tmp_path / "t.csv")]) == 1
    assert "No plan fits on any of these machines" in capsys.readouterr().out
    assert run(["rent", "Llama-3.1-70B", "--prices", str(tmp_path / "t.csv"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["recommended"] is None


def test_a_limit_that_the_interval_misses_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the cheapest machine whose interval is within it; with a budget alone the fastest."""
    path = tmp_path / "prices.csv"
    path.write_text("gpus,price_per_gpu,ram\n1xA100-80GB,1,200GiB\n1xH100,12,200GiB\n8xH100,24,1800GiB\n")
    free = rent("Qwen2.5-7B", prices=path, **JOB | {"epochs": 3})
    slow, *_ = sorted(free.offers, key=lambda offer: -offer.figures.duration_s)
    high = slow.figures.duration_s_high
    assert high is not None
    deadline = int(slow.figures.duration_s + high) // 120  # minutes, between the prediction and the upper end
    code, printed = _printed(f"--deadline {deadline}m", path, capsys)
    assert code == 0 and "The best value and cheapest that ends within" in printed and "1 x A100-SXM4-80GB" in printed
    assert "It misses the deadline at the upper end of its time, " in printed
    assert "The cheapest that meets the limits there too: 1 x H100-SXM5, at most " in printed
    _, printed = _printed(f"--deadline {int(high) // 60 + 1}m", path, capsys)
    assert "misses" not in printed
    fast = min(free.offers, key=lambda offer: offer.figures.duration_s)
    code, printed = _printed(f"--budget {fast.figures.cost * 1.01:.2f}", path, capsys)
    assert code == 0 and "It misses the budget at the upper end of its cost, $" in printed
    assert "The fastest that meets the limits there too: 1 x H100-SXM5" in printed


def test_the_plan_stands_before_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget may have a sign. Where no machine is known to stay within it, the answer says so."""
    path = tmp_path / "prices.csv"
    path.write_text("gpus,price_per_gpu,ram\n1xA100-80GB,1,200GiB\n")
    (only,) = rent("Qwen2.5-7B", prices=path, **JOB | {"epochs": 3}).offers
    code, printed = _printed(f"--budget ${only.figures.cost * 1.01:.2f}", path, capsys)
    assert code == 0 and "No machine is known to meet the limits there." in printed
    assert printed.index("Plan: ") < printed.index("It misses the budget at the upper end")
    assert rent("Qwen2.5-7B", prices=path, budget="$1.5k", **JOB).budget == 1500


def test_limits_that_nothing_meets_have_a_method_that_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or that none would; no machine is named twice."""
    path = tmp_path / "prices.csv"
    path.write_text("gpus,price_per_gpu,ram\n1xRTX 3090,0.02,\n8xH100,2,2TB\n")
    question = ["rent", "Qwen2.5-7B", "--tokens", "100M", "--prices", str(path)]

    def found(*limits: str) -> str:
        assert run([*question, *limits]) == 1
        return " ".join(capsys.readouterr().out.split())

    printed = found("--budget", "$6", "--deadline", "2h")
    assert "With --method lora there is one: 8 x H100-SXM5, " in printed
    printed = found("--budget", "$0.01", "--deadline", "2h")
    assert "With --method lora or --method qlora there is none, either." in printed
    assert "No machine costs at most $0.01, however long it takes." in printed
    assert "The cheapest is 1 x RTX 3090: " in printed and "if it has" in printed
    assert printed.count("is 8 x H100-SXM5: ") == 1  # the cheapest in time, whose RAM is known


def test_an_interval_and_a_column_have_one_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("gpus,price_per_gpu,ram\n1/2/4/8xA100-80GB,2,2TB\n")
    for tokens in ("50M", "100M", "200M", "400M"):
        assert run(["rent", "Qwen2.5-1.5B", "--tokens", tokens, "--prices", str(path), "--all"]) == 0
        printed = capsys.readouterr().out
        (sentence,) = re.findall(r" in ([\d.]+ \w+) \(([\d.]+ \w+) to ([\d.]+ \w+)\)", " ".join(printed.split()))
        assert len({each.split()[1] for each in sentence}) == 1, sentence
        rows = re.findall(r"^[> ] \w \d x A100\S+ +[\d.,]+ (\w+) ", printed, re.MULTILINE)
        assert len(rows) == 4 and len(set(rows)) == 1, printed


def test_machines_on_which_the_job_cannot_run_are_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prices.csv"
    small = "".join(f"P{index},1x4GB,0.1,8GiB\n" for index in range(5))
    path.write_text(f"provider,gpus,price_per_gpu,ram\nOne,1xH100,4,200GiB\n{small}")
    _, printed = _printed("", path, capsys)
    assert "Left out, because nothing fits: P0 1x4GB, P1 1x4GB, P2 1x4GB and 2 more (--all)." in printed
    _, printed = _printed("--all", path, capsys)
    assert "P3 1x4GB and P4 1x4GB." in printed


def test_a_machine_that_would_need_more_ram_than_any_other_has_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its RAM is not known, and none of the table has as much per GPU. Without another offer it is shown."""
    path = tmp_path / "prices.csv"
    text = "gpus,price_per_gpu,ram\n1xRTX 3090,0.01,\n8xH100-SXM5,3,{}\n"
    words = ["rent", "Qwen2.5-32B", "--tokens", "1M", "--prices", str(path), "--all"]
    reason = "because the table does not give the RAM, and the plan needs more per GPU than any other machine has: "
    for ram, is_out in (("1600GiB", True), ("9000GiB", False), ("", False)):
        path.write_text(text.format(ram))
        assert run(words) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert (f"{reason}1xRTX-3090." in printed) == is_out == (" 1 x RTX 3090 ?" not in printed)


def test_a_loss_that_not_every_machine_has_is_not_in_the_header(tmp_path: Path) -> None:
    """With a winner and without one."""
    (tmp_path / "t.csv").write_text("gpus,price_per_gpu\n8xH100,3.2\n4xRTXA6000,0.5\n")
    for limit in ({}, {"deadline": "1m"}):
        advice = rent("Qwen2.5-7B", prices=tmp_path / "t.csv", tokens="10M", **limit)
        assert len({offer.question.workload.loss for offer in advice.offers}) == 2
        assert "fused loss" not in printed_document(rent_document(advice, all_offers=True)).partition("machines")[0]


def test_a_missed_deadline_has_no_machine_of_years(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest and the best value without the deadline are named; a machine that takes years is left out, unless
    all do."""
    table = tmp_path / "t.csv"
    table.write_text("provider,gpus,price_per_gpu,ram\nSlow,1xRTX 3090,0.01,4TB\nMid,8xH100-SXM5,2,2TB\n")
    assert run(["rent", "Qwen2.5-72B", "--tokens", "10B", "--deadline", "1h", "--prices", str(table)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "No machine ends within 1 h. The fastest is Mid 8 x H100-SXM5" in printed
    assert "The best value without the deadline is Mid 8 x H100-SXM5" in printed
    assert "Left out, because it would take more than a year: Slow 1xRTX-3090." in printed
    table.write_text("provider,gpus,price_per_gpu,ram\nSlow,1xRTX 3090,0.01,4TB\n")
    assert run(["rent", "Qwen2.5-72B", "--tokens", "10B", "--prices", str(table)]) == 0
    assert "Slow 1 x RTX 3090" in capsys.readouterr().out


def test_what_is_assumed_of_the_amount_is_said(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rent", "Qwen2.5-7B", "--method", "lora", "--prices", str(prices)]) == 0
    assert "100M tokens (assumed): $" in capsys.readouterr().out
    _, printed = _printed("", prices, capsys)
    assert "(assumed)" not in printed
    assert "Samples are assumed to have 2,048 tokens each, which time and cost depend on" in printed


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        ("gpu", "gpus"),
        ("name", "machine"),
        ("Instance Type", "machine"),
        ("price", "price_per_gpu or price_per_machine"),
        ("intercconect", "interconnect"),
    ],
)
def test_a_column_of_another_name_has_the_nearest(
    column: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(f"gpus,{column}\n8xH100-SXM5,2\n")
    assert run(["rent", "Qwen2.5-7B", "--prices", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err.rstrip("\n").endswith(f"; rename it to {meant}")
