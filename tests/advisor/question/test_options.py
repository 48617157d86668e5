"""One declaration per option: the commands, the Python functions, the page and the documents derive from it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click
import ds_advise
import numpy
import pytest
from ds_advise.advisor.cli.advise import advise as command
from ds_advise.advisor.page.options import OPTIONS as PAGE_OPTIONS
from ds_advise.advisor.question.effective import effective_objectives
from ds_advise.advisor.question.options import GROUPS, OPTIONS, fill_defaults, names_in
from ds_advise.advisor.question.rollout_options import RolloutOptions
from ds_advise.advisor.question.workload import build_workload, plan_settings
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.objectives import OBJECTIVES
from ds_advise.estimators.workload import Software


def test_every_option_has_one_declaration_with_a_help_in_a_group() -> None:
    assert names_in(*GROUPS.values()) == tuple(OPTIONS)
    for name, option in OPTIONS.items():
        assert option.name == name and option.help.endswith(".")
        assert not option.choices or option.default is None or option.default in option.choices
        assert option.kind != "text" or option.metavar, f"{name} needs a metavar"


def test_the_command_has_every_option() -> None:
    """With its choices and its default."""
    typed = {each.name: each for each in command.params if isinstance(each, click.Option)}
    for name, option in OPTIONS.items():
        assert typed[name].opts == [option.flag] and typed[name].is_flag == (option.kind == "switch")
        assert typed[name].is_flag or typed[name].default == option.default
        choices = typed[name].type.choices if isinstance(typed[name].type, click.Choice) else ()
        assert tuple(choices) == (option.choices if option.kind == "choice" else ())
        assert option.help in (typed[name].help or "")


@pytest.mark.parametrize("function", [ds_advise.advise, ds_advise.estimate])
def test_the_functions_show_every_option(function: Any) -> None:
    """In their signature and their documentation."""
    parameters = inspect.signature(function).parameters
    for name, option in OPTIONS.items():
        assert parameters[name].default == option.default
        entry = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), option.help)
        assert f" {name}: {entry}" in " ".join((function.__doc__ or "").split())
    shown = str(inspect.signature(function))
    assert not re.search("lambda|ForwardRef|<function", shown) and shown.count("\n") > len(OPTIONS)


def test_the_page_has_options_of_the_table() -> None:
    assert all(OPTIONS[name.replace("-", "_")] is option for name, option in PAGE_OPTIONS.items())
    assert len(PAGE_OPTIONS) > 30


@pytest.mark.parametrize("name", [*names_in(RolloutOptions), "eval_logits"])
def test_an_option_is_refused_where_it_is_said_to_have_no_effect(name: str) -> None:
    option = OPTIONS[name]
    value: Any = "off" if "off" in option.choices else "generate" if option.choices else "gpt2"
    value = 2 if option.kind.startswith("count") else 0.5 if option.kind == "number" else value
    for objective in OBJECTIVES:
        refused = False
        try:
            build_workload({"objective": objective, name: value, "offline": True}, None, None)
        except WorkloadError as error:
            refused = "possible with --objective" in error.what or "used with --objective" in error.what
        # Switched off is as good as absent.
        assert value == "off" or refused == (objective not in effective_objectives(name)), objective


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "pass one of full, lora, qlora"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"lora_rank": "many"}, "lora_rank is 'many': it must be a whole number; pass lora_rank=8"),
        ({"seq_len": 2 * 10**9}, "seq_len is 2000000000: it must be between 1 and 1000000000"),
        ({"seq_len": 1e300}, r"seq_len is 1\.0*e\+300: it must be between"),
        ({"precision": "torch.bfloat16"}, "pass precision='bf16'"),
        ({"micro_batch": True}, "micro_batch is 'True': it must be a whole number"),
        ({"epochs": "three"}, "epochs is 'three': it must be a number; leave epochs out$"),
        ({"epochs": "2 epochs"}, "pass epochs=2.0$"),
        ({"seq_len": "8q"}, "pass seq_len=8$"),
        ({"seq_len": "8kk"}, "pass seq_len=8192$"),
        ({"seq_len": "abc"}, "leave seq_len out$"),
        ({"global_batch": "32x"}, "pass global_batch=32$"),
        ({"zeropp": "no"}, "zeropp is 'no': it must be True or False$"),
        ({"packing": "false"}, "packing is 'false': it must be True or False$"),
        ({"gpus": ["A100"]}, "gpus is .*: it must be text"),
    ],
)
def test_values_are_checked_by_their_declaration(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        fill_defaults(options)


def test_a_count_of_python_may_be_the_text_of_the_command_line() -> None:
    """`k` is 1,024 tokens of a length."""
    filled = fill_defaults({"seq_len": "8k", "lora_rank": "16", "micro_batch": "max"})
    named = [filled[name] for name in ("seq_len", "lora_rank", "micro_batch")]  # type: ignore[literal-required]
    assert named == [8192, 16, "max"]
    counts = [option for option in OPTIONS.values() if option.kind.startswith("count")]
    assert len(counts) > 20 and all({int, str} <= {*option.types} for option in counts), "type checkers accept it"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"seq_len": numpy.int64(4096)}, 4096),
        ({"micro_batch": numpy.uint8(2)}, 2),
        ({"global_batch": 32.0}, 32),
        ({"lora_rank": numpy.float32(16)}, 16),
        ({"epochs": numpy.float32(0.5)}, 0.5),
        ({"lora_dropout": numpy.int64(0)}, 0),
        ({"seq_len": "MAX"}, "max"),
        ({"method": "LoRA"}, "lora"),
    ],
)
def test_numbers_and_words_of_python_become_those_of_the_command_line(options: dict[str, Any], expected: Any) -> None:
    """JSON and the file of a configuration have Python's own numbers alone."""
    (name,) = options
    filled: dict[str, Any] = {**fill_defaults(options)}
    assert (filled[name], type(filled[name])) == (expected, type(expected))


def test_a_fraction_for_a_count_is_refused_with_the_nearest_number() -> None:
    with pytest.raises(WorkloadError, match=r"it must be a whole number; pass global_batch=32$"):
        fill_defaults({"global_batch": 32.4})


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
        (ds_advise.estimate, {"xyzzy": 2}, "there is no option 'xyzzy'; help(ds_advise.estimate) lists the options"),
        (ds_advise.advise, {"gpu": "8xH100"}, "there is no option 'gpu'; did you mean gpus?"),
        (ds_advise.advise, {"commnd": ["train.py"]}, "there is no option 'commnd'; did you mean command?"),
        (ds_advise.estimate, {"stratgy": "zero2"}, "there is no option 'stratgy'; did you mean strategy?"),
        (fill_defaults, {"zero_stage": 3}, "there is no option 'zero_stage'; leave it out: every strategy is compared"),
        (fill_defaults, {"zero_stage": 3}, "ds-advise explain MODEL --strategy zero3 shows one"),
        (fill_defaults, {"tp_size": 2}, "--set autotp_size=2 splits them"),
        (
            ds_advise.advise,
            {"tensor_parallel_size": 2},
            "'tensor_parallel_size'; leave it out: ZeRO keeps",
        ),
        (ds_advise.advise, {"deepspeed": "x"}, "there is no option 'deepspeed'; name the file: ds-advise lint FILE"),
        (fill_defaults, {"frobnicate": 1}, "there is no option 'frobnicate'; help(ds_advise.advise) lists the options"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(
    function: Any, options: dict[str, Any], error: str
) -> None:
    """Of the options and of the function's own parameters; it is both of ds-advise and a TypeError."""
    for kind in (TypeError, ds_advise.DsAdviseError):
        with pytest.raises(kind, match=re.escape(error)):
            function(options) if function is fill_defaults else function("gpt2", **options)


def test_none_stands_for_the_default() -> None:
    assert fill_defaults({"gpus": None, "optimizer": None}) == fill_defaults({})


@pytest.mark.parametrize(
    ("options", "error"),
    [({"model": 2}, "'2' is not a model; pass a name"), ({}, "takes a model or a command")],
)
def test_what_is_no_model_is_an_error(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ds_advise.DsAdviseError, match=error):
        ds_advise.advise(**options, gpus="24GB")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"ram": 128}, 'write it as ram="128GB"'), ({"gpus": 8}, 'write gpus="8x24GB" for 8 GPUs of 24 GB')],
)
def test_a_number_in_place_of_text_is_read_as_the_command_reads_it(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ds_advise.DsAdviseError, match=error):
        ds_advise.advise("gpt2", **{"gpus": "8xH100"} | options)


def test_a_version_may_be_written_as_pip_writes_it_and_an_error_names_one_of_the_same_package() -> None:
    assert plan_settings(Software, "deepspeed==0.15,tf32", option="--software") == {"deepspeed": (0, 15), "tf32": True}
    with pytest.raises(WorkloadError) as caught:
        plan_settings(Software, "deepspeed=new", option="--software")
    assert caught.value.fix == "pass a version such as 0.19"
