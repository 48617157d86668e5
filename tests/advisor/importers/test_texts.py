"""YAML and JSON as texts: changes that leave everything else as it is, and typing errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.importers.answer import detect_format
from ds_advise.advisor.importers.file_text import edit_json, edit_yaml, read_yaml
from ds_advise.estimators.errors import ConfigFileError

YAML = """# top
a: 1   # one
b:
  c: x  # see

  d: [1, 2]
e:
  - 1
  - 2
# between
f:
g: |
  text
  more
h: 'q'
"""
CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a value": ({"a": 2}, ("a: 2   # one",)),
    "a quoted value": ({"h": "two: words"}, ("h: 'two: words'",)),
    "a list": ({"e": 3}, ("e: 3\n# between",)),
    "a key taken out": ({"a": None, "h": None}, ("# top\nb:",)),
    "a text of lines taken out": ({"g": None}, ("f:\nh: 'q'",)),
    "a new key": ({"z": 1e-5}, ("h: 'q'\nz: 1.0e-05\n",)),
    "a block": ({"b": {"p": {"q": 1}, "r": "auto"}}, ("b:\n  p:\n    q: 1\n  r: auto\ne:",)),
    "what is not there taken out": ({"n": None}, ("# top\na: 1",)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_to_yaml_leaves_comments_and_order(what: str) -> None:
    """The values are as expected, the line is where it was, and no comment is lost."""
    changes, lines = CHANGES[what]
    text = edit_yaml(YAML, changes)
    for line in lines:
        assert line in text
    assert all(comment in text for comment in ("# top", "# between"))
    kept = {key: value for key, value in yaml.safe_load(YAML).items() if key not in changes}
    assert kept.items() <= yaml.safe_load(text).items()


def test_yaml_of_other_forms_is_changed_or_refused() -> None:
    """Without a last line break, and in braces; what an alias stands for stays."""
    assert edit_yaml("a: 1", {"b": 2}) == "a: 1\nb: 2\n"
    assert edit_yaml("a: 1\nb: {k: 1, l: 3}\n", {"b": {"k": 2}}) == "a: 1\nb:\n  k: 2\n"
    assert edit_yaml("a: &x {k: 1}\nb: *x\n", {"b": 2}) == "a: &x {k: 1}\nb: 2\n"
    for text, change in (("{a: 1, b: 2}\n", {"c": 3}), ("a: &x {k: 1}\nb: *x\n", {"a": None})):
        with pytest.raises(ConfigFileError, match="in its present form"):
            edit_yaml(text, change)


_PAIRS = zip("abcdefghi", "bcdefghij", strict=True)
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in _PAIRS)


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: 1\n\tb: 2", "- 1", "plain", "a: *x", "a: 1\n---\nb: 2", "a: !!python/object:os.x {}", "\x01", BOMB],
)
def test_yaml_without_a_mapping_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigFileError) as error:
        read_yaml(text, "x.yaml")
    assert "\n" not in str(error.value) and "x.yaml" in str(error.value)


def test_a_change_to_json_keeps_its_layout() -> None:
    text = '{\n    "a": 1,\n    "b": {\n        "c": "x"\n    }\n}\n'
    changed = edit_json(text, {"a": 2, "n": "y", "m": {"k": 1}})
    assert changed == text.replace("1", "2").replace("    }\n}", '    },\n    "n": "y",\n    "m": {"k": 1}\n}')
    assert json.loads(edit_json(text, {"a": None})) == {"b": {"c": "x"}}


TYPED = {
    "a.yaml": ("base_model: gpt2\nmicro_batch_sise: 2\nlogging_steps: 1\nuse_kernels: true\n", "micro_batch_size"),
    "l.yaml": ("model_name_or_path: gpt2\nstage: sft\neval_stepsss: 2\nbf16: true\n", "eval_steps"),
    "s.yaml": (
        "model: gpt2\ntuner_type: full\ngradient_checkpoint: false\nfreeze_vit: true\n",
        "gradient_checkpointing",
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_typing_error_is_listed_with_the_nearest_key(name: str, tmp_path: Path) -> None:
    """Also where its beginning is that of a key which changes no figure."""
    text, meant = TYPED[name]
    Path(tmp_path, name).write_text(text)
    source, form = detect_format(tmp_path / name)
    assert [key.partition("(did you mean ")[2] for key in form.read(source).unknown] == [f"{meant}?)"]
