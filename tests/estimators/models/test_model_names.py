"""Which spellings mean which model, and which mean none."""

from __future__ import annotations

import pytest
from ds_advise.advisor.advise import build_question
from ds_advise.estimators.errors import NoSuchModelError, UnknownModelError
from ds_advise.estimators.models import catalogue


@pytest.mark.parametrize(
    ("spelling", "hub_id"),
    [
        ("qwen/qwen2.5-14b-instruct", "Qwen/Qwen2.5-14B-Instruct"),
        ("qwen3-8b-instruct", "Qwen/Qwen3-8B"),
        ("llama2-7b-chat", "meta-llama/Llama-2-7b-chat-hf"),
        ("GPT-2 XL", "openai-community/gpt2-xl"),
        ("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407"),
        ("phi-1.5", "microsoft/phi-1_5"),
        ("flan t5 xl", "google/flan-t5-xl"),
        ("deepseek-r1-distill-qwen-7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("codellama-7b-python", "codellama/CodeLlama-7b-Python-hf"),
        ("olmo-2-7b", "allenai/OLMo-2-1124-7B"),
        ("NousResearch/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
    ],
)
def test_a_usual_spelling_finds_its_model(spelling: str, hub_id: str) -> None:
    assert catalogue.find(spelling).name == hub_id


def test_every_published_name_finds_its_entry() -> None:
    """Hub ids and aliases, as they are, in lower case, and without organisation. The count of parameters is that of
    the transformers class, built on the meta device; each entry has its sources, and a row or a recording."""
    for entry in catalogue._entries():
        assert entry["sources"] and all(entry["sources"])
        assert catalogue.find(entry["id"]).source.startswith("catalogue: ")
        for name in (entry["id"], *entry["aliases"]):
            for spelling in (name, name.lower(), name.rpartition("/")[2]):
                assert catalogue.find(spelling).parameters == entry["parameters"], spelling


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2.5-15B",
        "Qwen2.5-1",
        "Qwen2.5-14B-Instruct-AWQ",
        "llama-3.1-9b",
        "gpt3",
        "mixtral-8x8b",
        "somebody/Qwen2.5-14B",
        "NousResearch/Llama-2-7b-chat-tuned",
        "b",
        "instruct",
        "",
        "/",
        "ünïcode-7b",
        "phi-3-mini-12",
        "x" * 10_000,
    ],
)
def test_a_name_that_no_model_has_is_unknown(name: str) -> None:
    """It is not replaced by a similar name."""
    with pytest.raises(UnknownModelError):
        catalogue.find(name)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        (
            "mistral-7b",
            ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-v0.3"],
        ),
        ("llama-3", ["meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-70B"]),
        ("whisper-large", ["openai/whisper-large-v2", "openai/whisper-large-v3", "openai/whisper-large-v3-turbo"]),
        ("bert-large", ["google-bert/bert-large-uncased", "google-bert/bert-large-cased"]),
    ],
)
def test_an_ambiguous_name_lists_its_candidates(name: str, candidates: list[str]) -> None:
    """Other shapes behind one name, or a name without the size: never a guess."""
    with pytest.raises(UnknownModelError, match="is ambiguous") as caught:
        catalogue.find(name)
    assert caught.value.why == f"it matches: {', '.join(candidates)}"
    assert caught.value.names == tuple(candidates) and caught.value.fix.endswith(f"such as {candidates[0]}")
    assert catalogue.find(candidates[0]).name == candidates[0]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
        ("Qwen3-Next-80B", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("gpt-j", "EleutherAI/gpt-j-6b"),
    ],
)
def test_the_first_words_of_one_model_alone_are_its_name(name: str, model: str) -> None:
    """Part of a word is not."""
    assert catalogue.find(name).name == model
    with pytest.raises(UnknownModelError):
        catalogue.find(name[:3] if name != "gpt-j" else "gp")


def test_a_question_says_which_size_was_chosen() -> None:
    said = list[str]()
    for name in ("tinyllama", "Qwen3-Next-80B", "gpt2"):
        build_question(name, gpus="H200", offline=True, say=said.append)
    assert said == ["tinyllama is TinyLlama/TinyLlama-1.1B-Chat-v1.0, the only one of its sizes in the catalogue"]


def test_equal_shapes_with_other_lengths_have_no_length() -> None:
    """Phi-3-mini exists with 4k and with 128k positions, and is otherwise one shape."""
    assert catalogue.find("Phi-3-mini-4k-instruct").max_positions == 4096
    assert catalogue.find("phi-3-mini").max_positions is None


def test_a_misspelt_name_is_answered_with_its_neighbours() -> None:
    near = catalogue.nearest_phrase("Qwen2.5-15B")
    assert near.startswith("nearest names: Qwen/Qwen2.5-14B, Qwen/Qwen2.5-32B, Qwen/Qwen2.5-7B, ")
    assert "mistralai/Mixtral-8x7B-v0.1" in catalogue.nearest_phrase("mixtrl 8x7")
    assert not any(map(catalogue.nearest_phrase, ("", "bogus", "zero_optimization.nope")))


@pytest.mark.parametrize("name", ["llama-3-8b-instuct", "llama3-8b-instuct", "Meta-Llama-3-8B-Insrtuct"])
def test_a_misspelled_variant_is_one_of_the_model_that_the_rest_names(name: str) -> None:
    """Not of the one whose own variant has more letters in common."""
    with pytest.raises(NoSuchModelError) as raised:
        catalogue.find(name)
    assert raised.value.meant == raised.value.names[0] == "meta-llama/Meta-Llama-3-8B"


def test_a_name_has_the_quantization_of_its_own_checkpoint() -> None:
    """Variants of a base model in 16 bits can be quantized."""
    entries = [entry for entry in catalogue._entries() if "quantized" in entry]
    assert {"openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"} <= {entry["id"] for entry in entries}
    for entry in entries:
        for method, names in entry["quantized"].items():
            assert {*names} <= {entry["id"], *entry["aliases"]}
            assert {catalogue.find(name).quantized for name in names} == {method}
    assert catalogue.find("DeepSeek-R1").quantized == "fp8"
    assert catalogue.find("Ministral-3-8B-Instruct-2512").quantized == "fp8"
    assert catalogue.find("Ministral-3-8B-Base-2512").quantized == ""


def test_only_names_of_a_like_family_are_named() -> None:
    """The size and a letter of `mamba-2.8b` are in other names too."""
    assert catalogue.nearest_phrase("mamba-2.8b") == ""
    assert "meta-llama/Meta-Llama-3-8B" in catalogue.nearest_phrase("lama-3-8b")
