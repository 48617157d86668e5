"""What would change the answer: the same plans as in the table, and optimizers for smaller hosts."""

from __future__ import annotations

import re
from typing import Any

import ds_advise
import pytest
from click.testing import CliRunner
from ds_advise.advisor.advise import answer, build_question
from ds_advise.advisor.cli.advise import advise
from ds_advise.advisor.text.units import rate, whole_gib
from ds_advise.estimators.memory.fit_probability import host_bytes_to_fit


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


def test_less_ram_that_only_unpins_the_buffers_is_said() -> None:
    """The strategy of the answer and of the change are the same, so that nothing else would tell them apart."""
    found = answer(build_question("Qwen2.5-14B", gpus="2x32GB"))
    (smaller,) = (each for each in found.changes if each.flags == "--ram 312GiB")
    again = answer(build_question("Qwen2.5-14B", gpus="2x32GB", ram="312GiB")).recommended
    assert found.recommended is not None and found.recommended.plan.pin_memory
    assert again is not None and again.strategy == found.recommended.strategy and not again.plan.pin_memory
    assert "pin_memory false" in smaller.outcome
    assert not any("pin_memory" in each.outcome for each in found.changes if each.flags == "--method lora")


def test_smaller_optimizer_states_are_offered_where_the_answer_hangs_on_the_ram() -> None:
    """Only if a smaller size of host suffices, at nearly the same speed; a plan on the GPU alone needs none."""
    asked: dict[str, Any] = {"gpus": "1xH100", "global_batch": "no-accumulation"}
    found = answer(build_question("Qwen2.5-7B", **asked))
    chosen, offered = found.recommended, {each.flags: each.outcome for each in found.changes if not each.assumed}
    assert chosen is not None and chosen.fit.assumed_host_bytes
    first = [*offered][:2]
    assert first == ["--optimizer adamw_8bit", "--optimizer-dtype bf16"]
    for flags in first:
        name, value = flags[2:].replace("-", "_").split(" ")
        best = answer(build_question("Qwen2.5-7B", **asked, **{name: value})).recommended
        assert best is not None and best.tokens_per_s > chosen.tokens_per_s / 1.15
        need = whole_gib(host_bytes_to_fit(best.memory.host_bytes_per_node))
        assert need < 128 < whole_gib(chosen.memory.host_bytes_per_node)
        assert offered[flags].endswith(f"{need} GiB of RAM") and rate(best.tokens_per_s) in offered[flags]
    alone = answer(build_question("Qwen2.5-7B", gpus="8xH100"))
    assert not any("optimizer" in change.flags for change in alone.changes)
