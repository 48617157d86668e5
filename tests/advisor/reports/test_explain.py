"""`ds-advise explain`: the figures of the advice, taken apart into the same terms."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ds_advise import advise, estimate
from ds_advise.advisor.answer.explanation import Term, explain, explain_plan, substituted_formula
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import program, run
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.estimate import MemoryTerm, TimeTerm, term_symbols
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.memory.offload_memory import pinned_block
from ds_advise.estimators.time.step_time import plan_moves

from tests.helpers import SMALL_LLAMA

QUESTION = ["Qwen2.5-14B", "--gpus", "2x32GB", "--ram", "512GB", "--nvme", "/nvme:2TB", "--offline"]


@pytest.fixture(scope="module")
def answers() -> list[Recommendation]:
    """Questions whose plans together have every kind of term."""
    where = {"gpus": "2x4x32GB", "ram": "512GB", "nvme": "/nvme:2TB", "deepspeed_estimate": False, "offline": True}
    return [
        advise("Qwen2.5-7B", **where),
        advise("Qwen2.5-7B", method="lora", global_batch=512, **where),  # type: ignore[arg-type]
        advise("Qwen2.5-7B", gpus="RTX4090", method="qlora", deepspeed_estimate=False, offline=True),
    ]


def test_the_terms_of_a_section_add_up_to_the_advised_figure(answers: list[Recommendation]) -> None:
    """An explanation leaves nothing out and computes nothing again."""
    for answer in answers:
        for step in answer.ladder:
            if step.candidate is None:
                continue
            explanation = to_json(explain(answer, strategy=step.strategy).figures())
            sections, estimate = explanation["sections"], step.candidate.estimate
            totals = {
                name: sum(term.get("size_bytes", term.get("seconds")) for term in section["terms"])
                for name, section in sections.items()
            }
            assert totals["gpu_memory"] == estimate.memory.device_bytes_per_gpu
            assert totals["host_memory"] == estimate.memory.host_training_bytes_per_node
            assert totals["host_loading"] == estimate.memory.host_loading_bytes_per_node
            assert totals.get("nvme", 0) == estimate.memory.nvme_bytes_per_node
            assert totals["time"] == pytest.approx(estimate.time.step_s)
            assert max(explanation["allocated_bytes_by_moment"].values()) == estimate.memory.allocated_bytes_per_gpu


def every_term(candidate: Candidate) -> tuple[Term, ...]:
    memory = candidate.memory
    alive = tuple(term for phase in memory.phases for term in phase.terms)
    on_host = memory.host_pinned_terms + memory.host_pageable_terms
    return (*alive, *memory.gpu_terms, *on_host, *memory.host_loading_terms, *memory.nvme_terms, *candidate.time.terms)


def test_every_term_has_a_formula_a_source_and_known_symbols(answers: list[Recommendation]) -> None:
    """A reader finds what each short symbol means, and where the formula comes from."""
    for answer in answers:
        for candidate in answer.candidates:
            for term in every_term(candidate):
                assert term.formula and term.source, term
                shorthand = set(re.findall(r"(?<![\w'.])[A-Z][a-z]?'{0,2}(?![\w'])", term.formula))
                assert shorthand <= term_symbols(term).keys() | {"x"}, term.formula
                if isinstance(term, TimeTerm) and term.symbols:
                    words = set(re.findall(r"[A-Za-z_]\w*", term.formula.partition(": ")[0]))
                    assert words <= term.symbols.keys() | {"min", "max", "sum", "ceil"}, term.formula


RECOMPUTED = set(
    """weight gathering|gradient reduction|updated weights gathered|gradients to host|weights from host|optimizer
    |optimizer on the host|states from and to NVMe|gradient copies|parameters|persistent_parameters|master_weights
    |optimizer_states|gradients|reduce_buckets|gathered_parameters|step_temporaries|offload_staging|decoder layer inputs
    |library_workspace|allocator_overhead|nccl_buffers|processes|optimizer_swap_buffers|parameter_swap_buffers
    |attention|recomputation|log-softmax|decoder attention|decoder feed-forward|pinned_cache|accumulated_gradients
    |frozen_parameters|cuda_context|launch overhead""".replace("\n    ", "").split("|")
)


def test_numbers_put_into_a_formula_give_the_figure(answers: list[Recommendation]) -> None:
    """What is printed can be worked out with a pocket calculator, and no symbol is left to look up."""
    functions = {"min": min, "max": max, "ceil": math.ceil, "p2": pinned_block}
    checked = set()
    for answer in answers:
        for candidate in answer.candidates:
            for term in every_term(candidate):
                text = substituted_formula(term)
                if term.formula.startswith("L B S ("):  # a sum of "bytes what" for each token
                    bytes_per_token = " + ".join(re.findall(r"(?<=[( ])\d+(?= )", term.formula))
                    text = " * ".join(str(size) for _, size in term.inputs) + f" * ({bytes_per_token})"
                if text and "sum" not in text:
                    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace(" x ", " * ")
                    plain = plain.replace("rounded up to a power of two (", "p2(")
                    value = eval(plain, {"__builtins__": {}}, functions)
                    result = term.size_bytes if isinstance(term, MemoryTerm) else term.seconds + term.hidden_s
                    assert value == pytest.approx(result, rel=1e-4, abs=1), (term, text)
                    checked.add(term.name)
    assert checked >= RECOMPUTED


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("Qwen2.5-7B", "8xH100", {}),
        ("Qwen3-30B-A3B", "8xH100", {"method": "lora"}),
        ("gpt2", "A100-80GB", {"micro_batch": 2}),
    ],
)
def test_the_matrix_products_add_up_to_their_part(model: str, gpus: str, options: dict[str, Any]) -> None:
    """The time of each can be computed with the formula's numbers."""
    answer = advise(model, gpus=gpus, deepspeed_estimate=False, offline=True, **options)
    found = explain(answer)
    term = next(each for each in found.candidate.time.terms if each.name == "matrix products")
    n, tile, rate, width, bandwidth, ramp = (dict(term.inputs)[name] for name in ("n", "tile", "R", "w", "W", "ramp"))
    assert n * sum(each.launches * each.seconds for each in found.products) == pytest.approx(term.seconds)
    for each in found.products:
        rows, inner, columns = each.rows, each.inner, each.columns
        computed = 2 * rows * (inner + tile) * columns / rate
        moved = width * (rows * inner + inner * columns + rows * columns) / bandwidth
        assert each.seconds == pytest.approx(each.copies * max(computed, moved) + ramp)
    assert len(found.figures().matrix_products) == len(found.products) > 3
    assert all(each.names for each in found.products)
    question = answer.question
    moves = plan_moves(question.model, question.workload, question.cluster, found.candidate.plan)
    moved = next(each for each in found.candidate.time.terms if each.name == "elementwise operations")
    (size,) = (size for symbol, size in moved.inputs if moved.symbols[symbol].startswith("bytes moved"))
    assert sum(moves.values()) == pytest.approx(size), "bytes by operation"


def test_a_symbol_of_several_formulas_is_listed_once_with_three_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Stage 3 gathers less in the backward passes; of the matrix products the largest has its numbers."""
    question = ["Qwen2.5-14B", "--gpus", "8x80GB", "--strategy", "zero3", "--micro-batch", "4", "--offline"]
    assert run(["explain", *question, "time"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    gathering = page.partition("weight gathering")[2].partition("source:")[0]
    assert len(re.findall(r"\bpasses = ", gathering)) == len(re.findall(r"\bcalls = ", gathering)) == 1
    assert re.search(r"\bpasses = 1 and 0\.\d{1,3} \(", gathering)
    assert not re.search(r"\d\.\d{4,}", page)
    assert "rows = 8,192, inner = 5,120, columns = 13,824, launched = 1, 144 launches a micro batch x" in page


def test_the_page_of_the_matrix_products_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = printed("matrix products")
    each = re.findall(r"^ +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) +([\d.]+ [mu]?s) +([\d.]+ m?s)$", page, re.MULTILINE)
    assert len(each) > 5
    assert re.search(r"^ \d+ micro batch(es)? x [\d.]+ m?s = [\d.]+ m?s\.$", page, re.MULTILINE)
    assert (
        "\n     gate_proj, up_proj; input gradient of down_proj\n" in page
        and "\n     weight gradient of head\n" in page
    )


def test_the_page_of_the_elementwise_operations_lists_them() -> None:
    """With their bytes, which add up to those of the formula."""
    page = printed("elementwise operations")
    total = re.search(r"^ ([\d.]+ [GT]B) +bytes moved by", page, re.MULTILINE)
    assert total is not None and re.search(rf"^ all +{re.escape(total[1])}$", page, re.MULTILINE)
    assert len(re.findall(r"^ (?:squares|normed|gated|rotated half) +[\d.]+ [GT]B$", page, re.MULTILINE)) == 4


def printed(*words: str) -> str:
    done = CliRunner().invoke(program, ["explain", *QUESTION, "--strategy", "zero3", *words])
    assert done.exit_code == 0
    return done.output


def test_a_plan_is_two_screens_of_bars_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """No formulas, and one row for the small parts; the last line is the command that shows a part."""
    monkeypatch.setenv("COLUMNS", "80")
    bars = printed()
    assert re.search(r"^ optimizer states +[\d.]+ GiB +\d+ %  \u2588{20}", bars, re.MULTILINE)
    assert len(re.findall(r"^ weight gathering  ", bars, re.MULTILINE)) == 1
    assert len(bars.splitlines()) <= 40 and "source:" not in bars and "\n rotary tables " not in bars
    assert "Rates in" not in bars
    rates = " ".join(printed("--details").split())
    assert "198 TFLOP/s operations per second of a matrix product of this size: 76 % of the peak in bf16, 261" in rates
    assert "GB/s (assumed: PCIe 4 x16)" in rates
    proposed = shlex.split(bars.partition("(--details")[2].partition("\n")[2].replace("\\\n", " "))
    assert proposed[:2] == ["ds-advise", "explain"] and run(proposed[1:]) == 0


def test_a_part_has_formula_numbers_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the meaning of each number; of a part with two passes both, which add up to its size."""
    monkeypatch.setenv("COLUMNS", "80")
    states = printed("optimizer", "states")
    assert states.startswith(" optimizer states: ") and "(GPU memory)" in states
    for part in (
        "= bytes of optimizer states per master weight x one rank's shards",
        "= 8 x 7,385,016,832",
        "\n 7,385,016,832  one rank's shards",
        "Source: deepspeed",
    ):
        assert part in states
    gathers = printed("weight gathering")
    size = float(gathers.split()[2])
    hidden = re.search(r"([\d.]+) s overlapped", gathers)
    passes = [float(number) for number in re.findall(r" us = ([\d.]+) s", " ".join(gathers.split()))]
    assert hidden is not None and len(passes) == 2
    assert sum(passes) == pytest.approx(size + float(hidden[1]), rel=0.05)
    assert gathers.count("GB/s") >= 3  # in both formulas, and with its origin


def test_details_and_the_name_of_a_section_have_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    longer, memory = printed("--details"), printed("GPU", "memory")
    for text in (longer, memory):
        assert "\n rotary tables " in text and "= 8 x 7,385,016,832" in text
    assert "the optimizer step" in longer and "weight gathering" not in memory
    assert "weight gathering" in printed("time")


def test_a_narrow_terminal_leaves_the_shares_out_of_all_tables_or_of_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (40, 46, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(["explain", "Qwen2.5-14B", "--gpus", "2x24GB", "--offline"]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line for line in lines if re.search(r"\d (GiB|s|ms)  ", line)]
        assert len(rows) > 15 and len({" % " in row for row in rows}) == 1, columns


def test_one_loaded_model_is_not_two(capsys: pytest.CaptureFixture[str]) -> None:
    for objective, models in (("next-token", 1), ("dpo", 2)):
        question = ["Qwen2.5-0.5B", "--gpus", "2x24GB", "--strategy", "zero2", "--micro-batch", "1", "--offline"]
        assert run(["explain", *question, "--objective", objective, "loaded model"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f" {models} models that are loaded: 2 with a reference model, else 1" in out


@pytest.mark.parametrize("columns", [40, 64, 120])
def test_the_bars_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal shares and resources give way to them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    output = CliRunner().invoke(program, ["explain", *QUESTION]).output.partition("Rates in")[0]
    lines = [line for line in output.splitlines() if "\u2588" in line]
    assert len(lines) > 10 and max(map(len, output.splitlines())) <= columns
    assert any("GPU compute" in line for line in lines) == (columns > 40)
    resource = {line[: line.index("\u2588")] for line in lines if "matrix products" in line}
    assert len(resource) == 1


def test_every_rate_is_said_to_come_from_somewhere(answers: list[Recommendation]) -> None:
    """Its share of the known rate, which is multiplied again here, or where a constant stands."""
    scales = {"T": 1e12, "G": 1e9, "M": 1e6}
    shares = 0
    for answer in answers:
        for candidate in answer.candidates:
            for rate in explain_plan(candidate, answer.question).rates:
                assert rate.origin
                if found := re.match(r"(\d+) % of .*, ([\d.]+) ([TGM])(?:B|FLOP)/s \(.+\)$", rate.origin):
                    share, value, prefix = found.groups()
                    assert float(share) / 100 * float(value) * scales[prefix] == pytest.approx(rate.value, rel=0.03)
                    shares += 1
    assert shares > 100


@pytest.mark.parametrize(
    "option, message",
    [
        (["--strategy", "zero9"], "unknown strategy"),
        (["--strategy", "zero3-nvme"], "cannot run"),
        (["optimiser states"], "did you mean optimizer states?"),
        (["--sharding", "fsdp"], "no such option --sharding; write --strategy fsdp2"),
        (["xyz"], "no part 'xyz'; ds-advise explain "),
        (["losses"], "no part 'losses'; ds-advise explain "),
        (["loss"], "did you mean loss over the vocabulary? ds-advise"),
        (["grads"], "did you mean gradients of activations, gradients or "),
        (["fragmentation"], "did you mean allocator overhead? ds-advise"),
        (["communication"], "did you mean weight gathering, gradient reduction or "),
        (["rates"], " --details lists it"),
        (["6 smaller parts"], " --details lists it"),
        (["matmul"], "did you mean matrix products? "),
        (["kv-cache"], "no part 'kv-cache': a training step keeps no KV cache, only generation does; ds-advise"),
    ],
)
def test_impossible_explanations_are_one_line(
    option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the names that exist."""
    question = ["gpt2", "--gpus", "8GB", "--optimizer", "adafactor"] if "zero3-nvme" in option else QUESTION
    assert run(["explain", *question, *option]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_utilization_of_the_gpus_is_the_share_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """As `advise --details` prints it, with its formula."""
    question = ["Qwen2.5-1.5B", "--gpus", "2xA100-80GB", "--offline"]
    assert run([*question, "--details"]) == 0
    advised = " ".join(capsys.readouterr().out.split())
    assert run(["explain", *question, "MFU"]) == 0
    explained = " ".join(capsys.readouterr().out.split())
    share = re.search(r"are \d+ % of the data sheet's 312 Tflop/s for bf16 \(MFU\)", explained)
    assert share and share[0] in advised and "/ (seconds of the step x the peak)" in explained


def test_the_passes_of_a_part_are_labelled_and_no_share_of_a_part_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "Qwen2.5-7B", "--gpus", "2x24GB", "--offline"]
    assert run([*asked, "weight gathering"]) == 0
    gathering = capsys.readouterr().out
    assert gathering.count("(forward passes)") == gathering.count("(backward passes)") == 1
    assert run([*asked, "--details"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert " <1 %" in out and not re.search(r" 0 %", out)
    assert re.search(r"1\.\d+ x the peak in bf16 at the data sheet's clock", out), "GeForce cards exceed the clock"
    assert not re.search(r"1\d\d % of the peak", out)


def test_small_parts_have_a_unit_in_which_they_are_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Qwen2.5-7B", "--gpus", "8xH100", "--details", "--offline"]) == 0
    out = capsys.readouterr().out
    assert not re.search(r"(?<![\d.])0\.0+ (GiB|ms|s)", out)
    assert re.search(r"^ rotary tables +[\d.]+ [MK]iB", out, re.MULTILINE)


def test_one_overlapped_term_is_a_sum_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Qwen2.5-7B", "--gpus", "8xH100", "--offline", "gradient reduction"]) == 0
    assert re.search(r"^   \d+ ms - \d+ ms \(overlapped\) = \d+ ms$", capsys.readouterr().out, re.MULTILINE)


def test_a_sequence_beyond_the_models_positions_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["explain", "Qwen2.5-0.5B", "--gpus", "8xH100", "--offline", "--seq-len"]
    assert run([*question, "200k"]) == 0
    assert "states 32,768 positions; longer sequences need RoPE scaling." in " ".join(capsys.readouterr().out.split())
    assert run([*question, "4k"]) == 0
    assert "RoPE" not in capsys.readouterr().out


def test_no_sequence_beyond_the_models_positions_is_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a model with RoPE, which could have longer ones on request."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    question = ["explain", str(tmp_path), "--gpus", "1x24GB", "--offline"]
    assert run(question) == 0
    out = capsys.readouterr().out
    assert f"sequence {SMALL_LLAMA['max_position_embeddings']}," in out and "RoPE" not in out


OPEN_FILE = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        ("", "micro batch 4 x 2 accumulation steps x 4 GPUs = 32 samples"),
        ("--micro-batch 4", "micro batch 4 x 2 accumulation steps x 4 GPUs = 32 samples"),
        ("--micro-batch 2 --global-batch 32", "micro batch 2 x 4 accumulation steps x 4 GPUs = 32 samples"),
        ("--global-batch 128", "micro batch 4 x 8 accumulation steps x 4 GPUs = 128 samples"),
    ],
)
def test_the_batch_of_a_file_that_leaves_it_open(
    words: str, batch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The global batch is kept, whatever the micro batch is."""
    path = tmp_path / "open.json"
    path.write_text(json.dumps(OPEN_FILE))
    question = ["explain", str(path), "--model", "Qwen2.5-0.5B", "--gpus", "4xRTX4090", "--offline"]
    assert run([*question, *words.split()]) == 0
    assert batch in " ".join(capsys.readouterr().out.split())


def test_a_global_batch_that_a_file_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fixed.json"
    path.write_text(json.dumps(OPEN_FILE | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}))
    question = ["explain", str(path), "--model", "Qwen2.5-0.5B", "--gpus", "4xRTX4090", "--offline"]
    assert run([*question, "--global-batch", "64"]) == 2
    assert "8 samples per step" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_says_so_first() -> None:
    """With the sentence of the answer, and by a strategy too."""

    def start(*words: str) -> str:
        question = ["explain", "Qwen2.5-7B", "--gpus", "1x24GB", "--offline", *words]
        return " ".join(CliRunner().invoke(program, question).output.split())[:300]

    assert "checkpointing Nothing fits. The closest plan, zero3-nvme, needs " in start("--ram", "64GB")
    assert "GiB of NVMe per node (--nvme). " in start("--ram", "64GB")
    assert re.search(
        r"checkpointing This plan does not fit\. It needs [\d.]+ GiB per GPU \([\d.]+ available\)\. ",
        start("--strategy", "zero3"),
    )
    assert "fit" not in start("--ram", "512GB").partition(" Evidence")[0]


def test_the_rows_of_a_section_add_up_and_a_page_has_the_share_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Also the row of the small parts, each of which is below 1 %."""
    question = ["explain", "Qwen2.5-7B", "--gpus", "4xRTX4090", "--offline"]
    assert run(question) == 0
    for section in capsys.readouterr().out.partition("Rates")[0].split("\n\n")[1:4]:
        rows = re.findall(r"^ (\S.*?)  +[\d.]+ (?:GiB|m?s) +<?(\d+) %", section, re.MULTILINE)
        assert len(rows) > 4 and sum(int(share) for _, share in rows) == 100, section
        for name, share in rows:
            if "smaller" not in name:
                assert run([*question, name]) == 0
                assert f"\n {share} % of " in capsys.readouterr().out, name


def test_the_page_of_a_part_names_its_plan() -> None:
    """And what the plan lacks, if it does not fit."""
    assert re.search(r"^ Plan: Qwen/Qwen2\.5-14B, ZeRO-3, micro batch \d", printed("gradients"), re.MULTILINE)
    assert re.search(r"^ Plan: Qwen/Qwen2\.5-14B, ZeRO-3, micro batch \d", printed("time"), re.MULTILINE)
    question = ["explain", "Qwen2.5-7B", "--gpus", "1x24GB", "--offline", "--strategy", "zero3"]
    page = CliRunner().invoke(program, [*question, "gradients"]).output
    assert " This plan does not fit. It needs " in page


def test_a_long_formula_is_in_symbols_with_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are there too; a short one stays in words."""
    monkeypatch.setenv("COLUMNS", "80")
    page = printed("matrix products")
    assert "= n x sum(launched x max(2 x rows x (inner + tile) x columns / R, " in page
    assert re.search(r"^ rows +rows of the left matrix: ", page, re.MULTILINE)
    assert re.search(r"^ tile +\d+ +additions that cost ", page, re.MULTILINE)
    assert "= micro batches of a step x bytes moved " in printed("elementwise operations")
    monkeypatch.setenv("COLUMNS", "40")
    assert re.search(r"^ +[\d,]+ +[\d,]+ +[\d,]+ +[\d.]+ m?s$", printed("matrix products"), re.MULTILINE)


def test_no_two_rates_have_one_row_or_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The links of all ranks and of a node's have names of their own."""
    question = ["explain", "Qwen2.5-72B", "--gpus", "2x8xH100", "--interconnect", "200Gb/s", "--strategy", "zero3"]
    assert run([*question, "--set", "zero_hpz_partition_size=8", "--offline", "--details"]) == 0
    rates = capsys.readouterr().out.partition("Rates in the formulas")[2]
    assert rates.count("bytes per second between the nodes: ") == 1
    assert rates.count("bytes per second between the GPUs of a node: ") == 1
    assert run(["explain", "Qwen2.5-7B", "--gpus", "2x24GB", "--method", "qlora", "--offline", "--details"]) == 0
    rows = re.split(r"\n (?=\d)", capsys.readouterr().out.partition("Rates in the formulas\n")[2].partition("\n\n")[0])
    assert len(rows) == len(set(rows)) > 3


def test_memory_and_time_outside_the_tensors_have_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["explain", "Qwen2.5-7B", "--gpus", "4xRTX4090", "--offline"]
    assert run([*question, "CUDA context"]) == 0
    assert "= 503,316,480" in capsys.readouterr().out
    assert run([*question, "logits"]) == 2
    assert "; the peak is not the loss, which has logits of one chunk (" in capsys.readouterr().err
    assert run([*question, "launch overhead"]) == 0
    assert re.search(r"= max\(\d+ x \(\d+ ms \+ \d+ ms\), [\d.]+ m?s\)", capsys.readouterr().out)


@pytest.mark.parametrize("risk", ["safe", "bold"])
@pytest.mark.parametrize(
    ("seq_len", "verdict"),
    [
        ("512", ""),
        ("1024", "This plan probably fits (64 %). It needs "),
        ("1100", "This plan is unlikely to fit (30 %). It needs "),
        ("1300", "This plan does not fit. It needs "),
    ],
)
def test_a_plan_that_is_not_sure_enough_to_fit_says_so(
    risk: str, seq_len: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the rule of the answer, which the risk decides."""
    question = ["explain", "Qwen2.5-0.5B", "--gpus", "1x16GB", "--strategy", "zero1", "--micro-batch", "4", "--offline"]
    question += ["--seq-len", seq_len, "--loss", "standard", "--gradient-checkpointing", "on", "--risk", risk]
    assert run(question) == 0
    page = " ".join(capsys.readouterr().out.split()).partition(" Evidence")[0]
    assert ("This plan " in page) == (verdict != "" and (risk == "safe" or "64 %" not in verdict))
    assert verdict in page or risk == "bold"


def test_an_unknown_ram_is_a_condition_as_in_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The words and the fields are those of the answer; with a known RAM there is none."""
    question = ["Qwen2.5-14B", "--gpus", "2x32GB", "--offline"]
    assert run(["explain", *question]) == 0
    condition = "This plan fits if the host has 394 GiB of RAM."
    assert condition in capsys.readouterr().out
    assert run(["explain", *question, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run([*question, "--json"])
    advised = json.loads(capsys.readouterr().out)["recommended"]
    names = ("fits", "assumed_host_bytes", "fit_probability", "verdict", "reason")
    assert [found[name] for name in names] == [advised[name] for name in names] and found["assumed_host_bytes"]
    assert run(["explain", *question, "--ram", "512GB"]) == 0
    assert "This plan fits" not in capsys.readouterr().out


def test_nothing_fits_is_said_as_by_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a plan that has some chance too."""
    question = ["Qwen2.5-14B", "--gpus", "8xH100", "--micro-batch", "1000", "--offline"]
    assert run(question) == 1
    lacks = capsys.readouterr().out.partition("Nothing fits.")[2].partition("\n model")[0]
    assert run(["explain", *question]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert f"Nothing fits. {' '.join(lacks.split())}" in page and "the probability that it fits is 28 %" in page


def test_the_headline_has_the_gpus_that_share_a_sample() -> None:
    question = ["explain", "Qwen2.5-14B", "--gpus", "8xH100", "--seq-len", "200000", "--offline"]
    page = " ".join(CliRunner().invoke(program, question).output.split())
    assert " x 2 groups of 4 GPUs = 16 samples, each sample shared by 4 GPUs (Ulysses), " in page
    page = " ".join(CliRunner().invoke(program, [*question, "--sequence-parallel-size", "8"]).output.split())
    assert "= 16 samples, each sample shared by 8 GPUs (Ulysses), " in page
    question = [
        "explain",
        "Qwen2.5-7B",
        "--gpus",
        "8xH100",
        "--micro-batch",
        "64",
        "--global-batch",
        "512",
        "--offline",
    ]
    page = " ".join(CliRunner().invoke(program, question).output.split())
    assert " x 2 groups of 4 GPUs = 512 samples, each sample shared by 4 GPUs (Ulysses), " in page


def test_a_word_of_parts_is_not_taken_for_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    """`optimizer` is a block of the configuration and the start of two parts; as a part it names the others too."""
    assert run(["explain", "Qwen2.5-7B", "--gpus", "2x24GB", "--offline", "optimizer"]) == 2
    assert "did you mean optimizer states or optimizer on the host? " in capsys.readouterr().err
    assert run(["explain", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline", "optimizer"]) == 0
    assert " Other parts of this name: optimizer states." in capsys.readouterr().out


def test_a_loss_without_logits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Qwen2.5-7B", "--gpus", "8xH100", "--loss", "fused", "--offline", "logits"]) == 2
    assert "the fused loss never has the logits of all tokens, only those of a chunk" in capsys.readouterr().err


def test_long_formulas_are_in_symbols_in_lists_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = " ".join(printed("time").split())
    assert "= n x sum(launched x max(2 x rows x (inner + tile) x columns / R, " in page
    assert "symbols: n = 16 (micro batches of a step), launched (products that are launched as one), " in page


def test_every_figure_of_the_headline_has_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    """The RAM while the model loads, the probability, and the moment of the peak."""
    question = ["explain", "Qwen2.5-14B", "--gpus", "8xH100", "--offline"]
    assert run(question) == 0
    out = capsys.readouterr().out
    assert ", 236.1 GiB of RAM per node, " in out and " loaded model  220.1 GiB  93 % " in out
    assert run([*question, "loading"]) == 0
    assert f"     = 8 x 1 x 2 x {220.1 * 2**30 / 16:,.0f}"[:18] in capsys.readouterr().out
    assert run([*question, "--micro-batch", "1000", "probability"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(" probability that it fits: 28 %\n") and " = P((1 + E) M + A + O <= memory)\n" in page
    allocated, overhead, outside = (float(re.findall(rf"^ ([\d.]+) +{each}: pred", page, re.M)[0]) for each in "MAO")
    assert allocated + overhead + outside == pytest.approx(80.3, abs=0.2)
    assert run([*question, "peak"]) == 0
    assert re.search(r"^ the loss +66\.2 GiB", capsys.readouterr().out, re.MULTILINE)


def test_less_memory_while_loading_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Qwen2.5-7B", "--gpus", "2x24GB", "--offline"]) == 0
    assert re.search(
        r"^ And [\d.]+ GiB of host RAM per node while the model loads\.$", capsys.readouterr().out, re.MULTILINE
    )


_PLAIN = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
_A100S = ("--model", "llama-3-8b", "--gpus", "8xA100-80GB", "--offline")


def test_a_file_names_what_its_plan_assumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an option names is not assumed; `auto` leaves the checkpointing to the advice, as without a file."""
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(_PLAIN))

    def page(*words: str) -> str:
        assert run(["explain", str(path), *words, *_A100S]) == 0
        return " ".join(capsys.readouterr().out.split())

    assumed = (
        "Assumed, not in the file: full fine-tuning, adamw as the optimizer, sequence 2048, standard loss, "
        "checkpointing on (--method, --optimizer, --seq-len, --loss, --gradient-checkpointing)."
    )
    assert f"Assumed, not in the file: {json.loads(page('--json'))['assumed']}." == assumed
    assert assumed in page() and assumed in page("gradients") and assumed in page("overlap_comm")
    assert "loss, checkpointing on (" not in page("--gradient-checkpointing", "on")
    chosen = page("--gradient-checkpointing", "auto")
    assert ", no gradient checkpointing " in chosen and "checkpointing off, the fastest that fits; full" in chosen
    crowded = page("--gradient-checkpointing", "auto", "--seq-len", "8192")
    assert ", gradient checkpointing " in crowded and "sequence" not in crowded.partition("Assumed")[2][:200]


def test_a_family_and_a_word_of_sections_have_all_their_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """The singular too; a family that is not at the peak says when it is there."""

    def page(*words: str, code: int = 0) -> str:
        assert run(["explain", *words]) == code
        return " ".join("".join(capsys.readouterr()).split())

    names = (["activation"], ["activations"], ["activation", "memory"])
    pages = {
        re.sub("Other parts of this name: .*?[.]", "", page(*QUESTION, *words)).replace("  ", " ") for words in names
    }
    assert len(pages) == 1
    assert re.search(r"activations: [\d.]+ GiB in \d parts of the GPU memory.* decoder layer inputs .* Plan: ", *pages)
    memory = page(*QUESTION, "memory")
    assert " of each GPU's memory, at the peak" in memory and " of host RAM per node while training" in memory
    assert page(*QUESTION, "throughput") == page(*QUESTION, "time") == page(*QUESTION, "step")
    assert " Other parts of this name: gradients of activations, " in page(*QUESTION, "gradient")
    zero2 = ("llama-3-8b", "--gpus", "8xA100-80GB", "--strategy", "zero2", "--gradient-checkpointing", "on")
    absent = page(*zero2, "--micro-batch", "1", "--offline", "activation", code=2)
    assert "a layer's backward pass, which has activations (" in absent
    assert page(*QUESTION, "optimizer_states").startswith("optimizer states: ")


def test_every_number_of_a_formula_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """And no other numbers are listed."""
    asked = ("explain", "llama-3-8b", "--gpus", "8xA100-80GB", "--offline", "--strategy", "zero1")

    def page(part: str) -> str:
        assert run([*asked, "--gradient-checkpointing", "off", part]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "(16384 + 4 + 8192 + 8192 + 28672 + 28672 + 28672 + 28672)" in page("decoder feed-forward")
    assert "moved 60 bytes of a step per updated parameter without the states: " in page("optimizer")
    assert "bytes per weight" not in page("log-softmax")
    assert "Pt'" not in page("optimizer states")
    assert "= host time of launching the optimizer step's operations that the GPU" in page("launches of the step")


def test_what_the_figures_of_a_file_leave_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `explain` of the file and of the key and by lint alike; AutoTP's overlap at every stage, and a tied head that
    the file does not name in words of its own."""
    monkeypatch.chdir(tmp_path)
    layers = {"tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": True, "vocab_parallel_lm_head": False}}
    routed = {"data_routing": {"enabled": True, "random_ltd": {"enabled": True, "random_ltd_layer_num": 1}}}
    files = {
        "tp": layers | {"zero_optimization": {"stage": 2}},
        "tied": {"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}},
        "others": {
            "hybrid_engine": {"enabled": True},
            "pipeline": {"seed_layers": True},
            "data_efficiency": {"enabled": True, **routed},
        },
        "plain": {},
    }
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4}}
    rest = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": optimizer}
    for name, config in files.items():
        Path(f"{name}.json").write_text(json.dumps(rest | config))
    question = ["--model", "Qwen2.5-1.5B", "--gpus", "4xA100-80GB", "--offline"]
    overlap = "tensor_parallel.tp_overlap_comm"
    expected = {
        "tp": {overlap},
        "tied": {"a split head"},
        "others": {"hybrid_engine.enabled", "pipeline", "data_efficiency"},
        "plain": set[str](),
    }
    for name, features in expected.items():
        assert run(["explain", f"{name}.json", *question, "--json"]) == 0
        left_out = json.loads(capsys.readouterr().out)["unpredicted"]
        assert left_out.keys() == features
        assert run(["explain", f"{name}.json", *question]) == 0
        assert " ".join(capsys.readouterr().out.split()).count("Left out: ") == len(features)
        run(["lint", f"{name}.json", *question, "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert sum(each["code"] == "DS906" for each in findings) == len(features)
    run(["explain", "tp.json", overlap, *question])
    assert "run beside the gradients of weights" in " ".join(capsys.readouterr().out.split())


def test_a_part_that_is_not_at_the_peak_is_named_with_its_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gradients appear after the loss; at the peak they are 0 without accumulation."""
    path = tmp_path / "ds_config.json"
    sizes = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    path.write_text(json.dumps({**sizes, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    assert run(["explain", str(path), "gradients", "--model", "llama-3-8b", "--gpus", "8xA100-80GB", "--offline"]) == 2
    error = capsys.readouterr().err
    assert (
        "the peak is not the end of the backward pass, which has gradients (" in error and "did you mean" not in error
    )


def test_the_list_subtracts_what_is_overlapped(capsys: pytest.CaptureFixture[str]) -> None:
    """The formula has the whole time of a part."""
    asked = ["explain", "llama-3-8b", "--gpus", "2xA100-80GB", "--strategy", "zero2", "time", "--offline"]
    assert run(asked) == 0
    part = capsys.readouterr().out.partition(" launch overhead ")[2].partition("source:")[0]
    assert re.search(r"s - .*s \(overlapped\) = \d+ ms$", part, re.MULTILINE)


@pytest.mark.parametrize("strategy", ["fsdp", "FSDP"])
def test_a_key_of_deepspeed_is_no_setting_of_plain_pytorch(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In any spelling of its name."""
    question = {"gpus": "2x24GB", "offline": True, "strategy": strategy}
    asked = ["explain", "Qwen2.5-0.5B", "--gpus", "2x24GB", "--offline", "--strategy", strategy]
    assert run([*asked, "--set", "reduce_bucket_size=2e8"]) == 2
    assert "reduce_bucket_size is a key of DeepSpeed's configuration; leave it out" in capsys.readouterr().err
    with pytest.raises(WorkloadError, match="reduce_bucket_size is a key"):
        estimate("Qwen2.5-0.5B", settings={"reduce_bucket_size": 200_000_000}, **question)  # type: ignore[arg-type]
    assert run([*asked, "--set", "hybrid_shard_size=1"]) == 0
    assert run(asked) == 0
    assert "PyTorch's FSDP, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("strategy", "settings", "obstacle"),
    [
        ("fsdp", "offload_optimizer=cpu,offload_param=cpu", ""),
        ("fsdp", "offload_optimizer=cpu", "FSDP offloads optimizer and parameters together"),
        ("fsdp", "offload_param=cpu", "FSDP offloads optimizer and parameters together"),
        ("fsdp", "offload_optimizer=nvme,offload_param=nvme", "offload to NVMe needs DeepSpeed"),
        ("torch", "offload_optimizer=cpu", "offload needs FSDP or DeepSpeed"),
    ],
)
def test_plain_pytorch_offloads_as_fsdp_does(
    strategy: str, settings: str, obstacle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["explain", "Qwen2.5-0.5B", "--gpus", "2x24GB", "--ram", "256GB", "--offline", "--strategy", strategy]
    assert run([*asked, "--set", settings]) == (2 if obstacle else 0)
    assert obstacle in capsys.readouterr().err


def test_a_plan_that_does_not_fit_names_one_that_does_and_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "Qwen2.5-7B", "--gpus", "2x24GB", "--ram", "256GB", "--offline"]
    assert run([*asked, "--strategy", "zero1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "`ds-advise Qwen2.5-7B --gpus 2x24GB --ram 256GB --offline` writes a plan that fits: zero" in out
    assert "tokens/s" not in out and out.count("86.6 GiB") == 1 + out.count("86.6 GiB of each GPU's memory")
    assert run(asked) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "writes a plan that fits" not in out and "tokens/s" in out


def test_a_part_of_no_size_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Qwen2.5-7B", "--gpus", "4xA100-80GB", "--offline", "--details"]) == 0
    assert not re.search(r"  0 (ms|s) +<1 %", capsys.readouterr().out)


def test_each_tensor_of_the_loss_is_named_in_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "Qwen2.5-0.5B", "--gpus", "2x80GB", "--offline", "--loss", "standard", "--details"]
    assert run(asked) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in ("log-softmax", "gradient of log-softmax", "gradient of logits"):
        assert f"bytes per element of the {name} x" in out


def test_the_name_of_the_optimizer_proposes_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("adam", "AdamW"):
        assert run(["explain", "Qwen2.5-0.5B", "--gpus", "2x80GB", "--offline", name]) == 2
        assert "did you mean optimizer states or optimizer?" in capsys.readouterr().err
