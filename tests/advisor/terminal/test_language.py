"""The answer in Chinese: every phrase has its translation, figures and names stay, and columns stay aligned."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import ds_advise
import pytest
from click.testing import CliRunner
from ds_advise.advisor.advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import program, run
from ds_advise.advisor.launch.monitor import progress_line
from ds_advise.advisor.text.labels import component_title
from ds_advise.advisor.text.language import Language, catalogue, language_of_environment, use_language
from ds_advise.advisor.text.lines import ended
from ds_advise.advisor.text.output import Output
from ds_advise.ds_configs.config_keys import CONFIG_KEYS, meaning
from ds_advise.validate.lint.lint import RULES
from rich.cells import cell_len

from tests.helpers import printed

ZH = catalogue("zh")
PACKAGE = Path(ds_advise.__file__).parent
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("Qwen2.5-14B", "2x32GB", {}),
    ("Qwen2.5-72B", "2x24GB", {"ram": "64GB"}),
    ("Qwen2.5-32B", "4x24GB", {"risk": "bold", "samples": "52k", "price": "2.49/h"}),
    ("Llama-3.1-8B", "8xH100", {"sharding": "fsdp", "tokens": "1B", "optimizer_dtype": "bf16"}),
    ("flan-t5-xl", "2x8xA100-80GB", {"framework": "deepspeed", "nvme": "/nvme:8TB"}),
    ("Qwen2.5-7B", "2x24GB", {"method": "qlora", "lora_dropout": 0.1}),
]
NAMES = re.compile(
    r"pip install [a-z-]+|   (from_pretrained|    |model = |peft_config = |\)).*|PATH:|"
    r"ds-advise .*|deepspeed --.*|(export|echo) .*|# hostfile .*|--[\w-]+( [a-z]\w*)?|\w+_\w+(=\w+)*|bf16=\w+|zero.Init"
    r"|(Qwen|meta-llama|google|mistralai|zero|ddp|fsdp|[AH]100|B200|Q?LoRA|r=)\S*|True|False|offload|ZeRO|FSDP|PyTorch|DeepSpeed|NF4|dropout"
    r"|TrainingArguments|Ulysses|AutoTP|GPU|NVMe|NCCL|CUDA|GiB|[GT]B|tokens?/s|token|flop/s|MFU|logits|log-softmax|hpZ|KV|all-to-all|json"
    r"|[Mm]icro batch|global batch|epoch|bf16|fp32|adamw|chunked|fused|standard|RTX|SUPER|\d (min|ms|Tflop)|\d+GiB"
)
"""What stays as it is in every language: names, options, keys, commands and units."""

_ENGLISH = re.compile(r"(?:\b[a-z']{2,},? ){3}")
"""Three words in a row, of which no name or option consists."""

_FIGURES = re.compile(r"..\S+ +\S+ +\S+ +\S+ +[\d.,]+")


@cache
def _answer(number: int) -> Recommendation:
    model, gpus, options = QUESTIONS[number]
    return advise(model, gpus=gpus, offline=True, deepspeed_estimate=False, **options)


def _printed(number: int, language: Language, columns: int = 80, *, details: bool = False) -> str:
    with use_language(language):
        return printed(_answer(number), width=columns, details=details)


@cache
def _sources() -> dict[str, list[ast.Call | ast.Assign]]:
    """The calls and assignments of each file of the package."""
    return {
        str(path): [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call | ast.Assign)]
        for folder in ("estimators", "ds_configs", "probes", "validate", "advisor")
        for path in (PACKAGE / folder).rglob("*.py")
    }


def _calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a function with one of these names in the source, and its place."""
    for path, nodes in _sources().items():
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield f"{path}:{node.lineno}", node


def _marked() -> Iterator[str]:
    """Every template in the source."""
    for place, call in _calls("phrase"):
        assert isinstance(call.args[0], ast.Constant), f"{place} hides its template"
        yield call.args[0].value
    for name, position in (("violation", 1), ("at", 2)):
        for _, call in _calls(name):
            yield from (each.value for each in call.args[position : position + 1] if isinstance(each, ast.Constant))


def _findings() -> Iterator[str]:
    """What keys decide, the rules' words, and the sentences without fields in findings of lint and of the doctor."""
    yield from filter(None, map(meaning, CONFIG_KEYS))
    for rule in RULES:
        yield from filter(None, (rule.title, rule.why, rule.fix))
    for place, call in _calls("ok", "note", "warning", "problem", "unknown", "violation", "bad_value"):
        for words in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "fix")):
            sentence = words.value if isinstance(words, ast.Constant) else ""
            if "/validate/" in place and _ENGLISH.search(str(sentence)):
                yield str(sentence)


def _error_texts() -> Iterator[str | None]:
    """What the catalogue is asked for by each part of each error in the source; None for an f-string."""
    for nodes in _sources().values():
        assigned = [(ast.unparse(node.targets[0]), node.value) for node in nodes if isinstance(node, ast.Assign)]
        for node in nodes:
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name in ("BadParameter", "_report") or (name.endswith("Error") and not hasattr(builtins, name)):
                assert isinstance(node, ast.Call)
                named = (keyword.value for keyword in node.keywords if keyword.arg in ("why", "fix"))
                for part in (*node.args, *named):
                    yield from _looked_up(part, assigned)


def _looked_up(part: ast.expr, assigned: list[tuple[str, ast.expr]]) -> Iterator[str | None]:
    """The texts of a part, which may be a name for them; nothing for another error's words."""
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield part.value
    elif isinstance(part, ast.IfExp | ast.BoolOp):
        either = part.values if isinstance(part, ast.BoolOp) else (part.body, part.orelse)
        yield from (text for each in either for text in _looked_up(each, assigned))
    elif isinstance(part, ast.Name):
        texts = (value for name, value in assigned if name == part.id and not isinstance(value, ast.Name))
        yield from (text for each in texts for text in _looked_up(each, []))
    elif isinstance(part, ast.Call) and ast.unparse(part.func) == "phrase":
        yield from (text.value for text in part.args if isinstance(text, ast.Constant))
    elif isinstance(part, ast.JoinedStr | ast.BinOp):
        yield None


def _parts() -> Iterator[str]:
    """What memory and time of the answers' plans are made of."""
    for number in range(len(QUESTIONS)):
        for candidate in _answer(number).candidates:
            yield from map(component_title, (*candidate.memory.components, *candidate.time.components))


def test_the_catalogue_has_every_phrase_of_the_source_and_no_other() -> None:
    """Each translation has the same fields. Rare parts of memory and time are not met here. Of the parts of errors more
    than nine in ten are translated."""
    errors = list(_error_texts())
    marked, parts = {*_marked(), *_findings(), *filter(None, errors)}, set(_parts())
    assert (marked | parts) - set(ZH) == set()
    assert errors.count(None) < 0.07 * len(errors)
    text = (PACKAGE / "advisor/text/zh.po").read_text(encoding="utf-8")
    sentences = text.partition("# Lint and the doctor\n")[0]
    assert [template for template in ZH if f'msgid "{template}"' in sentences and template not in marked] == []
    assert text.count("msgid ") == len(ZH) + 1
    for template, translation in ZH.items():
        fields = [sorted(name for _, name, _, _ in Formatter().parse(text) if name) for text in (template, translation)]
        assert fields[0] == fields[1], template
        assert translation, template


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_an_answer_in_chinese_has_its_figures_and_names_and_no_english(number: int) -> None:
    """At 80 and 40 columns nothing overflows, and the columns of the table end where they do in English."""
    english, chinese = _printed(number, "en"), _printed(number, "zh")
    assert re.findall("[A-Za-z]{2,}.*", NAMES.sub("", chinese)) == []
    # A short answer may leave some figures out. Code and commands of the details are indented.
    whole = [_printed(number, language, details=True) for language in ("en", "zh")]
    figures = [sorted(re.findall(r"\d[\d.,]*\d|\d", text)) for text in whole]
    assert figures[0] == figures[1]
    assert [line for line in whole[1].splitlines() if line[:3].strip() and _ENGLISH.search(line)] == []
    for columns in (80, 40):
        lines = _printed(number, "zh", columns).splitlines()
        assert [line for line in lines if cell_len(line) > columns] == []
        assert [line for line in lines if line.endswith(" ")] == []
    rows = [[line for line in text.splitlines() if re.match("[ >] (ddp|zero)", line)] for text in (english, chinese)]
    ends = [[cell_len(found[0]) for line in lines if (found := _FIGURES.match(line))] for lines in rows]
    assert ends[0] == ends[1]


def test_gettext_s_variables_choose_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANGUAGE before LC_ALL before LC_MESSAGES before LANG; traditional characters are another language."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(name, "")
    assert language_of_environment() == "en"
    for name, value, spoken in (
        ("LANG", "zh_CN.UTF-8", "zh"),
        ("LC_MESSAGES", "en_GB.UTF-8", "en"),
        ("LC_ALL", "zh_CN.GB18030", "zh"),
        ("LANGUAGE", "en:zh", "en"),
        ("LANGUAGE", "fr:zh_CN:en", "zh"),
        ("LANGUAGE", "zh_TW", "en"),
    ):
        monkeypatch.setenv(name, value)
        assert language_of_environment() == spoken, (name, value)


def test_only_what_people_read_on_the_screen_is_translated() -> None:
    """JSON and Markdown are English, and so is a terminal that has no Chinese."""
    question = ["advise", "gpt2", "--gpus", "2x24GB", "--no-write", "--offline", "--no-deepspeed-estimate"]

    def run(*options: str, charset: str = "utf-8", **variables: str) -> str:
        return CliRunner(charset=charset).invoke(program, [*question, *options], env={"LANG": "C", **variables}).output

    assert "放得下" in run("--lang", "zh")
    for asked in (["--json"], ["--markdown"]):
        assert not re.search(r"[\u3000-\u9fff]|\\u", run(*asked, LC_ALL="zh_CN.UTF-8"))
    assert " fits." in run(charset="ascii", LC_ALL="zh_CN.UTF-8")


def test_errors_and_other_commands_are_translated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are whole sentences in Chinese; columns end where they do in English."""
    gpus = ("2xGTX9999", "9x", "2x24", "2x24GB --seq-len x", "2x24GB --method no", "2x24GB --gpu 1", "2x24GB --ram 3")
    for asked in (*(f"Qwen2.5-7B --gpus {words}" for words in gpus), "Qwen9", "bert-large", "lint no.json"):
        assert run([*asked.split(), "--lang", "zh"]) == 2
        said = capsys.readouterr().err.removeprefix("ds-advise: ")
        assert re.search("[\u4e00-\u9fff]", said) and not _ENGLISH.search(said) and not re.search("[:;] ", said), said
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 7}}')
    monkeypatch.chdir(tmp_path)  # a path of any length would wrap the line
    assert run(["lint", "ds.json", "--lang", "zh"]) == 1
    assert "1 个错误" in capsys.readouterr().out
    ends = []
    for language in ("en", "zh"):
        run(["compare", "zero2", "zero3", "--model", "gpt2", "--gpus", "2x24GB", "--offline", "--lang", language])
        printed = capsys.readouterr().out
        ends.append([cell_len(line) for line in printed.splitlines() if re.search(r" {3}\S+ {3,}\S+ {2,}\S+$", line)])
    assert "两者都放得下" in printed and "各 rank 分摊什么" in printed and ends[0] == ends[1]


def test_explanations_checks_and_progress_are_chinese(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but sources, DeepSpeed's own words, and names."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    asked = ["--gpus", "2x24GB", "--offline", "--lang", "zh"]
    for command in (
        ["explain", "Qwen2.5-0.5B", "--strategy", "zero3-offload"],
        ["explain", "overlap_comm", "--model", "gpt2"],
        ["check", "ds.json", "--model", "gpt2", "--max-ram", "200GiB"],
    ):
        assert run([*command, *asked]) == 0
        printed = capsys.readouterr().out
        english = re.sub(r'来源.[^\n]*(\n {7}[^\n]*)*|DeepSpeed: "[^"]*"', "", printed)
        assert re.search("[\u4e00-\u9fff]", printed) and not _ENGLISH.search(english), command
    with Output("human", "zh").progress("dry run") as show:
        show("load")
    with Output("human", "zh").speaking():
        line = progress_line(3, 9, 2.5, 1234.0, 60.0)
    assert "加载模型" in capsys.readouterr().err and line.startswith("第 3/9 步  损失 2.5")


def test_the_full_stop_is_that_of_the_language_and_not_of_a_name() -> None:
    """A path may have Chinese characters in an English sentence."""
    assert (
        ended("/数据/ds.json does not exist")
        == ended("/数据/ds.json does not exist.")
        == "/数据/ds.json does not exist."
    )
    with use_language("zh"):
        assert ended("删掉这个键") == "删掉这个键。"
        assert ended("pip install wandb") == "pip install wandb."
