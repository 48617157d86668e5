"""What an answer assumes, and that it stands on the first screen where it decides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ds_advise import advise, estimate
from ds_advise.advisor.advise import build_question
from ds_advise.advisor.answer.assumed_parts import WORTH_LISTING, assumed_parts
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.rent import rent
from ds_advise.advisor.search.candidate import FIT_THRESHOLD, judge_fit, predict
from ds_advise.advisor.text.units import rate
from ds_advise.estimators.estimate import Formula
from ds_advise.estimators.gpu_catalogue import gpus, same_size_gpus
from ds_advise.estimators.memory.fit_probability import HOST_MARGIN, host_bytes_to_fit, host_fit_probability
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.step_time import estimate_time

from tests.helpers import printed

GIB = 2**30

USUAL = (
    ("Qwen2.5-14B", "2x32GB", {}),
    ("Qwen2.5-7B", "1x24GB", {"method": "qlora"}),
    ("Qwen2.5-0.5B", "RTX4090", {}),
    ("Llama-3.1-8B", "4x24GB", {"method": "lora", "objective": "dpo"}),
    ("Llama-3.1-8B", "8xA100-80GB", {}),
    ("Qwen2.5-32B", "8xH100", {"method": "lora", "seq_len": 8192}),
    ("Qwen2.5-32B", "8x80GB", {}),
    ("Llama-3.1-70B", "2x8xH100", {}),
    ("Llama-3.1-70B", "4x8xA100-80GB", {"method": "lora"}),
    ("Mixtral-8x7B", "8xH100", {}),
    ("Mixtral-8x7B", "4x8xA100-80GB", {}),
    ("Qwen2.5-7B", "2x4xRTX4090", {"samples": "20000"}),
)
"""Common set-ups as an expert types them."""


def ask(model: str, gpus: str, **options: Any) -> Recommendation:
    return advise(model, gpus=gpus, offline=True, deepspeed_estimate=False, **options)


def speed(model: str, gpus: str, **options: Any) -> float:
    """The speed of the fastest plan that fits; 0 if there is none."""
    answer = ask(model, gpus, **options).recommended
    return 0.0 if answer is None else answer.tokens_per_s


@pytest.mark.parametrize(("model", "gpus", "options"), USUAL, ids=lambda each: str(each))
def test_no_assumption_decides_unseen(model: str, gpus: str, options: dict[str, Any]) -> None:
    """Global batch and network stand in the verdict; a quarter and four times the batch, and 100 Gb/s, have a line with
    the speed of the question that sets them, if it is another; so has the span of the cards if none is named."""
    answer = ask(model, gpus, **options)
    assert answer.recommended is not None
    screen = " ".join(printed(answer, width=80).split())
    batch = answer.question.workload.global_batch_size
    assert re.search(rf"batch {batch:,} (samples|pairs) \(--global-batch\)", screen)
    cluster, others = answer.question.cluster, dict[str, dict[str, Any]]()
    for each in {answer.question.default_batch(cluster, batch * share) for share in (0.25, 4)} - {batch}:
        others[f"--global-batch {each}"] = {"global_batch": each}
    if cluster.nodes > 1:
        known = re.search(r"assumed .*?([\d,]+) Gb/s between nodes\b", screen)
        assert known is not None
        slower = "10Gb/s" if known[1] == "100" else "100Gb/s"
        others[f"--interconnect {slower}"] = {"interconnect": slower}
    for flags, changed in others.items():
        found = speed(model, gpus, **options, **changed)
        ratio = found / answer.recommended.tokens_per_s
        if found and not 1 / WORTH_LISTING < ratio < WORTH_LISTING:
            line = re.search(rf"{flags} [\w-]+, ([\d,.]+) tokens/s", screen)
            assert line is not None, (flags, ratio)
            assert float(line[1].replace(",", "")) == pytest.approx(found, rel=0.03)
    assert bool(re.search("cards? of ", screen)) == cluster.gpu.assumed


@pytest.mark.parametrize(("model", "options"), [("Qwen2.5-7B", {"method": "lora"}), ("Qwen2.5-14B", {})])
def test_the_span_of_the_cards_ends_at_the_speeds_of_their_own_answers(model: str, options: dict[str, Any]) -> None:
    """The plan fits no V100, which trains in fp16 with a smaller micro batch."""
    answer = ask(model, "2x32GB", **options)
    assert answer.recommended is not None
    screen = " ".join(printed(answer).split())
    found = re.search(r"cards of 32 GB: ([\d,]+) \((.*?)\) to ([\d,]+) tokens/s \((.*?)\)", screen)
    assert found is not None and (found[2], found[4]) == ("V100-PCIe-32GB", "RTX 5090")
    for figure, name in ((found[1], found[2]), (found[3], found[4])):
        assert float(figure.replace(",", "")) == pytest.approx(speed(model, f"2x{name}", **options), rel=0.02)
    cards = same_size_gpus(answer.question.cluster.gpu)
    assert {card.memory_bytes for card in cards} == {answer.question.cluster.gpu.memory_bytes}
    assert same_size_gpus(build_question("gpt2", gpus="RTX5090").cluster.gpu) == ()


def test_the_span_of_the_cards_has_those_that_the_plan_likely_fits() -> None:
    """The plan fits the RTX 5090 with 97 %, below the least probability of an answer; its own answer is half as
    fast."""
    answer = ask("Qwen2.5-14B", "2x32GB", ram="180GB", method="lora", seq_len=51, global_batch=32)
    assert answer.recommended is not None
    screen = " ".join(printed(answer).split())
    found = re.search(r"cards of 32 GB: .* to ([\d,]+) tokens/s \((.*?)\)", screen)
    assert found is not None and found[2] == "RTX 5090"
    question = build_question(
        "Qwen2.5-14B", gpus="2xRTX5090", ram="180GB", host="server", method="lora", seq_len=51, global_batch=32
    )
    same_plan = estimate_time(question.model, answer.question.workload, question.cluster, answer.recommended.plan)
    assert float(found[1].replace(",", "")) == pytest.approx(same_plan.tokens_per_s, rel=0.02)


@pytest.mark.parametrize(("gpus", "size"), [("1x4GB", 8), ("1x22GB", 20), ("1x44.4GB", 48), ("1x100GB", 96)])
def test_cards_of_a_size_that_no_card_has_are_named_by_theirs(gpus: str, size: int) -> None:
    screen = " ".join(printed(ask("gpt2", gpus)).split())
    assert f"of the nearest known size, {size} GB: " in screen


@pytest.mark.parametrize("gpus", ["2xRTX-3090-23GB", "2xA100-SXM4-80GB-79GB"])
def test_a_named_card_of_another_size_is_no_other_card(gpus: str) -> None:
    question = build_question("gpt2", gpus=gpus)
    assert question.cluster.gpu.assumed and same_size_gpus(question.cluster.gpu) == ()
    assert not re.search(r"cards? of ", " ".join(printed(ask("gpt2", gpus)).split()))


def test_an_unknown_card_is_named_where_its_speed_is_assumed() -> None:
    screen = " ".join(printed(ask("gpt2", "foo-32GB")).split())
    assert "the speed of the RTX 5000 Ada for foo, which is not in the table of GPUs" in screen


def test_cards_with_one_speed_are_not_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    same = lambda gpu: (gpu, replace(gpu, name="another"))  # noqa: E731
    monkeypatch.setattr("ds_advise.advisor.answer.facts.same_size_gpus", same)
    answer = ask("Qwen2.5-7B", "2x32GB", method="lora")
    assert answer.recommended is not None
    screen = " ".join(printed(answer).split())
    assert f"any card of 32 GB: {rate(answer.recommended.tokens_per_s)} tokens/s" in screen


@pytest.mark.parametrize("size", sorted({gpu.nominal_gb for gpu in gpus()} - {6}))
def test_a_card_that_is_not_named_is_from_the_middle_of_its_size(size: int) -> None:
    """It has that size; of four or more cards it is neither in the slowest nor in the fastest quarter."""
    question = build_question("Qwen2.5-7B", gpus=f"2x{size}GB", offline=True)
    plan, cluster = Plan(zero_stage=3, micro_batch_size=4), question.cluster
    speeds = {}
    for gpu in same_size_gpus(cluster.gpu):
        workload = replace(question.workload, precision=gpu.half_precision)
        speeds[gpu.name] = predict(question.model, workload, replace(cluster, gpu=gpu), plan).tokens_per_s
    place = sorted(speeds.values()).index(speeds[cluster.gpu.name])
    assert len(speeds) < 4 or len(speeds) / 4 <= place + 0.5 <= 3 * len(speeds) / 4


@pytest.mark.parametrize(
    ("gpus", "options", "batch"),
    [
        ("RTX4090", {}, 32),
        ("8xH100", {}, 32),
        ("3xH100", {}, 24),
        ("6xH100", {}, 24),
        ("8x8xH100", {}, 64),
        ("2xH100", {"micro_batch": 5}, 40),
        ("2xH100", {"samples": "100"}, 8),
        ("2xH100", {"samples": "5"}, 2),
        ("2xH100", {"tokens": "200k"}, 8),
        ("8xH100", {"seq_len": 1_000_000}, 4),
        ("8xH100", {"seq_len": 1_000_000, "sequence_parallel_size": 2}, 4),
        ("2xH100", {"objective": "kto"}, 32),
        ("2xH100", {"global_batch": 6}, 6),
        ("2xH100", {"global_batch": "no-accumulation"}, None),
        ("2xH100", {"micro_batch": "max"}, None),
    ],
)
def test_the_default_batch_is_rounded_to_the_gpus(gpus: str, options: dict[str, Any], batch: int | None) -> None:
    """To a power of two for each, at least one, or for each group that shares long samples; it follows other machines,
    unless the user sets it."""
    question = build_question("Qwen2.5-0.5B", gpus=gpus, offline=True, **options)
    assert question.workload.global_batch_size == batch
    assert question.free_batch == ("global_batch" not in options and options.get("micro_batch") != "max")
    if question.free_batch:
        more = build_question("Qwen2.5-0.5B", gpus="2x16xH100", offline=True, **options)
        assert question.about_cluster(more.cluster).workload == more.workload


def test_machines_to_rent_have_the_default_batch(tmp_path: Any) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("gpus,price_per_gpu\n1xA100-80GB,1.5\n8xA100-80GB,1.5\n")
    offers = rent("Qwen2.5-0.5B", prices=table, most_nodes=1, offline=True).offers
    batches = {offer.candidate.plan.samples_per_step(offer.figures.gpus_per_node) for offer in offers}
    assert len(offers) == 2 and batches == {32}


def test_host_memory_near_its_limit_is_not_certain() -> None:
    """232.7 of 252 GiB, in which a run was killed. The margin of job files and conditions is the least that fits."""
    assert 0.9 < host_fit_probability(round(232.7 * GIB), 252 * GIB) < FIT_THRESHOLD
    assert host_fit_probability(GIB, host_bytes_to_fit(GIB)) >= FIT_THRESHOLD
    assert host_fit_probability(GIB, round(GIB * (1 + HOST_MARGIN - 0.005))) < FIT_THRESHOLD
    question = build_question("Qwen2.5-14B", gpus="2x32GB", offline=True)
    memory = estimate("Qwen2.5-14B", gpus="2x32GB", strategy="zero3-offload", loss="fused").memory
    need = memory.host_bytes_per_node
    for ram, verdict, limit in (
        (host_bytes_to_fit(need), "fits", ""),
        (need + GIB, "likely fits", "host"),
        (need - GIB, "does not fit", "host"),
    ):
        fit = judge_fit(memory, replace(question.cluster, host_memory_bytes_per_node=ram))
        assert (fit.verdict, fit.limit) == (verdict, limit)


@pytest.mark.parametrize(("gpus", "usual_gib"), [("T4", 12.7), ("L4", 16), ("2xA10G", 32), ("RTX3090", 23.68)])
def test_more_than_usual_machines_have_is_a_condition(gpus: str, usual_gib: float) -> None:
    """A T4 of Colab has 12.7 GiB of RAM, the smallest L4 and A10G of AWS 16; others at least the GPUs' memory."""
    cluster = build_question("gpt2", gpus=gpus, offline=True).cluster
    memory = estimate("gpt2", gpus=gpus, strategy="zero2").memory
    for share, conditional in ((0.99, False), (1.01, True)):
        need = round(share * usual_gib * GIB / (1 + HOST_MARGIN))
        loading = Formula("loaded_model", "made up", "made up").term(need)
        fit = judge_fit(replace(memory, host_loading_terms=loading), cluster)
        assert fit.fits and (fit.assumed_host_bytes == host_bytes_to_fit(need)) == conditional


@pytest.mark.parametrize(
    ("model", "gpus", "options", "phrase", "stated"),
    [
        ("Qwen2.5-7B", "2xRTX3090", {"ram": "256GB"}, "51.2 GB/s of host memory bandwidth", {"host": "server"}),
        ("Qwen2.5-1.5B", "2xRTX3090", {"global_batch": 8}, "PCIe 4 x16 for each GPU", {"link": "nvlink"}),
        (
            "Qwen2.5-14B",
            "2x32GB",
            {"ram": "96GB", "nvme": "/nvme:2TB"},
            "NVMe that reads 2.5",
            {"nvme": "/nvme:2TB@sata"},
        ),
    ],
)
def test_an_assumed_part_that_decides_is_named(
    model: str, gpus: str, options: dict[str, Any], phrase: str, stated: dict[str, Any]
) -> None:
    """Beside the speed, with a line for another part, whose speed is that of the question that states it."""
    screen = " ".join(printed(ask(model, gpus, **options), width=80).split())
    assert phrase in screen.partition(" assumed ")[2]
    ((name, text),) = stated.items()
    found = re.search(rf"--{name} {re.escape(text.replace('2TB', '2000GB'))} [\w-]+, ([\d,.]+) tokens/s", screen)
    assert found is not None
    known = ask(model, gpus, **{**options, **stated})
    assert known.recommended is not None and phrase not in " ".join(printed(known, width=80).split())
    assert float(found[1].replace(",", "")) == pytest.approx(known.recommended.tokens_per_s, rel=0.03)


def test_the_interval_holds_the_drives_of_eight_in_ten_machines() -> None:
    """Only that of a plan with NVMe whose rates are assumed."""

    def time(rates: str, strategy: str = "zero3-nvme") -> Any:
        nvme = f"/nvme:2TB{rates}"
        return estimate("Qwen2.5-14B", gpus="2x32GB", strategy=strategy, nvme=nvme, micro_batch=4).time

    (low, high), known = time("").tokens_per_s_range, time("@2.5GB/s,1.25GB/s")
    assert low < time("@0.5GB/s,0.25GB/s").tokens_per_s < time("@10GB/s,5GB/s").tokens_per_s < high
    assert low > time("@0.3GB/s,0.15GB/s").tokens_per_s / 2
    inner = known.tokens_per_s_range
    assert low < inner[0] / 2 < inner[1] < high / 2 and known.tokens_per_s == time("").tokens_per_s
    assert time("", "zero3-offload").spread == known.spread


def test_an_assumed_host_holds_the_ram_of_its_plan() -> None:
    """A desktop has at most 256 GB, so a plan that needs more, or a node that has more, is in a server."""

    def step_s(model: str, **stated: str) -> float:
        return estimate(model, gpus="2xRTX4090", strategy="zero3-offload", micro_batch=1, **stated).time.step_s

    small, large = "Qwen2.5-1.5B", "Qwen2.5-14B"
    assert step_s(small) == step_s(small, host="desktop") > step_s(small, host="server") == step_s(small, ram="1TB")
    assert step_s(large) == step_s(large, host="server")
    answer = ask(large, "2x32GB")
    assert answer.recommended is not None and answer.recommended.fit.assumed_host_bytes > 256 * GIB
    others = [flags for part in assumed_parts(answer.question.cluster, answer.recommended) for flags, _ in part.others]
    assert others and not any("desktop" in flags for flags in others)
    desktop = ask("Llama-3.1-8B", "2xRTX4090")
    assert "51.2 GB/s of host memory bandwidth" in " ".join(desktop.assumptions)
    assert "200 GB/s of host memory bandwidth" in " ".join(ask(large, "2xRTX4090").assumptions)


def test_on_one_gpu_plans_that_partition_nothing_are_not_close() -> None:
    """Each has the work of DDP and more. Where GPUs share the states, an order may be open."""
    assert not ask("gpt2", "RTX4090").doubts and ask("gpt2", "4xRTX4090").doubts


def test_a_lower_strategy_that_hardly_fits_is_not_passed_over_as_the_less_simple_one() -> None:
    """zero1 is simpler than zero2: what decides between equals is the free memory."""
    answer = ask("Llama-3.1-8B", "8xH100", seq_len=131072, ram="1TB")
    chosen, zero1 = answer.recommended, next(step.candidate for step in answer.ladder if step.strategy == "zero1")
    assert chosen is not None and zero1 is not None and chosen.strategy == "zero2"
    assert zero1.tokens_per_s > chosen.tokens_per_s and zero1.fit.utilization > 0.9 > chosen.fit.utilization
    text = " ".join((*answer.doubts, *answer.reasons))
    assert "zero1: predicted 1 % faster, within the error; zero2 leaves more memory free." in text
    assert "zero1 is equally fast, but leaves less than 10 % of a resource free." in text and "simpler" not in text


def test_no_plan_is_given_more_ram_than_its_processors_hold() -> None:
    """A Grace processor has at most 480 GB, so neither a plan nor a change asks for more."""
    answer = ask("Llama-3.1-70B", "2xGH200")
    shown = [step.candidate for step in answer.ladder if step.candidate is not None]
    assert any(plan.fit.reason.endswith(" x RAM") for plan in shown)
    assert max(plan.fit.assumed_host_bytes for plan in shown) <= 2 * 480 * GIB
    assert not any(change.flags.startswith("--ram") and " --nvme" not in change.flags for change in answer.changes)


def test_the_assumed_ram_stands_below_the_plans_that_exceed_it() -> None:
    """Rows of one table fit and fit under a condition, which the RAM of usual machines divides."""
    text = printed(ask("Qwen2.5-7B", "2xA100-80GB"), width=80)
    assert re.search(r"if RAM allows: more than the assumed 159 GiB", text)
    assert "if RAM allows" not in printed(ask("Qwen2.5-7B", "2xA100-80GB", ram="1TB"), width=80)
