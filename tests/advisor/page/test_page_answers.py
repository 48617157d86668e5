"""What the page shows is what the command line says of the same question."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.page.answers import answer, choices, judge
from ds_advise.advisor.page.options import options_in, state_command, state_question
from ds_advise.advisor.question.options import GROUPS
from ds_advise.advisor.question.options import OPTIONS as QUESTION_OPTIONS
from ds_advise.advisor.render.answer_charts import answer_series
from ds_advise.ds_configs.job import JOB_KINDS

from tests.helpers import TINY
from tests.helpers import printed as printed_answer


def parts(state: dict[str, str]) -> dict[str, Any]:
    found = [json.loads(text) for text in answer(json.dumps({"state": state}))]
    return {part["part"]: part for part in found}


def code(html: str) -> dict[str, str]:
    """The text of each piece of code that has a file's name."""
    found = re.findall(r'data-save="([^"]*)".*?<code>(.*?)</code>', html, re.DOTALL)
    return {name: unescape(text) for name, text in found}


def asked_json(shown: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[Any, Any]:
    """The JSON that the page has, and what the command on the page prints."""
    command = unescape(re.findall("<code>(.*?)</code>", shown["answer"]["command"])[0])
    return json.loads(code(shown["whole"]["files"])["answer.json"]), printed(command, capsys)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    run([*shlex.split(command)[1:], "--json", "--no-write", "--no-deepspeed-estimate", "--offline"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "state",
    [
        {"model": "Qwen2.5-14B", "gpus": "2x32GB"},
        {"model": "Llama-3.1-8B", "gpus": "8xH100-SXM5", "method": "lora", "lora-rank": "64", "ram": "512GB"},
        {"model": "gpt2-xl", "gpus": "1x8GB", "gradient-checkpointing": "on", "global-batch": "32", "risk": "bold"},
    ],
)
def test_json_on_the_page_is_that_of_the_command_line(
    state: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown, expected = asked_json(parts(state), capsys)
    assert shown == expected


def test_a_pasted_config_is_asked_as_its_file_is(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = parts({"config": json.dumps(TINY), "gpus": "2x24GB"})
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    in_page, expected = asked_json(shown, capsys)
    assert in_page == expected


def test_charts_follow_the_answer_and_scaling_the_changes() -> None:
    shown = parts({"model": "Qwen2.5-1.5B", "gpus": "1x24GB", "ram": "64GB"})
    found = re.findall('<section id="(.*?)">', shown["charts"]["charts"] + shown["whole"]["scaling"])
    assert found == ["memory", "ram", "time", "speed", "scaling"]
    assert "<svg" not in shown["answer"]["sections"] and "<section" in shown["answer"]["sections"]
    assert all(f">{title}</text>" in shown["whole"]["scaling"] for title in ("sequence length", "micro batch", "GPUs"))
    assert parts({"model": "Llama-3.1-70B", "gpus": "1x24GB", "ram": "32GB"})["whole"]["scaling"] == ""


def test_job_files_on_the_page_are_those_that_emit_writes(tmp_path: Path) -> None:
    """All of them; without SkyPilot's where its catalogue has no name for the GPU."""

    def jobs(gpus: str) -> dict[str, str]:
        listed = code(parts({"model": "Qwen2.5-14B", "gpus": gpus})["whole"]["files"])
        return {name: f"{text}\n" for name, text in listed.items() if name != "answer.json"}

    shown = jobs("2x8xH100-SXM5")
    assert run(["Qwen2.5-14B", "--gpus", "2x8xH100-SXM5", "--offline", "--emit", ",".join(JOB_KINDS)]) == 0
    assert shown == {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "ds_config.json"}
    assert len(shown) == len(JOB_KINDS)
    assert "sky.yaml" not in jobs("2x32GB")


def test_a_switch_stands_without_a_value() -> None:
    assert options_in("--zeropp --gpus 4x32GB") == {"zeropp": "yes", "gpus": "4x32GB"}
    assert (
        state_command({"model": "gpt2", "zeropp": "yes", "gpus": "4x32GB"}) == "ds-advise gpt2 --zeropp --gpus 4x32GB"
    )


@pytest.mark.parametrize(
    "state, message",
    [
        ({"model": "gpt-17", "gpus": "2x32GB"}, "paste its config.json"),
        ({"model": "", "gpus": "2x32GB"}, "No model is given"),
        ({"config": "{'model_type': 'llama'}", "gpus": "2x32GB"}, "The pasted text: not JSON: single quotes"),
        ({"config": "\ud800", "gpus": "2x32GB"}, "The pasted text: not JSON: it does not begin with {"),
        ({"config": "{", "gpus": "2x32GB"}, "the closing } of the { on line 1 is missing"),
        ({"config": '{"a": 1, // b\n}', "gpus": "2x32GB"}, "not JSON: a comment (line 1, column 10). Remove it."),
        ({"config": "no JSON", "gpus": "2x32GB"}, "Paste the whole file"),
        ({"model": "gpt2", "gpus": "2x32GB", "samples": "1k", "epochs": "x"}, "--epochs 'x' is not a number."),
        ({"model": "gpt2", "gpus": "2xauto"}, "cannot see this machine's GPUs"),
        ({"model": "gpt2", "gpus": "2x0"}, "such as 2x32GB, 8xA100-80GB or 4x8xH100."),
        ({"config": "{}", "gpus": "2x32GB"}, "The pasted configuration: model_type is missing"),
        ({"config": '{"zero_optimization": {}}', "gpus": "2x32GB"}, "below, under Check a ds_config.json"),
        ({"model": "Qwen2.5-7B", "gpus": "auto"}, "cannot see this machine's GPUs"),
        ({"model": "Qwen2.5-7B", "gpus": "2x32GB", "seq-len": "many"}, "--seq-len a number, such as 4k, or max."),
        ({"model": "gpt2", "gpus": "2x32GB", "ram": "10PB"}, "from 1 GB to 64 TB are accepted"),
        ({"model": "gpt2", "gpus": "2x32GB", "link": "nvlink"}, "32 GB names no card"),
        ({"model": "gpt2", "gpus": "4x8x80"}, "--gpus '80' ends in a number"),
        ({"model": "gpt2", "gpus": "32xH100"}, "--gpus '32xH100' has 32 GPUs"),
        ({"model": "Qwen2.5-7B", "gpus": "2x32GB", "frobnicate": "1"}, "no option 'frobnicate'"),
        ({"model": "Qwen2.5-7B", "gpus": "2x32GB", "ram": "9" * 300}, "300 characters"),
        ({"model": "gpt2", "gpus": "2xcpu"}, "pass --device cpu in a terminal"),
        ({"model": "gpt2", "gpus": "2x32GB", "price": "cheap"}, "--price 'cheap' is not a price"),
        ({"model": "gpt2", "gpus": "2x32GB", "epochs": "0"}, "--epochs is 0"),
        ({"model": "gpt2", "gpus": "2x32GB", "software": "padding"}, "padding-mask"),
        (
            {"model": "gpt2", "gpus": "2x32GB", "objective": "ppo", "framework": "axolotl"},
            "axolotl has another or none",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_gets_a_sentence(state: dict[str, str], message: str) -> None:
    shown = parts(state)
    assert list(shown) == ["error"]
    assert message.lower() in shown["error"]["sentence"].lower()
    assert "\n" not in shown["error"]["sentence"]
    of_terminal = state.get("model") == "gpt-17" or "auto" in state["gpus"]
    assert bool(shown["error"]["line"]) == of_terminal, "a terminal has the same errors of other fields"


@pytest.mark.parametrize(
    "state, names",
    [
        ({"model": "gpt-17", "gpus": "2x32GB"}, ["model"]),
        ({"config": "no JSON", "gpus": "2x32GB"}, ["config"]),
        ({"model": "gpt2", "gpus": "auto"}, ["gpus"]),
        ({"model": "gpt2", "gpus": "2xFOO"}, ["gpus"]),
        ({"model": "gpt2", "gpus": "2x32GB", "seq-len": "many"}, ["seq-len"]),
        (
            {"model": "gpt2", "gpus": "2x32GB", "micro-batch": "3", "global-batch": "32"},
            ["micro-batch", "global-batch"],
        ),
    ],
)
def test_an_error_names_the_fields_that_it_is_about(state: dict[str, str], names: list[str]) -> None:
    assert parts(state)["error"]["names"] == names


@pytest.mark.parametrize(
    "state, option, values",
    [
        ({"model": "mistral-7b"}, "model", ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.2"]),
        ({"model": "gpt-17"}, "model", ["openai-community/gpt2"]),
        ({"model": "gpt2", "gpus": "2xH1000"}, "gpus", ["2xH100-SXM5", "2xA100-SXM4-40GB"]),
        ({"model": "gpt2", "gpus": "auto"}, "gpus", ["2x24GB", "8xA100-80GB", "4x8xH100"]),
        ({"model": "gpt2", "ram": "512"}, "ram", ["512GB"]),
        ({"model": "gpt2", "link": "nvlink"}, "link", ["nvlink:50GB/s"]),
        ({"model": "gpt2", "gpus": "2xL4", "link": "infinity-fabric"}, "link", ["infinity-fabric:50GB/s"]),
        (
            {"model": "gpt2", "gpus": "2xA100"},
            "gpus",
            ["2xA100-PCIe-40GB", "2xA100-SXM4-40GB", "2xA100-PCIe-80GB", "2xA100-SXM4-80GB"],
        ),
        ({"model": "gpt2", "gpus": "2xabc"}, "gpus", ["2xA100-80GB", "2x24GB"]),
        ({"model": "gpt2", "gpus": "8x0GB"}, "gpus", ["8x24GB"]),
        ({"model": "gpt2", "gpus": "4x"}, "gpus", ["4x24GB", "4xA100-80GB"]),
        ({"model": "gpt2", "gpus": "2x80"}, "gpus", ["2x80GB"]),
        ({"model": "gpt2", "micro-batch": "3", "global-batch": "32"}, "micro-batch", ["2"]),
        ({"model": "gpt2", "software": "transformers 4.45"}, "software", ["transformers=4.45"]),
    ],
)
def test_values_that_an_error_says_to_write_are_offered(state: dict[str, str], option: str, values: list[str]) -> None:
    """Each stands in the sentence, in this order, and is accepted; what was typed is in it as it was typed."""
    state = {"gpus": "2x32GB", **state}
    error = parts(state)["error"]
    offers, rest = error["offers"], error["sentence"]
    assert [value for name, value, _ in offers if name == option][: len(values)] == values
    for name, value, text in offers:
        assert text in rest and text.endswith(value)
        rest = rest.partition(text)[2]
        state_question(state | {name: value})
    quoted = re.findall(r"'(\w[\w-]*)'", error["sentence"])  # one word, as a name or a number
    assert quoted in ([], [state[option].removeprefix("2x")])


@pytest.mark.parametrize(
    "options, warning",
    [
        ({"freeze": "projector"}, "--freeze projector has no effect: Qwen/Qwen2.5-14B has no such part"),
        ({"lora-dropout": "0.1"}, "--lora-dropout has no effect with --method full"),
    ],
)
def test_a_warning_of_the_command_line_is_one_of_the_page(
    options: dict[str, str], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"model": "Qwen2.5-14B", "gpus": "2x32GB"}
    shown = parts(state | options)["answer"]
    assert warning in re.sub("<.*?>", "", unescape(shown["warnings"]))
    run([*shlex.split(shown["line"])[1:], "--no-write", "--offline"])
    assert warning in capsys.readouterr().err
    assert parts(state)["answer"]["warnings"] == ""
    chinese = json.loads(next(answer(json.dumps({"state": state | options, "language": "zh"}))))
    assert re.search("不起作用", chinese["warnings"])


def test_a_price_before_the_amount_of_training_is_no_error() -> None:
    """The fields are filled one after the other; until both are, the command is without the price."""
    state = {"model": "gpt2", "gpus": "2x32GB", "price": "$2/h", "epochs": "2"}
    shown = parts(state)["answer"]
    assert shown["warnings"].count("has no effect yet") == 2 and "--price" not in shown["line"]
    whole = parts(state | {"samples": "10k"})["answer"]
    assert whole["warnings"] == "" and "--price" in whole["line"] and "$" in whole["lead"]


def test_options_that_the_model_or_the_objective_cannot_have_are_named() -> None:
    """So that no field offers what is always refused."""
    idle = {"images-per-sample", "max-pixels", "freeze", "experts"}
    for model, own in (
        ("gpt2", set()),
        ("Mixtral-8x7B", {"experts"}),
        ("Qwen2.5-VL-7B", {"images-per-sample", "max-pixels", "freeze"}),
    ):
        found = json.loads(next(answer(json.dumps({"state": {"model": model, "gpus": "8x80GB"}}))))
        assert {*found["idle"]} == idle - own, model
    refused = json.loads(choices())["options"]["loss"]["refused"]
    assert refused["next-token"] == ["log-probs", "odds-ratio", "value-head"]
    for objective, words in refused.items():
        for word in words:
            state = {"model": "gpt2", "gpus": "2x80GB", "objective": objective, "loss": word}
            assert "error" in parts(state), state


def test_every_figure_has_its_source_on_the_page() -> None:
    shown = parts({"model": "Qwen2.5-1.5B", "gpus": "1x24GB"})
    assert "Where the figures come from" in unescape(shown["charts"]["charts"])
    assert '<section id="figures">' in shown["whole"]["sources"]


def test_fields_have_the_groups_of_the_help_and_names_of_the_field() -> None:
    offered = json.loads(choices())
    assert [name for group in offered["groups"].values() for name in group] == [*offered["options"]]
    assert {*offered["groups"]} <= {*GROUPS}
    labels = [option["label"] for option in offered["options"].values()]
    assert len({*labels}) == len(labels)
    assert not re.search(
        r"_|\b([a-z]*(lora|dora|Lora|Dora)|Zero[a-z]*|Mlp|[Vv]llm|Ds3|Nvme|[Gg]pus?)\b", " ".join(labels)
    )
    assert offered["options"]["dora"]["methods"] == ["lora", "qlora"]
    assert offered["options"]["precompute-ref-log-probs"]["objectives"] == ["dpo", "kto"]
    assert len(offered["options"]["micro-batch"]["objectives"]) > 10


def test_every_label_is_in_the_language_of_the_page() -> None:
    """Names of features are the same in both."""
    offered = json.loads(choices('{"language": "zh"}'))
    labels = {option["label"] for option in offered["options"].values()}
    english = {label for label in labels if not {label, label[:1].lower() + label[1:]} & {*offered["texts"]}}
    assert english == {"DoRA", "MLP", "ZeRO++"}
    assert offered["texts"]["Experts"] == "专家"
    unset = {option["unset"] for name, option in offered["options"].items() if name not in _OWN_UNSET}
    wanted = {*offered["groups"], *(text for text in unset if re.search("[A-Za-z]", text))}
    assert wanted - {*offered["texts"]} == set()


_OWN_UNSET = (
    "threads",
    "document-len",
    "sequence-parallel-size",
    "lora-targets",
    "seq-len",
    "micro-batch",
    "global-batch",
)
"""Options whose empty fields show other words, or the value of the answer."""


def test_a_guessed_name_of_a_model_is_a_note_as_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = "Qwen2.5-7 is Qwen/Qwen2.5-7B, the only one of its sizes in the catalogue"
    assert f"{said}." in parts({"model": "Qwen2.5-7", "gpus": "2x32GB"})["answer"]["warnings"]
    printed("ds-advise Qwen2.5-7 --gpus 2x32GB", capsys)
    assert run(["Qwen2.5-7", "--gpus", "2x32GB", "--no-write", "--offline"]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert "catalogue" not in parts({"model": "Qwen2.5-7B", "gpus": "2x32GB"})["answer"]["warnings"]


def test_a_field_is_set_where_an_option_is_passed() -> None:
    state = {"model": "gpt2", "gpus": "2x32GB", "document-len": "512", "attention": "eager"}
    assert ". Set --attention flash, or" in parts(state)["error"]["sentence"]


@pytest.mark.parametrize("rest", ["", "/", "/tree/main", "/blob/main/config.json", "?library=transformers"])
def test_the_address_of_a_model_is_its_name(rest: str) -> None:
    state = {"model": f"https://huggingface.co/Qwen/Qwen2.5-7B{rest}", "gpus": "2x32GB"}
    assert state_question(state).model.name == "Qwen/Qwen2.5-7B"
    assert state_command(state) == "ds-advise Qwen/Qwen2.5-7B --gpus 2x32GB"


def test_proposed_changes_are_valid_questions() -> None:
    """Every proposed change makes a question that can be answered."""
    state = {"model": "Llama-3.1-8B", "gpus": "1x24GB", "ram": "64GB"}
    whole = parts(state)["whole"]
    assert any("/nvme:" in options.get("nvme", "") for options in whole["options"].values())
    for flags, options in whole["options"].items():
        assert f"<code>{flags}</code>" in re.sub("</?span.*?>", "", whole["changes"])
        state_question(state | options)


def test_lint_judges_a_pasted_configuration() -> None:
    def found(text: str, state: dict[str, str] | None = None) -> Any:
        return json.loads(judge(json.dumps({"config": text, "state": state})))

    for broken in ("no JSON", "{", "\ud800"):
        error = parts({"config": broken, "gpus": "2x32GB"})["error"]
        assert found(broken)["sentence"] == error["sentence"], "the same words in both boxes"
    several = ", ".join(f'"none_{number}": 1' for number in range(12))
    assert "--output-format" not in unescape(found(f"{{{several}}}")["findings"]), "that is the command's"
    for state, plain in ((None, '{"zero_optimization":{"stage":2}}'), ({"model": "gpt2", "gpus": "2x32GB"}, "")):
        commented = found('// c\n{"zero_optimization":{"stage":2,},}', state)
        assert "--f" not in unescape(commented["findings"]), "the page has no such option"
        assert commented["plain"] == plain, "the framework of the question is read by the Trainer"
        assert json.loads(plain or commented["corrected"])["zero_optimization"]
    misspelt = unescape(found('{"zero_optimization": {"stage": 2, "overlap_com": true}}')["findings"])
    for words in ("overlap_com'", "Why: ", "Fix: rename it to overlap_comm.", "^^^^^"):
        assert words in misspelt
    too_large = found(
        '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}', {"model": "Qwen2.5-14B", "gpus": "1x24GB"}
    )
    assert "per GPU" in too_large["findings"].replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    "options",
    [
        "--method lora --lora-rank 16",
        "--seq-len 8k --framework deepspeed --micro-batch 4 --precision fp16",
        "--optimizer adamw_8bit --gradient-checkpointing off",
    ],
)
def test_lint_on_the_page_asks_what_the_command_asks(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option of the question, with the line that says for which training."""
    text = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'
    Path("c.json").write_text(text)
    words = options.replace("--", "").split()
    state = {"model": "Qwen2.5-7B", "gpus": "2x24GB", **dict(zip(words[::2], words[1::2], strict=True))}
    found = json.loads(judge(json.dumps({"config": text, "state": state})))["findings"]
    run(["lint", "c.json", "--model", "Qwen2.5-7B", "--gpus", "2x24GB", *options.split()])
    printed = " ".join(capsys.readouterr().out.split())
    shown = unescape(re.sub("<.*?>", " ", re.sub("</?span.*?>", "", found))).replace("\N{NO-BREAK SPACE}", " ")
    for name in ("Predicted", "For"):
        (line,) = re.findall(rf"{name}:? .*?(?:tokens/s|per node|checkpointing\))\.", shown)
        assert line in printed
    most = json.loads(judge(json.dumps({"config": text, "state": {**state, "seq-len": "max"}})))
    assert most["part"] == "lint", "the longest that fits, which lint does not search"


def test_lint_on_the_page_waits_for_the_amount_of_training_as_the_answer_does() -> None:
    """An option that is filled before the amount is no error of the form below it."""
    state = {"model": "Qwen2.5-7B", "gpus": "2x24GB", "method": "lora", "epochs": "3"}
    assert "no effect yet" in parts(state)["answer"]["warnings"]
    for length in ("2k", "max"):
        found = json.loads(judge(json.dumps({"config": '{"bf16": 1}', "state": {**state, "seq-len": length}})))
        assert found["part"] == "lint", found


def test_the_page_draws_the_answer_of_the_terminal_in_its_language() -> None:
    """Every row of the ladder; in Chinese with the texts of the page, and the same code."""
    answers = {}
    for language in ("en", "zh"):
        found = answer(json.dumps({"state": {"model": "Qwen2.5-14B", "gpus": "2x32GB"}, "language": language}))
        answers[language] = json.loads(next(found)) | json.loads(next(found))
    lines = printed_answer(advise("Qwen2.5-14B", gpus="2x32GB", deepspeed_estimate=False)).splitlines()
    texts = re.sub("<.*?>", " ", answers["en"]["sections"]).split()
    rows = [line.strip("> ").split() for line in lines if re.match("[ >] (ddp|zero)", line)]
    assert len(rows) == 8 and all(" ".join(row) in " ".join(texts) for row in rows)
    assert re.search("[\u4e00-\u9fff]", answers["zh"]["verdict"])
    assert re.search("<text[^>]*>[\u4e00-\u9fff]", answers["zh"]["charts"])
    codes = [re.findall("<code>(.*?)</code>", each["sections"], re.DOTALL) for each in answers.values()]
    assert codes[0] == codes[1]
    assert not json.loads(choices())["texts"] and json.loads(choices('{"language": "zh"}'))["texts"]


def test_the_page_document_names_the_options_without_a_field() -> None:
    text = (Path(__file__).parents[3] / "docs/page.md").read_text()
    fields = json.loads(choices())["options"]
    left = {name.replace("_", "-") for name in QUESTION_OPTIONS} - {*fields}
    assert left and all(f"`--{name}`" in text for name in left)
    assert not any(f"| `--{name}`" in text for name in fields)


def test_everything_that_can_be_chosen_is_offered() -> None:
    offered = json.loads(choices())
    assert len(offered["models"]) > 250 and len(offered["gpus"]) > 90
    state = {"model": offered["models"][0], "gpus": f"2x{offered['gpus'][0]}"}
    assert "error" not in parts(state)


@pytest.mark.parametrize("written", ["8 H100", "8*H100", "8H100", "H100x8"])
@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_count_in_the_field_of_the_gpu_takes_the_place_of_that_beside_it(written: str, per_node: int) -> None:
    """As the terminal reads it: 8 of them, and not 8 for each of those that the other field has."""
    error = parts({"model": "gpt2", "gpus": f"{per_node}x{written}"})["error"]
    assert [value for _, value, _ in error["offers"]] == ["8xH100"]


@pytest.mark.parametrize("option", ["seq-len", "micro-batch"])
def test_a_word_in_any_case_is_the_same(option: str) -> None:
    state = {"model": "gpt2", "gpus": "2x24GB"}
    assert state_question({**state, option: "MAX"}) == state_question({**state, option: "max"})


def test_tools_that_do_not_train_an_objective_are_not_offered_for_it() -> None:
    """Only with completions: of preferences each tool extends the trainers of TRL."""
    refused = json.loads(choices())["options"]["framework"]["refused"]
    assert refused["ppo"] == ["llama-factory", "axolotl", "ms-swift"] and refused["classification"] == ["trl"]
    assert refused["grpo"] == ["llama-factory"] and "dpo" not in refused


def test_longer_sequences_are_round_and_end_at_the_first_that_does_not_fit() -> None:
    question = {"model": "Qwen2.5-7B", "gpus": "4x80GB", "seq-len": "max"}
    answer = advise("Qwen2.5-7B", gpus="4x80GB", seq_len="max", offline=True, deepspeed_estimate=False)
    (lengths, *_) = answer_series(answer)
    own = int(lengths.values[lengths.own])
    assert own == state_question(question).workload.seq_len
    assert all(int(value) & (int(value) - 1) == 0 for value in lengths.values if int(value) != own)
    assert [plan is None for plan in lengths.plans] == [False] * (len(lengths.plans) - 1) + [True]
