"""Duration and cost of the user's own job: options, counted data, answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from ds_advise import advise
from ds_advise.advisor.cli.main import COMMANDS, program, run
from ds_advise.advisor.data.counting import ApproxTokenizer, CountedData, count_data
from ds_advise.advisor.question.job import check_job, parse_amount, parse_duration, parse_price
from ds_advise.advisor.search.candidate import candidate_duration
from ds_advise.advisor.text.job import durations, money, money_and_interval
from ds_advise.advisor.train.folder import TrainingFolder
from ds_advise.advisor.train.proposal import propose
from ds_advise.advisor.train.settings import TrainingSettings
from ds_advise.estimators.errors import DsAdviseError, WorkloadError
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.time.job import Price

from tests.helpers import TINY, printed

ASKED = ["Qwen2.5-1.5B", "--gpus", "4xA100-80GB", "--no-write", "--offline"]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Sixty conversations of many lengths, one of them empty."""
    rows = [
        [{"role": "user", "content": "2+" * number}, {"role": "assistant", "content": "four " * (number * number % 47)}]
        for number in range(1, 61)
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    return file


def counted(path: Path, model: Path | str, **given: Any) -> CountedData:
    options = {"seq_len": None, "packing": False, "epochs": 3.0, "evaluation_share": 0.0} | given
    return count_data(path, str(model), shape_from_config(TINY, name=str(model)), **options)


@pytest.mark.parametrize(
    ("seq_len", "packing", "share"),
    [(None, False, 0.0), (None, False, 0.1), (64, False, 0.1), (None, True, 0.0), (96, True, 0.2)],
)
def test_a_file_is_counted_exactly_as_train_prepares_it(
    chats: Path, model: Path, tmp_path: Path, seq_len: int | None, packing: bool, share: float
) -> None:
    """Samples, tokens, lengths, what is held out, global batch and steps."""
    found = counted(chats, model, seq_len=seq_len, packing=packing, evaluation_share=share)
    settings = TrainingSettings(model=str(model), data=chats, packing=packing, eval_split=share, offline=True)
    cluster = Cluster(nodes=1, gpus_per_node=2, gpu=find_gpu("A100-80GB"))
    unset = dict.fromkeys(("global_batch", "micro_batch", "sequence_parallel_size"))
    question = {"gpus": cluster, "seq_len": seq_len, "attention": "sdpa", "loss": "auto", **unset}
    folder = TrainingFolder(tmp_path / "out")
    folder.claim(force=False)
    trained = propose(settings, shape_from_config(TINY, name=str(model)), question, folder)
    assert found.exact
    for name in ("tokens", "train_samples", "evaluation_samples", "cuts"):
        assert getattr(found.samples, name) == getattr(trained.samples, name)
    assert found.job.tokens_in_all(found.samples.seq_len) == pytest.approx(3 * trained.samples.tokens)
    assert sum(each.samples for each in found.job.lengths) == found.job.samples == trained.samples.train_samples
    answer = advise(
        str(model),
        gpus=cluster,
        data=chats,
        packing=packing,
        eval_split=share,
        seq_len=seq_len,
        deepspeed_estimate=False,
        offline=True,
    )
    duration = answer.recommended and candidate_duration(answer.question, answer.recommended)
    assert answer.question.workload == trained.answer.question.workload
    assert duration is not None and duration.steps == trained.steps
    assert duration.training_s == pytest.approx(trained.training_s)


def test_without_a_tokenizer_four_bytes_are_a_token(chats: Path) -> None:
    found = counted(chats, "no/such-model")
    assert not found.exact and "estimated as 4 bytes a token" in found.sentence
    assert found.data.rows == 59  # one answer is empty
    assert ApproxTokenizer()("12345678")["input_ids"] == [0, 0]
    exact = sum(len(line.encode()) for line in chats.read_text().splitlines()) / 4
    assert found.samples.tokens == pytest.approx(exact, rel=0.5)


@pytest.mark.parametrize(
    ("texts", "amount"),
    [
        ("1B 1e9 1.0e3m", 10**9),
        ("500m", 5 * 10**8),
        ("1.5T", 1_500_000_000_000),
        ("52k 52000 52,000", 52_000),
        ("1_000_000", 10**6),
    ],
)
def test_amounts_in_any_unit(texts: str, amount: int) -> None:
    for text in texts.split():
        assert parse_amount("tokens", text) == parse_amount("samples", text) == amount


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1Q", "1e400", "9999T", "1B2", "1,5", "1,50k"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"--samples .* is not a number of samples"):
        parse_amount("samples", text)


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.49/h", Price(per_hour=2.49)),
        ("2.49", Price(per_hour=2.49)),
        ("$2.49/gpu/h", Price(per_hour=2.49, currency="$")),
        ("20 EUR/node/h", Price(per_hour=20, unit="node", currency="eur")),
        ("¥15/card/hour", Price(per_hour=15, currency="¥")),
    ],
)
def test_a_price_is_of_each_gpu_or_node(text: str, price: Price) -> None:
    assert parse_price(text) == price


def test_no_help_and_no_fix_has_an_amount_that_a_shell_replaces() -> None:
    """`$20` is a variable of the shell, with two digits or one."""
    commands = [program.get_command(click.Context(program), name) for name in COMMANDS]
    texts = [getattr(option, "help", None) or "" for command in commands if command for option in command.params]
    with pytest.raises(WorkloadError) as caught:
        parse_price("0/node/h")
    texts.append(caught.value.fix)
    assert not [text for text in texts if re.search(r"\$\d", text)]
    (example,) = re.findall(r"--price (\S+/node/h)", caught.value.fix)
    assert parse_price(example) == Price(per_hour=20, unit="node", currency="usd")


@pytest.mark.parametrize("text", ["", "free", "0/h", "-2/h", "2/day", "1,5/h", "2/h/h", "$$$$2/h", "1e9/h"])
def test_other_prices_are_refused(text: str) -> None:
    """Without an amount of training too."""
    with pytest.raises(WorkloadError, match="is not a price"):
        parse_price(text)
    with pytest.raises(WorkloadError, match="needs the amount" if text else "is not a price"):
        advise("gpt2", gpus="1x24GB", offline=True, price=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 5, "tokens": "1B"}, "both set the amount"),
        ({"epochs": 2.0}, "needs the amount"),
        ({"tokens": "1B", "epochs": 2.0}, "counts all epochs"),
        ({"tokens": "1B", "eval_split": 0.1}, "fraction of the samples"),
        ({"samples": 5, "packing": True}, "needs --data"),
        ({"samples": 5, "eval_split": 1.5}, "--eval-split is 1.5"),
        ({"samples": 5, "epochs": -1.0}, "--epochs is -1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DsAdviseError, match=message):
        check_job(options)


def test_answer_and_json_have_hours_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ASKED, "--samples", "52002", "--epochs", "3", "--eval-split", "0.01", "--price", "$2/h"]
    assert run([*asked, "--json", "--no-deepspeed-estimate"]) == 0
    plan = json.loads(capsys.readouterr().out)["recommended"]
    job = plan["job"]
    assert job["duration_s_low"] < job["duration_s"] < job["duration_s_high"]
    assert job["cost"] == pytest.approx(2 * job["gpu_hours"]) and job["cost_low"] < job["cost"] < job["cost_high"]
    assert job["steps"] == -(-3 * 51_482 // 32)
    assert 0 < plan["model_flops_utilization"] < 1 and job["evaluation_s"] > 0
    assert run([*asked, "--details", "--no-deepspeed-estimate"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{job['steps']:,} steps" in text and money(job["cost"], "$") in text
    time, low, high = durations(job["duration_s"], job["duration_s_low"], job["duration_s_high"])  # in one unit
    assert time in text and f"({low} to {high} in 80 % of runs)" in text
    assert "(MFU)" in text and "evaluation" in text and "to write" in text


def test_an_interval_has_the_precision_of_its_amount() -> None:
    assert money_and_interval(106.2, (90.69, 140.8), "$") == "$106 ($91 to $141)"
    assert money_and_interval(95.2, (90.69, 140.8), "") == "95.20 (90.69 to 140.80)"


def test_proposed_changes_have_the_jobs_hours_and_cost() -> None:
    """A price of each GPU holds for more of them."""
    answer = advise("Qwen2.5-1.5B", gpus="4xA100-80GB", tokens="1B", price="$2/h", deepspeed_estimate=False)
    outcomes = {change.flags: change.outcome for change in answer.changes}
    [more] = [message for flags, message in outcomes.items() if flags.startswith("--gpus 8x")]
    assert ", job " in more and ", $" in more


@pytest.mark.parametrize("name", ["bert-base-uncased", "t5-base"])
def test_rows_are_counted_for_causal_models_alone(name: str, chats: Path) -> None:
    with pytest.raises(DsAdviseError, match="not a causal language model"):
        advise(name, gpus="1xA100-80GB", data=chats, deepspeed_estimate=False)


def test_a_comparison_shows_both_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "zero1", "zero3", "--model", "Qwen2.5-1.5B", "--gpus", "4xA100-80GB", "--offline"]
    assert run([*asked, "--tokens", "1B", "--price", "2/h"]) == 0
    text = capsys.readouterr().out
    assert "hours of the job" in text and "cost of the job" in text
    assert run(["compare", "zero1", "zero3", "--tokens", "1B"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_job_of_few_tokens_is_not_one_large_step() -> None:
    """The search does not raise the batch until hardly any steps are left."""
    answer = advise("Qwen2.5-1.5B", gpus="8xA100-80GB", tokens="20M", deepspeed_estimate=False)
    duration = answer.recommended and candidate_duration(answer.question, answer.recommended)
    assert duration is not None and duration.steps >= 100


@pytest.mark.parametrize(
    ("text", "hours"), [("24h", 24), ("90m", 1.5), ("12hours", 12), ("12hrs", 12), ("1 day", 24), ("90 Min", 1.5)]
)
def test_a_unit_of_time_has_several_names(text: str, hours: float) -> None:
    assert parse_duration("--deadline", text) == hours * 3600


@pytest.mark.parametrize("given", [{"epochs": 1.0}, {"epochs": 0.5}, {}])
def test_the_script_trains_the_epochs_that_are_priced(given: dict[str, Any]) -> None:
    """TrainingArguments' own default is 3; an amount in tokens has no epochs."""
    asked: dict[str, Any] = {"gpus": "8xH100", "offline": True, "deepspeed_estimate": False}
    answer = advise("Qwen2.5-1.5B", samples="10k", **given, **asked)
    expected = f"num_train_epochs={given.get('epochs', 3):g},"
    for details in (False, True):
        assert expected in printed(answer, details=details)
    assert "num_train_epochs" not in printed(advise("Qwen2.5-1.5B", tokens="1B", **asked), details=True)
