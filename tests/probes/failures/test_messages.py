"""The table of known messages: every entry is found by its own example, and has a cause, a fix and a source."""

from __future__ import annotations

import re

import pytest
from ds_advise.advisor.importers.imported_run import known_names
from ds_advise.probes.failures.diagnosis import diagnose_text
from ds_advise.probes.failures.messages import MemoryPhase, Message, find_message, memory_phases, messages, under

MESSAGES = messages()


def test_the_table_is_large_and_every_entry_has_its_own_id() -> None:
    assert len(MESSAGES) >= 80
    assert len({message.id for message in MESSAGES}) == len(MESSAGES)
    assert len({phase.name for phase in memory_phases()}) == len(memory_phases()) == 14


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_an_example_is_found_and_alone_decides(message: Message) -> None:
    """Also behind a rank's prefix with colors, as the last line of a traceback of another rank's log."""
    if message.course:
        found = diagnose_text(message.example)
        assert found.course is not None and found.course.id == message.id and found.first is None
        return
    found = diagnose_text(message.example)
    assert found.first is not None and found.first.message == message
    prefixed = "".join(f"\x1b[36m[rank3]:\x1b[0m {line}\n" for line in message.example.splitlines())
    again = diagnose_text(f"some output\n[rank0]: loading\n{prefixed}")
    assert again.first is not None and again.first.message == message
    assert message.cause and message.fix and message.source
    is_thread = re.fullmatch(r"https://[\w./~#?=&%-]+", message.source)
    packages = (
        "deepspeed|torch|transformers|accelerate|peft|trl|bitsandbytes|vllm|triton|datasets|safetensors|huggingface_hub"
    )
    is_code = re.match(rf"(?:{packages})\b", message.source)
    assert is_thread or is_code, message.source


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_the_example_fills_every_placeholder(message: Message) -> None:
    """Of cause and fix; the list of messages has capitals in their place."""
    groups = message.pattern.groupindex.keys() | ({"replacement"} if message.replaced else set())
    for text in (message.cause, message.fix):
        assert set(re.findall(r"\{([a-z]+)\}", text)) <= groups
    about = message.about(" ".join(line.strip() for line in message.example.strip().splitlines()))
    assert not re.search(r"\{[a-z]+\}", about.cause + about.fix)
    assert about.cause == message.cause or "{" in message.cause


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_a_pattern_does_not_begin_at_every_letter_of_a_long_word(message: Message) -> None:
    """A pattern that begins with any word is anchored, else the time grows with the square of the word's length."""
    assert not re.search(r"^(?:\((?:\?:|\?P<\w+>))*\\[wS][+*]", message.pattern.pattern)


@pytest.mark.parametrize(
    "ids", [("extension-lock", "extension-lock-interrupted"), ("unequal-sizes", "unequal-sizes-worker")]
)
def test_two_messages_of_one_cause_have_the_same_fix(ids: tuple[str, str]) -> None:
    assert len({message.fix for message in MESSAGES if message.id in ids}) == 1


def test_arguments_that_transformers_removed_are_none_of_its_training_arguments() -> None:
    removed = next(message for message in MESSAGES if message.id == "removed-argument")
    replaced = next(message for message in MESSAGES if message.id == "replaced-argument").replaced
    names = set(re.findall(r"\w+", removed.pattern.pattern.partition("<argument>")[2])) | replaced.keys()
    current = known_names("training-arguments")
    assert len(names) > 20 and not names & current
    assert {name for name in replaced.values() if name.isidentifier()} <= current


@pytest.mark.parametrize("phase", memory_phases(), ids=lambda phase: phase.name)
def test_a_phase_has_a_cause_and_a_fix(phase: object) -> None:
    assert all(getattr(phase, name) for name in ("title", "cause", "fix", "source", "frames"))


OF_AN_ENGINE = r"stage3_|ds3_|offload_(?:optimizer|param)|DeepSpeed|zero\.Init|fsdp_\w+|FullStateDictConfig|deepspeed\."


@pytest.mark.parametrize("phase", memory_phases(), ids=lambda phase: phase.name)
def test_without_a_sign_of_an_engine_a_fix_names_no_option_of_one(phase: MemoryPhase) -> None:
    """Besides the phase that only DeepSpeed has."""
    assert (phase.name == "zero_init") == bool(re.search(OF_AN_ENGINE, phase.fix + phase.host_fix))
    for sign, texts in phase.under.items():
        under_it = under(phase, {sign})
        assert texts and all(getattr(under_it, name) == text for name, text in texts.items())
        if sign == "fsdp":
            assert not re.search(r"DeepSpeed|ZeRO|offload_optimizer", under_it.cause + under_it.fix)


def test_a_text_for_zero_3_replaces_that_for_deepspeed() -> None:
    backward = next(phase for phase in memory_phases() if phase.name == "backward")
    assert "ZeRO stage" in under(backward, {"deepspeed"}).fix
    assert under(backward, {"deepspeed", "zero3"}).fix == backward.under["zero3"]["fix"] != backward.fix


def test_two_half_precisions_of_arguments_have_a_fix_in_them() -> None:
    """The value "auto" is one of the configuration alone."""
    found = find_message("ValueError: At most one of fp16 and bf16 can be True, but not both")
    assert found is not None and "--fp16 or --bf16" in found.fix and "auto" not in found.fix
    assert find_message("ValueError: At most one of fp16 and bf16 can be True for full eval, but not both") is None
