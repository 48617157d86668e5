"""Anything at all in a ds_config, in a model's config.json and in the arguments that are parsed by hand.

    python -m benchmarks.fuzz [COUNT] [SEED]      # 100,000 inputs by default, 0

Nothing but an answer or a DsAdviseError of one line may come of an input, within `LIMIT_S` and `LIMIT_BYTES`. Three
inputs of five are ds_configs, one is a config.json, one an argument. The text is broken by bytes (flipped, cut,
repeated, replaced by what parsers stumble over), the values by keys that DeepSpeed knows with values of any type.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ds_advise.advisor.answer.lint_file import LintAnswer, lint_settings
from ds_advise.advisor.launch.place import slurm_rendezvous, static_rendezvous
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.job import parse_duration
from ds_advise.advisor.question.model_source import inputs_of, load_model
from ds_advise.advisor.render.lint import lint_figures
from ds_advise.ds_configs.launch_commands import read_hostfile
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.json_form import to_json
from ds_advise.validate.lint import DeepSpeedFacts, apply, lint, load_facts, read_document

LIMIT_S = 1.0
LIMIT_BYTES = 500_000_000

CONFIGS: list[dict[str, Any]] = [
    {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}},
    {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 4},
            "offload_param": {"device": "cpu"},
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
        },
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.999]}},
        "aio": {"queue_depth": 8},
    },
    {
        "train_batch_size": 32,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
        "steps_per_print": 1,
    },
]
MODELS: list[dict[str, Any]] = [
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    },
    {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 100},
    {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 100},
    {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    {"model_type": "qwen2_vl", "text_config": {"hidden_size": 64}, "vision_config": {"depth": 2, "embed_dim": 32}},
]
ARGUMENTS: dict[str, list[str]] = {
    "gpus": ["2x32GB", "8xA100-80GB", "4x8xH100", "RTX4090", "24gib", "1024x16xT4", "2x4090"],
    "ram": ["256GB", "0.5TB", "64GiB", "512g"],
    "nvme": ["/nvme:2TB", "500GB", "C:\\x:1TB"],
    "interconnect": ["200Gb/s", "8x200Gb/s", "25GB/s", "10GbE", "ib-hdr", "8xib-ndr"],
    "input_shape": ["3,32,32", "16", " 1 , 2 "],
    "budget": ["90s", "5m", "1H", " 2 h "],
    "master": ["node-0:29500", "10.0.0.1", "[fe80::1]:80", "[fe80::1]"],
    "hostfile": ["node-0 slots=8\nnode-1 slots=8 # the second\n", "localhost slots=2"],
    "slurm": ["gpu[003-007,9],login", "node1", "a[1-2]b"],
}
TOKENS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"-1e400",
    b"1e-400",
    b"9" * 5000,
    b"0x1F",
    b"01",
    b"+1",
    b".5",
    b"1.",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b'"',
    b"'",
    b"'''",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\x00",
    b"\xff",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"//",
    b"#",
    b"/*",
    b"*/",
    b"\r\n",
    b"\n",
    b"\t",
    b"null",
    b"true",
    b'"auto"',
    b"[" * 200,
    b"{" * 200,
    b'{"a":' * 100,
    b'"a":1,' * 50,
    b"\xe2\x80\xa8",
    b"\xf0\x9f\x98\x80",
    b" " * 1000,
    b"x" * 10_000,
    b'"__proto__"',
    b'"\\u0041"',
    b"%s%n",
    b"${x}",
    b"../",
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**70,
    10**30,
    -(10**30),
    0.0,
    0.5,
    -0.5,
    1e9,
    1e18,
    1e300,
    1e-300,
    float("inf"),
    float("nan"),
    "",
    "auto",
    "0",
    "1",
    "3",
    "-1",
    "1e5",
    "1e400",
    "nan",
    "true",
    "cpu",
    "nvme",
    "none",
    "a" * 300,
    "\x00",
    "é\n",
    "../../etc/passwd",
    [],
    [1],
    ["a"],
    [[]],
    [None] * 50,
    {},
    {"a": 1},
    {"enabled": True},
    {"type": "Adam"},
    {"stage": 3},
    {"device": "nvme"},
]


@dataclass
class Tally:
    """What came of the inputs: how many were answered, how many refused, CPU seconds of the slowest, and what must not
    be."""

    answered: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    broken: list[str] = field(default_factory=list)


def fuzz(count: int, seed: int, folder: Path, facts: DeepSpeedFacts) -> Tally:
    """`count` inputs; files of theirs are written into `folder`."""
    rng, tally = random.Random(seed), Tally()
    for index in range(count):
        kind = index % 5
        if kind < 3:
            _try(tally, _config_text(rng, facts), lambda raw: _lint(raw, facts, rng))
        elif kind == 3:
            _try(tally, _model_text(rng), lambda raw: _model(raw, folder))
        else:
            name = rng.choice(sorted(ARGUMENTS))
            _try(tally, _argument(rng, name), lambda text, name=name: _parse(name, text, folder))  # type: ignore[misc]
    return tally


def _try(tally: Tally, given: Any, answer: Callable[[Any], None]) -> None:
    started = time.process_time()  # of this process: what else the machine does is no hang of ours
    try:
        answer(given)
        tally.answered += 1
    except DsAdviseError as error:
        tally.refused += 1
        if "\n" in error.what or not error.what:
            tally.broken.append(f"no single line: {error.what[:200]!r} for {given[:300]!r}")
    except Exception as error:
        tally.broken.append(f"{type(error).__name__}: {error} for {given[:2000]!r}")
    tally.slowest_s = max(tally.slowest_s, time.process_time() - started)


def _lint(raw: bytes, facts: DeepSpeedFacts, rng: random.Random) -> None:
    document = read_document(raw, name="ds_config.json")
    settings = lint_settings(
        document.root.value,
        framework=rng.choice([None, "hf", "deepspeed"]),
        seq_len=None,
        offline=True,
        gpus=rng.choice([None, "2x24GB", "2x8xA100-80GB"]),
        ram=None,
        model=rng.choice([None, None, "gpt2"]),
    )
    if settings["cluster"] is None:
        settings["workload"] = None
    report = lint(document, facts=facts, **settings)
    path = Path("ds_config.json")
    answer = LintAnswer(path=path, report=report, correction_wanted=False, old_text="", text="", copy=None, basis=None)
    json.dumps(to_json(lint_figures(answer)))
    apply(document, report.edits)


def _model(raw: bytes, folder: Path) -> None:
    file = folder / "config.json"
    file.write_bytes(raw)
    load_model(str(file), offline=True)


def _parse(name: str, text: str, folder: Path) -> None:
    if name == "input_shape":
        inputs_of(text, None)
    elif name == "budget":
        parse_duration("--budget", text)
    elif name == "master":
        static_rendezvous(text, 0)
    elif name == "slurm":
        slurm_rendezvous({"SLURM_JOB_NUM_NODES": text[:2], "SLURM_JOB_NODELIST": text, "SLURM_JOB_ID": "1"})
    elif name == "hostfile":
        file = folder / "hostfile"
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        read_hostfile(file)
    elif name == "gpus":
        if text.strip().lower() != "auto":
            parse_cluster(text)
    else:
        parse_cluster("2x8xH100", **{name: text})


def _config_text(rng: random.Random, facts: DeepSpeedFacts) -> bytes:
    config = json.loads(json.dumps(rng.choice(CONFIGS)))
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        block = rng.choice(facts.blocks)
        key = rng.choice(block.names() or ("x",))
        node = config
        for name in [*(block.path.split(".") if block.path else [])]:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[key] = copy.deepcopy(rng.choice(VALUES))
    return _broken(rng, json.dumps(config, indent=rng.choice([None, 2])).encode("utf-8", "surrogatepass"))


def _model_text(rng: random.Random) -> bytes:
    config = dict(rng.choice(MODELS))
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = rng.choice([*config, "head_dim", "num_experts", "rope_scaling", "torch_dtype", "layer_types"])
        config[name] = rng.choice(VALUES)
    return _broken(rng, json.dumps(config).encode("utf-8", "surrogatepass"))


def _argument(rng: random.Random, name: str) -> str:
    text = rng.choice(ARGUMENTS[name]).encode()
    return _broken(rng, text).decode("utf-8", "surrogateescape")


def _broken(rng: random.Random, raw: bytes) -> bytes:
    """The bytes with 0 to 6 changes; now and then in another encoding, or nothing but noise."""
    chance = rng.random()
    if chance < 0.02:
        return rng.randbytes(rng.randrange(300))
    if chance < 0.04:
        return raw.decode("utf-8", "replace").encode(
            rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig"])
        )
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 5])):
        at, length = rng.randrange(len(raw) + 1), rng.choice([0, 1, 1, 4, 40])
        replacement = rng.choice(
            [
                b"",
                rng.randbytes(1),
                rng.randbytes(4),
                rng.choice(TOKENS),
                raw[at : at + length] * rng.choice([2, 2, 100]),
            ]
        )
        raw = raw[:at] + replacement + raw[at + length :]
    return raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.05 else raw


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(count, seed, Path(folder), load_facts())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{count} inputs in {time.perf_counter() - started:.0f} s: {tally.answered} answered, {tally.refused} refused, "
        f"{len(tally.broken)} broken; slowest {tally.slowest_s:.2f} s, memory {peak / 1e6:.0f} MB"
    )
    print("\n".join(tally.broken[:20]))
    raise SystemExit(bool(tally.broken) or tally.slowest_s > LIMIT_S or peak > LIMIT_BYTES)


if __name__ == "__main__":
    main()
