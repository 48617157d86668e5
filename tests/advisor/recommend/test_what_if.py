"""What would change the answer: the same plans as in the table, and optimizers for smaller hosts."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import ds_advise
import pytest
from click.testing import CliRunner
from ds_advise.advisor.advise import answer, build_question
from ds_advise.advisor.answer.facts import further_facts
from ds_advise.advisor.cli.advise import advise
from ds_advise.advisor.render.answer import answer_document
from ds_advise.advisor.text.units import rate, whole_gib
from ds_advise.estimators.memory.fit_probability import host_bytes_to_fit

from tests.helpers import printed_document


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen2.5-14B", {"gpus": "2x32GB", "ram": "64GB"}),
        ("Qwen2.5-7B", {"gpus": "2xRTX4090", "ram": "64GB"}),
        ("Llama-3.1-8B", {"gpus": "1xRTX4090", "ram": "64GB", "global_batch": 32}),
    ],
)
def test_more_ram_runs_the_plan_that_the_table_shows_without_it(model: str, options: dict[str, Any]) -> None:
    """Strategy and speed are equal; a change of loss or micro batch is said."""
    found = answer(build_question(model, **options))
    assert found.recommended is None
    rows = {step.strategy: step.candidate for step in found.ladder if step.candidate is not None}
    larger = [change for change in found.changes if re.fullmatch(r"--ram \d+GiB", change.flags)]
    assert larger
    for change in larger:
        strategy, speed = re.match(r"fits: (\S+), ([\d,.]+) tokens/s", change.outcome).groups()  # type: ignore[union-attr]
        shown = rows[strategy]
        assert shown.fit.limit == "host" and shown.fit.gpu_suffices
        assert speed == rate(shown.tokens_per_s) or "loss" in change.outcome or "micro batch" in change.outcome
        need = int(re.search(r"\d+", change.flags)[0])  # type: ignore[index]
        again = answer(build_question(model, **{**options, "ram": f"{need}GiB"})).recommended
        assert again is not None and again.strategy == strategy and rate(again.tokens_per_s) == speed


@pytest.mark.parametrize("gpus", ["4xRTX4090", "8xRTX4090"])
def test_plain_pytorch_that_alone_fits_is_named_first(gpus: str) -> None:
    """FSDP-QLoRA. The question without `--sharding fsdp` is about DeepSpeed, so no plan of it fits."""
    asked: dict[str, Any] = {"gpus": gpus, "method": "qlora", "offline": True}
    found = ds_advise.advise("Llama-3.1-70B", **asked)
    plain = found.pytorch_baseline
    assert not found.fits and found.recommended is None and found.strategy is None
    assert plain is not None and plain.fit.fits and plain.device_bytes < found.question.cluster.gpu.memory_bytes
    first = next(iter(found.changes))
    assert first.flags == "--sharding fsdp" and first.outcome.startswith(f"fits: fsdp, {rate(plain.tokens_per_s)} ")
    verdict = "No DeepSpeed plan fits; PyTorch's FSDP does."
    assert verdict in str(found) and "--emit accelerate writes" in " ".join(str(found).split())

    wanted = ds_advise.advise("Llama-3.1-70B", sharding="fsdp", **asked)
    assert wanted.fits and wanted.strategy == "fsdp" and wanted.ds_config is None
    text = str(wanted)
    assert wanted.tokens_per_second == plain.tokens_per_s and verdict in text
    assert f"\n speed     {rate(plain.tokens_per_s)} tokens/s" in text and "\n> fsdp  " in text
    assert "bnb_4bit_quant_storage" in text and "--emit accelerate writes the file that starts it" in text
    assert "What would make DeepSpeed fit" in text and "--verify" not in text and wanted.deepspeed_estimate is None
    assert all(change.flags != "--sharding fsdp" for change in wanted.changes)
    words = f"Llama-3.1-70B --gpus {gpus} --method qlora --offline --no-write --quiet".split()
    codes = [CliRunner().invoke(advise, [*words, *more], standalone_mode=False) for more in ([], ["--sharding=fsdp"])]
    assert [done.return_value for done in codes] == [1, 0]


def test_another_loss_is_named() -> None:
    """LoRA has room for the standard loss, which the table does not show."""
    found = answer(build_question("Qwen2.5-7B", gpus="2xRTX4090", ram="64GB"))
    assert found.question.workload.loss == "fused"
    (lora,) = (change for change in found.changes if change.flags == "--method lora")
    assert lora.outcome.endswith(", standard loss")


def test_changes_of_less_ram_come_first_in_each_precision() -> None:
    """The answer depends on the RAM. With fp16 bf16 is one of those changes, and displaces none."""
    for precision in ("bf16", "fp16"):
        options = {"gpus": "1xA100-80GB", "objective": "dpo", "precision": precision}
        found = answer(build_question("Qwen2.5-7B", **options))
        assert found.recommended is not None and found.recommended.fit.assumed_host_bytes
        flags = [change.flags for change in found.changes if not change.assumed]
        ram = next(place for place, each in enumerate(flags) if each.startswith("--ram"))
        assert {"--precompute-ref-log-probs", "--method lora"} <= {*flags[:ram]}, precision


def test_more_ram_is_offered_only_where_it_is_faster_than_less() -> None:
    """The RAM of a faster plan may lead to the plan of the smaller amount, where that plan is not sure to fit."""
    found = answer(build_question("Qwen2.5-14B", gpus="16x32GB", ram="32GB", method="lora"))
    outcomes = [each.outcome for each in found.changes if re.fullmatch(r"--ram \S+", each.flags)]
    assert outcomes and len({*outcomes}) == len(outcomes)


def test_less_ram_that_only_unpins_the_buffers_is_said() -> None:
    """The strategy of the answer and of the change are the same, so that nothing else would tell them apart."""
    found = answer(build_question("Qwen2.5-14B", gpus="2x32GB"))
    (smaller,) = (each for each in found.changes if each.flags == "--ram 312GiB")
    again = answer(build_question("Qwen2.5-14B", gpus="2x32GB", ram="312GiB")).recommended
    assert found.recommended is not None and found.recommended.plan.pin_memory
    assert again is not None and again.strategy == found.recommended.strategy and not again.plan.pin_memory
    assert "pin_memory false" in smaller.outcome
    assert not any("pin_memory" in each.outcome for each in found.changes if each.flags == "--method lora")


def test_ram_that_leaves_the_offload_pageable_is_said_with_the_ram_that_pins_it() -> None:
    """Of a change, of the answer to it, and of its own changes."""
    asked: dict[str, Any] = {"model": "Llama-3.1-8B", "gpus": "1xRTX4090", "offline": True}
    (small,) = (each for each in answer(build_question(**asked, ram="64GB")).changes if each.flags.startswith("--ram"))
    assert small.outcome.endswith("pin_memory false")
    found = ds_advise.advise(**asked, ram=small.flags.split()[1])
    assert found.recommended is not None and not found.recommended.plan.pin_memory
    assert re.search(r"host RAM +[\d.]+ of [\d.]+ GiB, pin_memory false\n", str(found))
    (more,) = (each for each in found.changes if each.flags.startswith("--ram"))
    again = ds_advise.advise(**asked, ram=more.flags.split()[1])
    assert more.outcome.endswith("pin_memory true") and more.tokens_per_second == again.tokens_per_second
    assert again.recommended is not None and again.recommended.plan.pin_memory and "pin_memory" not in str(again)


def test_smaller_optimizer_states_are_offered_where_the_answer_hangs_on_the_ram() -> None:
    """Only if a smaller size of host suffices, at nearly the same speed; a plan on the GPU alone needs none."""
    asked: dict[str, Any] = {"gpus": "1xH100", "global_batch": "no-accumulation"}
    found = answer(build_question("Qwen2.5-7B", **asked))
    chosen, offered = found.recommended, {each.flags: each.outcome for each in found.changes if not each.assumed}
    assert chosen is not None and chosen.fit.assumed_host_bytes
    adapters, *rest = [*offered]
    first = [flags for flags in rest if not flags.startswith("--method")][:2]
    assert adapters == "--method lora" and first == ["--optimizer adamw_8bit", "--optimizer-dtype bf16"]
    for flags in first:
        name, value = flags[2:].replace("-", "_").split(" ")
        best = answer(build_question("Qwen2.5-7B", **asked, **{name: value})).recommended
        assert best is not None and best.tokens_per_s > chosen.tokens_per_s / 1.15
        need = whole_gib(host_bytes_to_fit(best.memory.host_bytes_per_node))
        assert need < 128 < whole_gib(chosen.memory.host_bytes_per_node)
        assert offered[flags].endswith(f"{need} GiB RAM") and rate(best.tokens_per_s) in offered[flags]
    alone = answer(build_question("Qwen2.5-7B", gpus="8xH100"))
    assert not any("optimizer" in change.flags for change in alone.changes)


@pytest.mark.parametrize(
    ("model", "gpus"), [("Llama-3.1-8B", "1xRTX4090"), ("Llama-3.1-8B", "2x24GB"), ("Qwen2.5-14B", "2x32GB")]
)
def test_adapters_come_first_with_their_ram_where_the_answer_hangs_on_the_ram(model: str, gpus: str) -> None:
    found = answer(build_question(model, gpus=gpus, offline=True))
    first = next(change for change in found.changes if not change.assumed)
    again = answer(build_question(model, gpus=gpus, method="lora", offline=True)).recommended
    assert first.flags == "--method lora" and again is not None
    assert f"{whole_gib(again.ram_to_fit)} GiB RAM" in first.outcome and "needs" not in first.outcome
    printed = " ".join(" ".join(printed_document(answer_document(found), 80).split()).split())
    assert "--method lora" in printed.partition("What would change the answer")[2]


def test_an_optimizer_that_runs_on_the_host_is_offered_where_the_asked_one_does_not() -> None:
    found = answer(build_question("Llama-3.1-8B", gpus="1xRTX4090", optimizer="adamw_8bit", offline=True))
    first = next(iter(found.changes))
    assert found.recommended is None
    assert first.flags == "--optimizer adamw" and first.outcome.startswith("fits: zero3-offload, ")
    usual = answer(build_question("Llama-3.1-8B", gpus="1xRTX4090", seq_len=10**6, offline=True))
    assert not any(change.flags == "--optimizer adamw" for change in islice(usual.changes, 3))


def test_a_limit_of_the_ram_that_no_option_states_is_named() -> None:
    """Grace's: the ratio in the table would be of an unnamed amount."""
    found = answer(build_question("Qwen2.5-32B", gpus="1xGH200", offline=True))
    printed = " ".join(printed_document(answer_document(found), 80).split())
    assert "x RAM" in printed and "RAM: 480.0 GiB, the most of a host of GH200-96GB" in printed
    asked = answer(build_question("Qwen2.5-32B", gpus="1xGH200", ram="400GiB", offline=True))
    assert "the most of a host" not in " ".join(printed_document(answer_document(asked), 80).split())


def test_a_length_beyond_the_models_positions_is_noted_whether_or_not_it_fits() -> None:
    for length in (1_048_576, 262_144):
        found = ds_advise.advise("Qwen2.5-7B", gpus="1xH100" if length > 10**6 else "8xH100", seq_len=length)
        assert found.fits == (length < 10**6)
        note = "The model's configuration states 131,072 positions; longer sequences need RoPE scaling."
        assert note in found.to_dict()["doubts"] and note.removesuffix(".") in " ".join(str(found).split())


def test_more_room_on_a_drive_is_that_of_the_folder_that_was_given() -> None:
    """Without one the folder is a placeholder."""
    for nvme, folder in ((None, "PATH"), ("/data:50GB", "/data")):
        changes = ds_advise.advise(
            "Llama-3.1-70B", gpus="1x24GB", ram="32GB", nvme=nvme, offline=True, deepspeed_estimate=False
        ).changes
        assert f" --nvme {folder}:" in next(iter(changes)).flags


def test_flash_attention_is_offered_where_the_class_would_run_eager() -> None:
    """Gemma 2's scores are soft-capped, which sdpa cannot do. gpt-oss has sinks, which the flash-attn package cannot
    do, and Turing is too old for it."""
    asked: dict[str, Any] = {"gpus": "8xH100", "seq_len": 8192}
    found = answer(build_question("gemma-2-27b", **asked))
    assert found.recommended is not None and found.recommended.strategy == "zero3-offload"
    change = next(change for change in found.changes if not change.assumed)
    assert change.flags == "--attention flash" and change.strategy == "zero3"
    facts = {fact.title: fact.words for fact in further_facts(found)}
    assert ", attention eager" in facts["training"]
    for model, gpus in (("gpt-oss-20b", "8xH100"), ("Qwen2.5-7B", "8xH100"), ("gemma-2-2b", "8xT4")):
        others = answer(build_question(model, gpus=gpus)).changes
        assert "--attention flash" not in [change.flags for change in islice(others, 3)], model
    asked_for = answer(build_question("gemma-2-27b", **asked, attention="flash"))
    assert ", attention flash" in {fact.title: fact.words for fact in further_facts(asked_for)}["training"]
    plain = answer(build_question("Qwen2.5-7B", gpus="8xH100"))
    assert "attention" not in {fact.title: fact.words for fact in further_facts(plain)}["training"]


def test_the_largest_gain_is_in_the_short_list_and_no_ram_below_that_of_the_loading_is_named() -> None:
    """A mixture of many experts gains the most from AutoEP, and its first rank loads the whole checkpoint."""
    found = answer(build_question("deepseek-v3", gpus="64x8xH100"))
    assert found.recommended is not None
    loading = found.recommended.memory.host_loading_bytes_per_node
    assert loading > found.recommended.memory.host_training_bytes_per_node
    kinds = [change for change in found.changes if not change.assumed]
    assert kinds[0].flags == "--experts autoep"
    [none_fits] = [change for change in kinds if change.outcome == "nothing fits"]
    assert none_fits.flags == "--ram 1TB"
