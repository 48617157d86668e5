"""The command line with arbitrary input: an answer or one line, never a traceback."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.options import OPTIONS
from hypothesis import given, settings
from hypothesis import strategies as st

ALPHABET = st.one_of(st.sampled_from("0123456789xX-+.,:/ GgBbTtiIeE"), st.characters())


def mutated(*samples: str) -> st.SearchStrategy[str]:
    """Samples, samples with a piece replaced by anything, and anything."""

    def replace(text: str, piece: str, start: int, length: int) -> str:
        start %= len(text) + 1
        return text[:start] + piece + text[start + length :]

    spans = st.integers(0, 40)
    return st.one_of(
        st.sampled_from(samples),
        st.text(ALPHABET, max_size=30),
        st.builds(replace, st.sampled_from(samples), st.text(ALPHABET, max_size=4), spans, st.integers(0, 3)),
    )


SAMPLES = {
    "--gpus": "2x32GB 8xA100-80GB 4x8xH100 RTX4090 T4 auto 1024x16xH100 0x24GB 1x1GB",
    "--ram": "256GB 0.5TB 64GiB 1e3GB 99999999999GB",
    "--nvme": "/nvme:2TB 2TB C:\\x:1TB ::: /x:0TB",
    "--interconnect": "200Gb/s 25GB/s 100GbE 8x400Gb/s",
    "--lora-targets": "q_proj,v_proj c_attn all q_proj,, ,",
    "--lora-rank": "8 0 -1 999999999 1e9 \u0663",
    "--lora-dropout": "0.05 0 1 -0.1 nan 1e-400",
    "--seq-len": "2048 1 0 1024 999999999 \u00b2",
    "--global-batch": "8 7 96 999999999 735134400",
    "--micro-batch": "1 3 999999999 -2",
    "--optimizer": "adamw AdamW_8bit adafactor muon lamb sgd_momentum",
    "-o": "ds_config.json - / no/such/folder/x \x00 folder",
} | {option.flag: " ".join(option.choices) for option in OPTIONS.values() if option.kind == "choice"}
TYPED = {flag: mutated(*samples.split(" ")) for flag, samples in SAMPLES.items()}
KNOWN_MODELS = ("gpt2", "Qwen2.5-0.5B", "llama3.1-8b", "t5-small", "vit-base", "mixtral-8x7b", "deepseek-v2-lite")
MODELS = mutated(*KNOWN_MODELS, "someorg/unknown", "./model", "config.json", "~nobody/x", "\x00", "", "a" * 5000)


def ask(*arguments: str) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run([*arguments, "--offline", "--no-deepspeed-estimate"])
    return code, out.getvalue(), err.getvalue()


@settings(max_examples=40)
@given(model=MODELS, options=st.dictionaries(st.sampled_from(sorted(TYPED)), st.none(), max_size=4), data=st.data())
def test_anything_typed_gets_an_answer_or_one_line(model: str, options: dict[str, None], data: st.DataObject) -> None:
    """Exit code 0 or 1 with an answer, or 2 with one line that is no traceback and no fault of the program."""
    Path("folder").mkdir(exist_ok=True)
    typed = [part for name in ("--gpus", *(set(options) - {"--gpus"})) for part in (name, data.draw(TYPED[name], name))]
    code, out, err = ask(model, *typed, "--force")
    assert code in (0, 1, 2)
    assert "error of ds-advise itself" not in err and "Traceback" not in err
    if code == 2:
        assert err.startswith("ds-advise: ") and err.endswith("\n")
        problems = [line for line in err.splitlines() if "has no effect" not in line]
        assert len(problems) == 1 or ("-o" in options and out == "")  # `-o -` has the answer on stderr
    else:
        assert out or "-o" in options
