"""The answer in Chinese: no sentence stays English, figures and names stay, and columns stay aligned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import ds_advise
import pytest
from click.testing import CliRunner
from ds_advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import program, run
from ds_advise.advisor.document.blocks import UNTRANSLATED
from ds_advise.advisor.document.translation import translated
from ds_advise.advisor.page.build import PAGE_SCRIPTS, page_file
from ds_advise.advisor.render.answer import answer_document
from ds_advise.advisor.text.language import Language, catalogue, language_of_environment, translate
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
    ("Qwen3-30B-A3B", "8xH100", {"experts": "autoep", "samples": "20000"}),
    ("Qwen2.5-7B", "8xA100-80GB", {"eval_batch": 8, "eval_logits": 10, "optimizer": "lamb"}),
    (
        "Qwen2.5-7B",
        "2x8xA100-80GB",
        {"objective": "grpo", "interconnect": "10Gb/s", "samples": "1M", "eval_split": 0.05},
    ),
    ("Qwen2.5-0.5B", "2xRTX9090-48GB", {"objective": "dpo"}),
    ("Qwen2.5-0.5B", "2x24GB", {"objective": "embedding", "micro_batch": 2}),
]
NAMES = re.compile(
    r"pip install [a-z-]+|\w+=[\"{].*|.dtype.*|   (from_pretrained|    |model = |peft_config = |\)).*"
    r"|PATH:|ds-advise .*|deepspeed --.*|(export|echo) .*|# .*|--[\w-]+( [a-z]\w*)?|\w+_\w+(=\w+)*|bf16=\w+"
    r"|zero.Init|(Qwen|meta-llama|google|mistralai|zero|ddp|fsdp|[AH]100|B200|Q?LoRA|r=)\S*|True|False|offload|ZeRO|FSDP"
    r"|PyTorch|DeepSpeed|NF4|dropout|TrainingArguments|(GR|D)POConfig|DDP|TRL|grpo|dpo|Ulysses|AutoTP|AutoEP|GPU|NVMe|NCCL|CUDA|PCIe"
    r"|GiB|[GT]B|tokens?/s|token|flop/s|MFU|logits|log-softmax|hpZ|KV|all-to-all|json|accelerate|transformers|generate|vLLM"
    r"|engine.save.checkpoint|train.py|[Mm]icro batch|global batch|epoch|bf16|fp32|adamw|lamb|rank|chunked(-head)?"
    r"|fused|standard|RTX(9090)?|Ada|Gb/s|V100-\S*|P40|\d (min|ms|Tflop)|\d+GiB"
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
    return printed(_answer(number), width=columns, details=details, language=language)


@pytest.mark.parametrize("text", [text for text in ZH if "{" in text])
def test_a_text_of_the_catalogue_is_translated_by_its_own_entry(text: str) -> None:
    """With a value in each field no other entry matches first, and the translation has the same fields."""
    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    assert sorted(names) == sorted(name for _, name, _, _ in Formatter().parse(ZH[text]) if name)
    values = {name: str(number) for number, name in enumerate(names)}
    # Spaces between Chinese and Latin characters are made.
    assert translate(text.format(**values), "zh").replace(" ", "") == ZH[text].format(**values).replace(" ", "")


def test_the_catalogue_has_each_text_once_without_a_full_stop() -> None:
    text = (PACKAGE / "advisor/text/zh.po").read_text(encoding="utf-8")
    assert text.count("msgid ") == len(ZH) + 1
    assert [each for each in ZH if each.endswith(".") or not ZH[each] or ZH[each].endswith("。")] == []


def test_every_text_of_the_page_s_script_is_in_the_catalogue() -> None:
    """Except values of options, which are those of the command line."""
    script = "".join(page_file(name, answers="server").decode() for name in PAGE_SCRIPTS)
    texts = {*re.findall(r'\bt\("([^"]+)"\)', script)} - {"auto", "no", "yes"}
    assert len(texts) > 12 and [text for text in texts if text.removesuffix(".") not in ZH] == []


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
    """JSON is English, and so is a terminal that has no Chinese."""
    question = ["advise", "gpt2", "--gpus", "2x24GB", "--no-write", "--offline", "--no-deepspeed-estimate"]

    def run(*options: str, charset: str = "utf-8", **variables: str) -> str:
        return CliRunner(charset=charset).invoke(program, [*question, *options], env={"LANG": "C", **variables}).output

    assert "放得下" in run("--lang", "zh")
    assert "放得下" in run("--markdown", LC_ALL="zh_CN.UTF-8")
    assert not re.search(r"[\u3000-\u9fff]|\\u", run("--json", LC_ALL="zh_CN.UTF-8"))
    assert " fits." in run(charset="ascii", LC_ALL="zh_CN.UTF-8")


def test_errors_and_other_commands_are_english(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    Path("ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 7}}')
    asked = ["--gpus", "2x24GB", "--offline"]
    for arguments, code in (
        (["Qwen2.5-7B", "--gpus", "9x"], 2),
        (["lint", "ds.json"], 1),
        (["lint", "ds.json", "--lang", "zh"], 2),
        (["explain", "Qwen2.5-0.5B", *asked], 0),
        (["compare", "zero2", "zero3", "--model", "gpt2", *asked], 0),
    ):
        assert run(arguments) == code
        printed = capsys.readouterr()
        assert (printed.out or printed.err) and not re.search("[\u3000-\u9fff]", printed.out + printed.err)


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_no_text_of_a_report_is_half_translated(number: int) -> None:
    """A text is Chinese apart from names, or English as a whole: a formula or a source."""
    document = translated(answer_document(_answer(number), details=True, charts=True), "zh")
    texts = {*_texts(document.blocks), document.subject, document.verdict}
    assert len(texts) > 150
    assert [text for text in texts if re.search("[\u4e00-\u9fff]", text) and _ENGLISH.search(NAMES.sub("", text))] == []


def _texts(part: Any) -> Iterator[str]:
    """The texts that are translated in blocks and charts."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, UNTRANSLATED):
        return
    elif isinstance(part, Mapping):
        yield from (text for each in part.values() for text in _texts(each))
    elif isinstance(part, Iterable):
        yield from (text for each in part for text in _texts(each))
    elif is_dataclass(part):
        yield from (text for each in fields(part) for text in _texts(getattr(part, each.name)))


@pytest.mark.parametrize(
    "english",
    [
        "ZeRO-2 with optimizer in host RAM fits.",
        "fits with a probability of over 99 %",
        "129.5 GiB of host RAM per node while the model loads",
        "1,004 GiB of RAM",
        "rep/b.json, to copy",
        "DeepSpeed's estimate_zero2 gives 30.1 GiB per GPU (ours: 28.0) and 2.0 GiB of RAM per node. It counts fp32 "
        "master weights in place of bf16; gradients in 16 bits and in fp32 at once. It leaves out logits.",
        "ds_config.json is not written. The commands below need it and ds_config_try_first.json.",
        "a.json is not written: it is another configuration (--force replaces it). -o b.json writes this one.",
    ],
)
def test_a_sentence_is_whole_in_one_language(english: str) -> None:
    """Without a space between Chinese words, where a field that holds figures elsewhere holds words."""
    chinese = translate(english, "zh")
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search(r"\b(and|fits|[Ii]t|need|of|one|per|to|while|with)\b|[\u4e00-\u9fff] [\u4e00-\u9fff]", chinese)
