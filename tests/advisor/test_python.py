"""Answers in Python: what the prompt and a notebook show of them, and the figures that people read."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.render.answer import MOST_LINES
from ds_advise.ds_configs.record import without_record
from ds_advise.estimators.errors import DsAdviseError, UnknownModelError, UnknownOptionError
from ds_advise.probes.run_errors import DryRunError

from tests.advisor.html_report.report_page import Page
from tests.helpers import SMALL_LLAMA, h100s

QUESTIONS = {
    "fits": ("Qwen2.5-14B", "2x32GB", {}),
    "nothing": ("Qwen2.5-72B", "1xRTX4090", {"ram": "64GB"}),
    "bold": ("Qwen2.5-1.5B", "1x24GB", {"risk": "bold", "method": "lora"}),
    "experts": ("Mixtral-8x7B", "8xH100", {"method": "lora"}),
}
FIGURES = (
    "strategy",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "device_bytes_per_gpu",
    "host_bytes_per_node",
    "assumed_host_bytes",
    "tokens_per_second",
    "tokens_per_second_low",
    "tokens_per_second_high",
)


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LANGUAGE", "en")


def asked(name: str) -> ds_advise.Answer:
    model, gpus, options = QUESTIONS[name]
    return ds_advise.advise(model, gpus=gpus, offline=True, **options)


def typed(name: str, *words: str) -> str:
    """What the command prints of the same question."""
    model, gpus, options = QUESTIONS[name]
    given = [word for option, value in options.items() for word in (f"--{option}", value)]
    screen = StringIO()
    with redirect_stdout(screen):
        assert run([model, "--gpus", gpus, "--offline", *given, *words]) == (name == "nothing")
    return screen.getvalue()


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_prints_what_the_command_prints(name: str) -> None:
    answer = asked(name)
    assert f"{answer}\n" == f"{answer!r}\n" == typed(name, "--no-write")
    assert len(str(answer).splitlines()) <= MOST_LINES


def test_an_answer_is_in_the_language_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    answer = asked("fits")
    assert "显存" in str(answer) and "显存" in answer._repr_html_()


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_notebook_shows_the_answer_of_the_report_and_loads_nothing(name: str) -> None:
    """Its rules act on nothing but the answer, and colour it for light and dark pages."""
    answer = asked(name)
    html = answer._repr_html_()
    page = Page(html)
    assert str(answer).splitlines()[0].strip() in re.sub(r"\s+", " ", page.text)
    assert {"ladder", "changes", "evidence"} <= page.sections.keys() and len(page.sections["ladder"]) > 8
    assert not {"script", "iframe", "img", "link", "meta"} & {*page.names}
    assert not [value for name, value in page.attributes if name.startswith("on") or name in ("src", "href")]
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and ":root" not in style
    depth, outside = 0, ""
    for char in style:
        depth += (char == "{") - (char == "}")
        outside += char if depth == 0 and char != "}" else ""
    assert depth == 0 and outside.strip() == ".ds-advise"
    assert style.count("  color-scheme: dark") == 2 and "prefers-color-scheme: dark" in style


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_figures_are_those_of_the_command(name: str, tmp_path: Path) -> None:
    """By the names of `--json`; the configuration is that of the written file."""
    answer, file = asked(name), tmp_path / "ds_config.json"
    figures = json.loads(typed(name, "--json", "--output", str(file), "--no-deepspeed-estimate"))["recommended"]
    assert answer.fits == (figures is not None)
    assert {figure: getattr(answer, figure) for figure in FIGURES} == {
        figure: figures and figures[figure] for figure in FIGURES
    }
    assert answer.ds_config == (json.loads(file.read_text()) if file.exists() else None)


def test_an_answer_is_saved_and_becomes_a_table(tmp_path: Path) -> None:
    """The object is that of `--json`; a file with another content is kept without `force`."""
    answer, file = asked("experts"), tmp_path / "ds_config.json"
    found = answer.to_dict(all_candidates=True)
    assert found == json.loads(typed("experts", "--json", "--all", "--no-write", "--no-deepspeed-estimate"))
    assert len(found["candidates"]) == len(answer.candidates)
    assert answer.save(file) == file and json.loads(file.read_text()) == answer.ds_config
    file.write_text("{}")
    with pytest.raises(ds_advise.DsAdviseError, match=r"exists and differs.* pass force=True to overwrite it"):
        answer.save(file)
    assert file.read_text() == "{}" and answer.save(file, force=True) and file.read_text() != "{}"
    with pytest.raises(ds_advise.DsAdviseError, match=r"to save: no plan fits; check `answer\.fits` first"):
        asked("nothing").save(file)


def test_a_saved_answer_names_its_file() -> None:
    """In its text, its object and its commands."""
    answer = asked("fits")
    file = answer.save("mine.json")
    text = " ".join(str(answer).split())
    assert "Wrote mine.json." in text and "--deepspeed mine.json" in text and "not written" not in text
    assert answer.to_dict()["files"] == [str(file)] == [*answer.files]
    answer.save(file)
    assert [*answer.files] == [str(file)]


def test_changes_and_the_closest_plan_have_figures() -> None:
    """Those of the answer to the changed question."""
    found = asked("nothing").to_dict()
    assert found["recommended"] is None and found["closest"] in found["candidates"]
    model, gpus, _ = QUESTIONS["nothing"]
    larger = next(each for each in found["changes"] if re.fullmatch(r"--ram \d+GiB", each["flags"]))
    after = ds_advise.advise(model, gpus=gpus, ram=larger["flags"].split()[1], offline=True)
    names = ("strategy", "tokens_per_second", "device_bytes_per_gpu", "host_bytes_per_node", "assumed_host_bytes")
    assert {name: larger[name] for name in names} == {name: getattr(after, name) for name in names}
    assert asked("fits").to_dict()["closest"] is None


def test_objects_of_python_are_arguments_too(tmp_path: Path) -> None:
    """A path as a model, a cluster as GPUs; the configuration can be written."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    by_path = ds_advise.advise(tmp_path, gpus="4xH100", offline=True)
    by_cluster = ds_advise.advise(str(tmp_path), gpus=h100s(4), offline=True)
    assert by_path.recommended == by_cluster.recommended
    assert without_record(json.loads(json.dumps(by_path.ds_config))) == json.loads(json.dumps(by_cluster.ds_config))


def test_the_estimate_of_a_plan_has_the_figures_of_the_answer() -> None:
    answer = asked("experts")
    assert answer.recommended is not None
    loss, strategy = answer.question.workload.loss, answer.recommended.strategy
    one = ds_advise.estimate("Mixtral-8x7B", gpus="8xH100", method="lora", strategy=strategy, offline=True, loss=loss)
    assert one == answer.recommended.estimate and one.fits == answer.recommended.fit.fits
    assert {name: getattr(one, name) for name in FIGURES} == {name: getattr(answer, name) for name in FIGURES}
    assert one.ds_config == without_record(answer.ds_config or {})
    plain = ds_advise.estimate("gpt2", gpus="1x24GB", strategy="torch", offline=True)
    assert plain.ds_config is None and plain.fits and plain.strategy == "torch"


def test_no_part_of_an_answer_prints_pages() -> None:
    answer = asked("experts")
    chosen = answer.recommended
    assert chosen is not None
    found = ds_advise.estimate("gpt2", gpus="1x24GB", strategy="zero2", offline=True)
    first = next(iter(answer.changes)).flags
    assert repr(answer.changes) == f"<Changes: {first}; iterate for more>"
    assert repr(answer.ladder[0]).startswith("<LadderStep") and len(repr(answer.ladder[0])) < 200
    for part in (chosen, chosen.estimate, chosen.memory, chosen.time, answer.question, answer.question.model, found):
        assert len(repr(part)) < 3_000, type(part)
    assert repr(found).startswith("<openai-community/gpt2, zero2, micro batch") and "tokens/s" in repr(found)
    assert len(repr(answer.candidates)) < 200 * len(answer.candidates)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda answer: pickle.loads(pickle.dumps(answer))])
def test_a_copy_of_an_answer_has_all_of_it(copied: Callable[[ds_advise.Answer], ds_advise.Answer]) -> None:
    """Also the changes, which are searched while one iterates: before, in the middle and after the search."""
    answer = ds_advise.advise("gpt2", gpus="1x24GB", offline=True)
    first = copied(answer)
    assert next(iter(answer.changes)) == next(iter(copied(answer).changes))
    assert [*answer.changes] == [*first.changes] == [*copied(answer).changes] != []
    assert copied(answer).changes.are_all_tried is False and first.to_dict() == answer.to_dict()


def test_the_configuration_for_deepspeed_initialize_has_numbers() -> None:
    """`DeepSpeedConfig` compares the batch with 0."""
    configs = {
        framework: json.dumps(ds_advise.advise("gpt2", gpus="2x24GB", offline=True, framework=framework).ds_config)
        for framework in ("hf", "deepspeed")
    }
    assert '"auto"' in configs["hf"] and '"auto"' not in configs["deepspeed"]
    asking = Path(ds_advise.__file__).parent / "docs" / "asking.md"
    lines = [line for line in asking.read_text(encoding="utf-8").splitlines() if "deepspeed.initialize(" in line]
    assert lines and all('framework="deepspeed"' in line for line in lines)


@pytest.mark.parametrize("kind", [UnknownModelError, DryRunError, UnknownOptionError])
def test_an_error_says_all_of_it_wherever_it_is_shown(kind: type[ds_advise.DsAdviseError]) -> None:
    """Cause and fix are in its representation, too, and it comes back from another process."""
    further = {"phase": "load", "details": "Traceback"} if kind is DryRunError else {}
    error = kind("no model 'x'", why="it is not known", fix="did you mean y?", **further)
    assert str(error) == "no model 'x': it is not known; did you mean y?"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind and back.__dict__ == error.__dict__
    assert repr(back) == repr(error) == f"{kind.__name__}({str(error)!r})"


def test_the_package_lists_what_it_exports() -> None:
    assert {*dir(ds_advise)} == {*ds_advise.__all__, "__version__"}
    assert all(getattr(ds_advise, name).__name__ == name for name in ds_advise.__all__)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gpus": "2x32QB"}, 'or give the memory alone, such as gpus="2x24GB"'),
        ({"gpus": "2x24GB", "ram": "lots"}, "ram='lots' is not a size"),
        ({"gpus": "2x24GB", "strategy": "zero3"}, 'ds_advise.estimate(MODEL, strategy="zero3") shows one'),
        ({"gpus": "2x24GB", "device": "cpu"}, 'gpus does not apply to device="cpu"'),
        ({"gpus": "2x24GB", "epochs": 2}, 'add data="FILE", samples=N or tokens="1B"'),
    ],
)
def test_an_error_names_the_arguments_of_python(options: dict[str, str], text: str) -> None:
    """Not the options of the command line."""
    with pytest.raises(ds_advise.DsAdviseError) as caught:
        ds_advise.advise("gpt2", offline=True, **options)  # type: ignore[arg-type]
    assert text in str(caught.value) and "--" not in str(caught.value)


CONFIG = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}


def test_machines_of_a_run_are_described_as_elsewhere() -> None:
    described = ds_advise.read_run(CONFIG, "gpt2", "4xH100", offline=True)
    assert described.cluster.world_size == 4 and described == ds_advise.read_run(
        CONFIG, "gpt2", described.cluster, offline=True
    )
    with pytest.raises(DsAdviseError, match="Q9"):
        ds_advise.read_run(CONFIG, "gpt2", "4xQ9", offline=True)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: ds_advise.read_run(3, "gpt2", "8xH100"), "config is '3', of the type int; pass a dictionary, or"),  # type: ignore[arg-type]
        (lambda: ds_advise.read_run(CONFIG, 3, "8xH100"), "model is '3', of the type int; pass a name such as"),  # type: ignore[arg-type]
        (lambda: ds_advise.read_run(CONFIG, "gpt2", 8), "cluster is '8', of the type int; pass a description"),  # type: ignore[arg-type]
        (lambda: ds_advise.dry_run("x"), "run is 'x', of the type str; pass what read_run returns"),  # type: ignore[arg-type]
        (lambda: _estimate(strategy=3), "strategy is '3', of the type int; pass one of ddp, zero1"),
        (lambda: _estimate(settings=[1]), "settings is '[1]', of the type list; pass a dictionary"),
        (lambda: _estimate(settings={"foo": 1}), "settings has no setting 'foo'; set one of"),
        (lambda: _estimate(settings={"stage": 3}), 'pass strategy="zero3"'),
        (lambda: _estimate("fsdp2", {"overlap_comm": True}), "of settings, or name a strategy of ZeRO"),
        (lambda: ds_advise.advise(_Config(), gpus="8xH100"), '_Config is a configuration of transformers, not a model; '
         'write it to a folder, config.save_pretrained("FOLDER"), and pass "FOLDER"'),
        (lambda: ds_advise.advise(_Config, gpus="8xH100"), "_Config is a configuration of transformers"),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_an_error_with_a_fix(ask: Callable[[], object], text: str) -> None:
    """No error of Python's own, and no option of the command line."""
    with pytest.raises(DsAdviseError) as caught:
        ask()
    assert text in str(caught.value) and "--" not in str(caught.value)


class _Config:
    """What the configurations of transformers have."""

    model_type = "qwen2"

    def save_pretrained(self, folder: str) -> None:
        raise AssertionError(folder)


def _estimate(strategy: Any = "zero1", settings: Any = None) -> ds_advise.PlanEstimate:
    return ds_advise.estimate("gpt2", gpus="8xH100", strategy=strategy, settings=settings, offline=True)


def test_a_setting_without_an_effect_is_a_warning() -> None:
    """In the words that the command line prints."""
    with pytest.warns(UserWarning, match=r'prefetch_bucket_size: it has no effect at stage 1; strategy="zero3" has'):
        found = _estimate(settings={"stage3_prefetch_bucket_size": 1_000})
    assert found.device_bytes_per_gpu == _estimate().device_bytes_per_gpu


def test_the_object_of_an_estimate_is_that_of_a_candidate() -> None:
    answer = asked("experts")
    assert answer.recommended is not None
    loss, strategy = answer.question.workload.loss, answer.recommended.strategy
    one = ds_advise.estimate("Mixtral-8x7B", gpus="8xH100", method="lora", strategy=strategy, offline=True, loss=loss)
    assert one.to_dict() == answer.to_dict()["recommended"]


def test_an_error_of_a_configuration_names_arguments() -> None:
    plan = ds_advise.estimate("gpt2", gpus="1x24GB", strategy="zero3-nvme", offline=True)
    with pytest.raises(DsAdviseError, match='pass nvme="PATH:SIZE"'):
        _ = plan.ds_config
