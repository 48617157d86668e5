"""A shell's completions know commands, options, models and GPUs."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete
from ds_advise.advisor.cli.main import program


def completed(line: str) -> list[str]:
    """What is offered for the last word of a line."""
    *words, last = line.split(" ")
    shell = BashComplete(program, {}, "ds-advise", "_DS_ADVISE_COMPLETE")
    return [item.value for item in shell.get_completions(words, last)]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("comp", "compare"),
        ("qwen2.5-14", "Qwen2.5-14B"),
        ("explain llama-3.1-8", "Llama-3.1-8B"),
        ("Qwen2.5-14B --gpus a", "auto"),
        ("Qwen2.5-14B --gpus 8xH100-S", "8xH100-SXM5"),
        ("compare zero2 zero3 --model gpt2 --gpus RTX-409", "RTX-4090"),
        ("Qwen2.5-14B --meth", "--method"),
        ("Qwen2.5-14B --method q", "qlora"),
        ("Qwen2.5-14B --link nvlink,pcie4", "nvlink,pcie4x8"),
        ("Qwen2.5-14B --host gh", "gh200"),
    ],
)
def test_known_names_are_completed(line: str, offered: str) -> None:
    assert offered in completed(line)


@pytest.mark.parametrize("line", ["./mod", "explain /tmp/mod", "Qwen2.5-14B --gpus 8xnonsense", "zzz"])
def test_a_path_or_an_unknown_name_has_no_names(line: str) -> None:
    assert completed(line) == []


def test_completions_are_valid_gpus() -> None:
    """Every GPU that is offered names itself."""
    from ds_advise.advisor.question.cluster import parse_cluster

    offered = completed("gpt2 --gpus 2x")
    assert len(offered) > 50
    for spec in offered:
        assert parse_cluster(spec).gpu.name.replace(" ", "-") == spec.removeprefix("2x")
