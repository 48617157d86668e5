"""`ds-advise compare`: true differences only, figures that add up, and one line for what cannot be read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import comparison_context
from ds_advise.advisor.answer.comparison import Comparison, compare
from ds_advise.advisor.answer.config_settings import ConfigSettings
from ds_advise.advisor.answer.differences import differences
from ds_advise.advisor.cli.main import run as run_here
from ds_advise.advisor.document.blocks import Table
from ds_advise.advisor.question.file_question import read_file_question
from ds_advise.advisor.render.comparison import comparison_document
from ds_advise.advisor.search.search import predict_all
from ds_advise.advisor.text.labels import checkpointing_label
from ds_advise.ds_configs.config_keys import CONFIG_KEYS
from ds_advise.ds_configs.config_keys import meaning as meaning_of
from ds_advise.ds_configs.emit import ds_config
from ds_advise.estimators.plan import STRATEGIES
from ds_advise.validate.lint import DeepSpeedFacts, load_facts

from tests.helpers import printed_document

WHERE: dict[str, Any] = {"gpus": "4xA100-80GB", "ram": "512GB", "nvme": "/nvme:4TB", "offline": True}
FILES = {
    "offload": {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "allgather_bucket_size": 2e8},
    },
    "zero3": {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_max_live_parameters": 1e8},
    },
    "fp32": {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    },
}


@pytest.fixture(scope="module")
def facts() -> DeepSpeedFacts:
    return load_facts()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, config in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    return {name: str(tmp_path / f"{name}.json") for name in FILES}


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3} | keys}


def adam(**arguments: Any) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5} | arguments}}


CPU = {"offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"gradient_clipping": 1.0, "wall_clock_breakdown": False}),
        (
            zero(),
            zero(reduce_bucket_size=500000000, sub_group_size=1e9, overlap_comm=True, stage3_max_live_parameters=1e9),
        ),
        (zero(prefetch_bucket_size=5e7, max_live_parameters=7), zero(stage3_max_live_parameters=7)),
        ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
        (zero(cpu_offload=True, cpu_offload_param=False), zero(offload_optimizer={"device": "cpu"})),
        (zero(stage3_gather_fp16_weights_on_model_save=True), zero(gather_16bit_weights_on_model_save=True)),
        ({"zero_optimization": True}, {"zero_optimization": {"stage": 1}}),
        (zero(overlap_comm="true", contiguous_gradients=1.0, reduce_bucket_size="500000000"), zero()),
        ({"fp16": {"enabled": False, "loss_scale": 128}}, {}),
        ({"aio": {"block_size": 1048576}, "activation_checkpointing": {"profile": False}}, {"aio": {}}),
        ({"train_micro_batch_size_per_gpu": 1, "train_batch_size": "auto"}, {"train_micro_batch_size_per_gpu": 1}),
        ({"steps_per_print": float("nan")}, {"steps_per_print": float("nan")}),
        ({"train_batch_size": 8, "gradient_accumulation_steps": 1}, {"train_batch_size": 8}),
        (adam(betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0), adam()),
        (zero(**CPU) | adam(betas=[0.9, 0.999], weight_decay=0), zero(**CPU) | adam()),
        (adam(torch_adam=True, weight_decay=0.01), adam(torch_adam=True)),
    ],
)
def test_equivalent_settings_are_not_differences(
    facts: DeepSpeedFacts, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Defaults, older names of keys, texts and floats that a class converts, dropped `auto`, blocks that are off."""
    assert differences(ConfigSettings(first, facts), ConfigSettings(second, facts)) == ()
    assert differences(ConfigSettings(second, facts), ConfigSettings(first, facts)) == ()


NVME = zero(offload_param={"device": "nvme"})
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (zero(), {"zero_optimization": {"stage": 2}}, "zero_optimization.stage", "3 file, 2 file, acts"),
    (zero(), zero(overlap_comm=False), "zero_optimization.overlap_comm", "True default, False file, acts"),
    (
        zero(),
        zero(reduce_bucket_size="auto"),
        "zero_optimization.reduce_bucket_size",
        "500000000 default, auto auto, acts",
    ),
    ({}, {"aio": {"queue_depth": 32}}, "aio.queue_depth", "8 default, 32 file, idle"),
    ({}, {"aio": {"queue_depth": 32}, **NVME}, "aio.queue_depth", "8 default, 32 file, acts"),
    (adam(), adam(weight_decay=0.01), "optimizer.params.weight_decay", "0.0 default, 0.01 file, acts"),
    (
        adam(torch_adam=True),
        adam(torch_adam=True, weight_decay=0.1),
        "optimizer.params.weight_decay",
        "0.01 default, 0.1 file, acts",
    ),
    (
        {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1},
        {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
        "gradient_accumulation_steps",
        "None unset, 1 file, acts",
    ),
    ({"made_up": 1}, {}, "made_up", "1 file, None unset, acts"),
]


@pytest.mark.parametrize(("first", "second", "path", "expected"), DIFFERENT)
def test_differences_are_found_with_both_values(
    facts: DeepSpeedFacts, first: dict[str, Any], second: dict[str, Any], path: str, expected: str
) -> None:
    """The value that DeepSpeed takes, where it comes from, and whether it does anything at the stages of the two."""
    found = {each.key: each for each in differences(ConfigSettings(first, facts), ConfigSettings(second, facts))}
    ours, theirs, acts = found[path].first, found[path].second, found[path].acts
    message = f"{ours.value} {ours.origin}, {theirs.value} {theirs.origin}, {'acts' if acts else 'idle'}"
    assert message == expected


def test_every_key_with_a_meaning_exists(facts: DeepSpeedFacts) -> None:
    """Every phrase belongs to an existing key."""
    for path in CONFIG_KEYS:
        owner, _, name = path.rpartition(".")
        block = facts.block(owner)
        free = owner in ("optimizer.params", "scheduler.params", "expert_parallel")  # arguments, or not read here
        assert free or (block is not None and name in block.names()), path


def test_a_file_written_for_a_strategy_does_what_the_strategy_does(tmp_path: Path) -> None:
    """Written, read back and compared, every strategy is equal to itself, in its settings and in its figures."""
    known = comparison_context("Qwen2.5-1.5B", **{**WHERE, "micro_batch": 2, "accumulation": 3})
    model, workload, cluster = known.question.model, known.question.workload, known.question.cluster
    ladder, _ = predict_all(known.question)
    assert [step.strategy for step in ladder] == list(STRATEGIES)
    for step in ladder:
        assert step.candidate is not None
        file = tmp_path / f"{step.strategy}.json"
        file.write_text(json.dumps(ds_config(step.candidate.plan, model, workload, cluster, flavor="hf")))
        comparison = compare(str(file), step.strategy, known)
        assert comparison.differences == (), step.strategy
        assert comparison.sides[0].candidate == comparison.sides[1].candidate


def test_model_and_gpus_tell_what_the_differences_do(files: dict[str, str]) -> None:
    """`auto` has its numbers, both sides have figures, and they are the closed form's for the plans that the files
    describe."""
    comparison = compare(files["offload"], files["zero3"], comparison_context("Qwen2.5-7B", **WHERE))
    first, second = comparison.sides[0].candidate, comparison.sides[1].candidate
    assert first is not None and second is not None
    assert (first.strategy, second.strategy) == ("zero2-offload", "zero3")
    advised = first.plan.micro_batch_size
    assert advised > 2 == second.plan.micro_batch_size
    found = {difference.key: difference for difference in comparison.differences}
    assert found["zero_optimization.reduce_bucket_size"].second.value == 3584**2
    assert found["train_micro_batch_size_per_gpu"].first.value == advised
    assert (
        comparison.sides[0].filled.startswith(f"`auto` filled with micro batch {advised},")
        and not comparison.sides[1].filled
    )
    assert "train_batch_size" not in found  # it is derived, and no file has it
    assert "bf16.enabled" not in found
    filled = compare(files["offload"], files["zero3"], comparison_context("Qwen2.5-7B", **{**WHERE, "micro_batch": 2}))
    assert "train_micro_batch_size_per_gpu" not in {difference.key for difference in filled.differences}


def test_figures_and_charts_stand_before_the_keys(files: dict[str, str]) -> None:
    """Meanings of keys are printed only where there are no figures."""
    meaning = meaning_of("train_micro_batch_size_per_gpu").partition(":")[0]
    text = text_of(compare(files["offload"], files["zero3"], comparison_context("Qwen2.5-7B", **WHERE)))
    places = [text.index(part) for part in ("tokens/s", "Memory per GPU", "Time, ms", "Keys that differ", "Evidence")]
    assert places == sorted(places) and meaning not in text and "ds-advise explain KEY" in text
    text = text_of(compare(files["offload"], files["zero3"]))
    assert meaning in text and "explain KEY" not in text


def test_features_without_figures_are_named(tmp_path: Path, files: dict[str, str]) -> None:
    """Of the side that has it, where there are figures."""
    written = tmp_path / "zenflow.json"
    offload = FILES["offload"]["zero_optimization"] | {"zenflow": {"topk_ratio": 0.05}}  # type: ignore[operator]
    written.write_text(json.dumps(FILES["offload"] | {"zero_optimization": offload}))
    text = text_of(compare(files["offload"], str(written), comparison_context("Qwen2.5-1.5B", **WHERE)))
    assert "B has ZenFlow: predictions are for plain offload" in text and "A has" not in text
    assert "has ZenFlow" not in text_of(compare(files["offload"], str(written)))


def text_of(comparison: Comparison) -> str:
    return printed_document(comparison_document(comparison))


def test_no_side_is_better_where_the_printed_figures_are_equal() -> None:
    """On one GPU, stage 1 takes 0.01 GiB less than stage 0, and both are printed as 11.7."""
    context = comparison_context("Qwen2.5-0.5B", gpus="A100-80GB", micro_batch=1, offline=True)
    text = text_of(compare("ddp", "zero1", context))
    assert re.search(r"^ GPU GiB +(\S+) +\1 +=$", text, re.MULTILINE)
    equal = re.findall(r"^ (\S.*?)  .* =$", text, re.MULTILINE)
    assert "the same in both" in equal and "other" not in equal


def test_verdicts(files: dict[str, str]) -> None:
    """Who fits and who is faster, in words."""

    def verdict(first: str, second: str, **where: Any) -> str:
        return text_of(compare(first, second, comparison_context("Qwen2.5-7B", **{**WHERE, **where}))).splitlines()[0]

    assert verdict("zero2-offload", "zero3").startswith(" Both fit; B is ")
    assert verdict("zero3", "zero2-offload").startswith(" Both fit; A is ")
    assert verdict("ddp", "zero3", gpus="4x48GB").startswith(" Only B fits; A: needs ")
    assert verdict("ddp", "zero1", gpus="2x16GB").startswith(" Neither fits: A needs ")
    assert verdict("zero3", "zero3") == " Both fit at about the same speed."
    on_drive = text_of(compare("zero3-offload", "zero3-nvme", comparison_context("Qwen2.5-7B", **WHERE)))
    assert re.search(r"NVMe GiB per node +- +(\S+) +\+\1 +A\n", on_drive)
    alone = text_of(compare(files["offload"], files["offload"])).splitlines()
    assert alone[0] == " Both do the same."
    assert "--model" in text_of(compare(files["offload"], files["zero3"]))


HOSTILE = {
    "deep": '{"a":' * 900 + "1" + "}" * 900,
    "huge number": '{"train_batch_size": 1' + "0" * 400 + "}",
    "infinite": '{"gradient_clipping": 1e999, "steps_per_print": NaN}',
    "control": '{"\\u001b[31m": "\\u0007\\n"}',
    "long": json.dumps({"k" * 5000: "v" * 5000}),
    "list": '{"zero_optimization": {"stage": [3]}, "fp16": [{}]}',
    "dots": '{"zero_optimization.stage": 3, "": {"": 1}, ".": 2}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_strange_files_are_compared_or_refused_in_one_line(
    tmp_path: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """No traceback, no control character on the terminal, no line beyond it but for names."""
    file = tmp_path / "strange.json"
    file.write_text(HOSTILE[name])

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    for arguments in ([], ["--json"], ["--model", "gpt2", "--gpus", "2xA40", "--offline"]):
        code = run_here(["compare", str(file), files["zero3"], *arguments])
        out, err = capsys.readouterr()
        if "--json" in arguments and code == 0:
            json.loads(out, parse_constant=refuse)
        assert code in (0, 2) and "error of ds-advise itself" not in err, err
        assert len(err.splitlines()) == (code == 2) and "\x1b" not in out and "\x07" not in out
        if not arguments and code == 0:
            assert [line for line in out.splitlines() if len(line) > 80 and not line.startswith((" A: ", " B: "))] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.json", "zero3.json"],
        ["zero3.json", "broken.json"],
        ["zero3.json", "zero3.json", "--plot", "memory.svg"],
        ["zero2", "zero3"],
        ["zero3.json", "zero9"],
        ["zero2", "zero3-nvme", "--model", "gpt2", "--gpus", "2xA40"],
        ["zero3.json", "zero3", "--model", "gpt2", "--gpus", "2xA40", "--micro-batch", "7"],
        ["magic.json", "zero3", "--model", "gpt2", "--gpus", "2xA40"],
        ["zero2", "zero3-nvme", "--model", "llama-3.1-8b", "--method", "qlora", "--gpus", "2xA40"],
    ],
    ids=" ".join,
)
def test_impossible_comparisons_get_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(FILES["zero3"]))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "magic.json").write_text('{"optimizer": {"type": "OneBitAdam"}, "train_batch_size": 2}')
    assert run_here(["compare", *arguments, "--offline"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("ds-advise: "), err
    assert "error of ds-advise itself" not in err


def test_a_value_of_another_type_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that looks like a number has its quotes. A block that is none is one difference, marked."""
    bad = {"train_batch_size": "4", "zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}
    good = {"train_batch_size": 4, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    for name, config in (("a", bad), ("b", good)):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    assert run_here(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert 'train_batch_size "4" 4 ' in words and "offload_optimizer cpu (invalid) {...} " in words
    assert "device" not in words


def test_different_batches_stand_beside_the_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`auto` is filled as in the other file. The batch that follows from the other keys is no default."""
    fixed = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}}
    auto = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": True}}
    total = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}}
    for name, config in (("a", fixed), ("b", auto), ("c", total)):
        (tmp_path / f"{name}.json").write_text(json.dumps(config | {"zero_optimization": {"stage": 2}}))
    where = ["--model", "gpt2", "--gpus", "8xA100-80GB", "--offline"]
    for first, second, letter in (("a", "b", "B"), ("b", "a", "A")):
        assert run_here(["compare", str(tmp_path / f"{first}.json"), str(tmp_path / f"{second}.json"), *where]) == 0
        printed, said = capsys.readouterr()
        words = " ".join(printed.split())
        other = "`auto` filled as in the other file, for one script: micro batch 4, accumulation 4."
        assert f"{letter}: {other}" in words and said == ""
        assert "train differently" not in words and "Gradient checkpointing: A" not in words
    assert run_here(["compare", str(tmp_path / "a.json"), str(tmp_path / "c.json"), *where]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "They train differently: A takes 128 samples a step, B takes 32." in words
    assert "train_batch_size 128 32" in words and "128 *" not in words


def test_the_first_line_also_compares_with_checkpointing_in_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The speed without checkpointing is not that of the configuration alone."""
    auto = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}
    zeros = ({"stage": 2}, {"stage": 3, "offload_param": {"device": "cpu"}})
    paths = [str(tmp_path / f"z{zero['stage']}.json") for zero in zeros]
    for path, zero in zip(paths, zeros, strict=True):
        Path(path).write_text(json.dumps(auto | {"zero_optimization": zero}))
    where = ["--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--seq-len", "1024", "--offline"]
    assert run_here(["compare", *paths, *where, "--gradient-checkpointing", "on", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["recomputing_tokens_per_second"] == []
    assert run_here(["compare", *paths, *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recomputing_tokens_per_second"] == [side["plan"]["tokens_per_second"] for side in both["sides"]]
    assert run_here(["compare", *paths, *where]) == 0
    words = " ".join(capsys.readouterr().out.split())
    first, second = found["recomputing_tokens_per_second"]
    recomputing = f"with checkpointing on in both, A is {first / second:.2f} x as fast."
    assert re.match(rf"Both fit the GPUs; A is 1\.\d\d x as fast; {re.escape(recomputing)}", words)
    assert "Gradient checkpointing: A off, B on" in words


def test_checkpoints_in_host_ram_are_checkpointing_too(tmp_path: Path) -> None:
    """Both sides recompute, so that their own speeds are comparable. Recorded options are each file's own."""
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for stage, path in enumerate(paths, 1):
        path.write_text(json.dumps(config | {"zero_optimization": {"stage": stage}}))
    context = comparison_context("Qwen2.5-0.5B", **WHERE)
    for choice, count in (("offload", 0), ("off", 2)):
        first, second = (
            replace(read_file_question(path, {}), recorded={}, batch={"gradient_checkpointing": each})
            for path, each in zip(paths, (choice, "on"), strict=True)
        )
        comparison = compare(first, second, context)
        assert len({checkpointing_label(each.plan) for each in comparison.candidates}) == 2
        assert len(comparison.recomputing) == count


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, "Without effect at these ZeRO stages: zero_optimization.offload_param.device (of A)."),
        (
            {"offload_param": {"device": "nvme", "nvme_path": "/n"}},
            "offload_param.device cpu (no effect at stage 2) nvme",
        ),
    ],
)
def test_a_value_without_effect_at_its_stage_is_no_difference(
    tmp_path: Path, second: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other side's default, or its value, is that of its stage."""
    zeros = ({"stage": 2, "offload_param": {"device": "cpu"}}, {"stage": 3, **second})
    for name, zero_block in zip("ab", zeros, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps({"zero_optimization": zero_block}))
    assert run_here(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert expected in words and "none *" not in words


def test_a_plan_that_cannot_run_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the answer's table of strategies; the one that runs is the better one."""
    asked = ["compare", "zero2-offload", "zero3", "--model", "Qwen2.5-7B", "--gpus", "2x48GB", "--micro-batch", "4"]
    assert run_here([*asked, "--samples", "10k", "--offline"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(" Only A fits the GPUs")
    assert re.search(r"^ tokens/s +[\d,]+ +- +A$", out, re.MULTILINE)
    assert re.search(r"^ hours of the job +[\d.]+ h +- +A$", out, re.MULTILINE)


def test_the_better_side_of_a_row_is_marked_also_where_it_has_nothing() -> None:
    """Such as no RAM, or no staging of an offload."""
    document = comparison_document(compare("zero2-offload", "zero2", comparison_context("Qwen2.5-1.5B", **WHERE)))
    rows = [row.cells for block in document.blocks if isinstance(block, Table) for row in block.rows]
    judged = [cells for cells in rows if len(cells) == 5 and getattr(cells[4], "text", "") in ("A", "B")]
    assert any(cells["AB".index(cells[4].text) + 1].text == "-" for cells in judged)
    for cells in judged:
        assert [cells[1].style, cells[2].style] == ["good" * (cells[4].text == side) for side in "AB"], cells


def test_auto_is_filled_as_in_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file has one plan in both commands, and an option decides for both."""
    auto = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": True}}
    paths = [str(tmp_path / f"z{stage}.json") for stage in (2, 3)]
    for stage, path in enumerate(paths, 2):
        Path(path).write_text(json.dumps(auto | {"zero_optimization": {"stage": stage}}))
    where = ["--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline"]
    for options in ([], ["--micro-batch", "1"], ["--gradient-checkpointing", "on"]):
        assert run_here(["check", *paths, *where, *options]) == 0
        checked = re.findall(r"; ([\d,]+) tokens/s", capsys.readouterr().out)
        assert run_here(["compare", *paths, *where, *options]) == 0
        printed = capsys.readouterr().out
        assert re.findall(r"^ tokens/s +(\S+) +(\S+)", printed, re.MULTILINE) == [tuple(checked)]
        assert re.search(r"^ gradient checkpointing +(on|off) +(on|off)$", printed, re.MULTILINE)
        assert printed.startswith(" Both fit the GPUs")  # the RAM is not known


def test_identical_files_have_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that differ in their form alone do the same."""
    config = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(config))
    for options in ([], ["--model", "Qwen2.5-1.5B", "--gpus", "2x80GB", "--offline"]):
        assert run_here(["compare", str(first), str(first), *options]) == 0
        out = capsys.readouterr().out
        assert "The files are identical." in out and "tokens/s" not in out
    second.write_text(json.dumps(config, indent=1))
    assert run_here(["compare", str(first), str(second)]) == 0
    assert "Both do the same." in capsys.readouterr().out


def test_an_auto_that_only_the_trainer_fills_is_not_known_to_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a model, which fills it."""
    batch = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    for name, config in (
        ("a", batch | {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}),
        ("b", batch),
        ("c", batch | zero()),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    for names, says in (
        (("a", "b"), "No setting is known to differ; 2 may: `auto` on one side, which the Trainer fills."),
        (("a", "c"), "1 setting differs; 2 more may: `auto` on one side, which the Trainer fills."),
        (("b", "c"), "1 setting differs. Pass --model and --gpus to see the effect on memory and speed. "),
    ):
        assert run_here(["compare", *(str(tmp_path / f"{name}.json") for name in names)]) == 0
        assert says in " ".join(capsys.readouterr().out.split())


def test_plans_that_do_not_fit_have_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--model", "Llama-3.1-70B", "--offline", "--tokens", "1B", "--gpus"]
    for gpus, has_time in (("1x24GB", False), ("8x8xH100", True)):
        assert run_here(["compare", "zero2", "zero3", *question, gpus, "--micro-batch", "1"]) == 0
        out = capsys.readouterr().out
        assert [text in out for text in ("tokens/s", "Time, ms", "hours of the job")] == [has_time] * 3
        assert "Memory per GPU, GiB" in out


def test_every_error_of_a_refused_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by `check`; where figures are asked for, in the one line of the refusal."""
    refused = {"zero_optimization": {"stage": 7}, "bf16": {"enabled": True}, "fp16": {"enabled": True}}
    (tmp_path / "bad.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **refused}))
    (tmp_path / "good.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1}))
    names = [str(tmp_path / "bad.json"), str(tmp_path / "good.json")]
    assert run_here(["compare", *names]) == 0
    assert re.findall(r"DS\d+", capsys.readouterr().out) == ["DS020", "DS201"]
    assert run_here(["compare", *names, "--model", "gpt2", "--gpus", "1x24GB", "--offline"]) == 2
    err = capsys.readouterr().err
    assert re.findall(r"DS\d+", err) == ["DS020", "DS201"] and "ds-advise lint" in err
