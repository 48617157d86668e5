"""The dry run counts the bytes that the real engine allocates: the same commands, really trained on the CPU.

Both sides run the same default script under the same ledger; one on fake tensors as one rank of N on the simulated GPU,
the other on real tensors, either all ranks over gloo or one rank with torch's fake process group. GPU and host bytes
are compared as their sum, exact to the tensor, at the end and at the peak of every phase.

Attention is eager and dropout off: fused attention keeps other tensors on a CPU than on a GPU, and dropout another
mask.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.workload import LossKernel, Method, OptimizerStep, Precision, Software, Workload
from ds_advise.probes.default_script.folder import write_folder
from ds_advise.probes.default_script.words import command_words
from ds_advise.probes.run import Run

from tests.helpers import SMALL_LLAMA, h100s
from tests.training_scripts.forked_ranks import LIMIT_S, ROOT, ForkedRank, cpu_environment, run_to_the_end

SCRIPT = Path(__file__).with_name("truth_jobs.py")

LLAMA = SMALL_LLAMA | {"intermediate_size": 704, "num_hidden_layers": 3, "vocab_size": 2048}
MODELS = {
    "qwen2": LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "llama": LLAMA,
    "narrow": LLAMA | {"hidden_size": 32},  # four tiles of its feed-forward, and of its loss
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 256,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 512,
        "vocab_size": 2048,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 256,
        "d_kv": 64,
        "d_ff": 512,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "vocab_size": 2048,
        "dropout_rate": 0.0,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 64,
        "patch_size": 16,
    },
}
STRATEGIES = {  # stage, optimizer offload, parameter offload
    "ddp": (0, "none", "none"),
    "zero1": (1, "none", "none"),
    "zero2": (2, "none", "none"),
    "zero2-offload": (2, "cpu", "none"),
    "zero3": (3, "none", "none"),
    "zero3-offload-param": (3, "none", "cpu"),
    "zero3-offload": (3, "cpu", "cpu"),
    "zero3-nvme": (3, "nvme", "nvme"),
}


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str = "qwen2"
    checkpointing: bool = True
    accumulation: int = 1
    method: Method = "full"
    precision: Precision = "bf16"
    world_size: int = 2
    rank: int = 0
    real: str = "gloo"
    sequence_parallel_size: int = 1
    cpu_checkpointing: bool = False
    tiled: bool = False
    loss: LossKernel = "standard"
    bf16_states: str = ""
    zero_hpz_partition_size: int = 1
    autotp_size: int = 1
    modules_to_save: tuple[str, ...] = ()
    step: OptimizerStep = "auto"
    pin_memory: bool = True

    def __str__(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


SMOKE = [
    Case("zero3", step="foreach"),
    Case("zero3-offload", checkpointing=False, world_size=16, real="alone"),
]
SHARED = [  # ranks that share each sample; their attention is sdpa's
    Case("zero2", sequence_parallel_size=2),
    Case("zero3", checkpointing=False, method="lora", sequence_parallel_size=2),
    Case("zero3", precision="fp32", sequence_parallel_size=4, world_size=4, rank=1),
]
TILED = [  # feed-forward and loss a tile at a time
    Case("zero2", model="narrow", accumulation=2, tiled=True),
    Case("zero3", model="narrow", sequence_parallel_size=2, tiled=True),
    Case("zero3", model="narrow", checkpointing=False, accumulation=2, tiled=True, world_size=4, real="alone"),
]
LOSSES = [  # DeepSpeed's and TRL's
    Case("zero2", loss="chunked-softmax"),
    Case("zero3", model="llama", loss="chunked-softmax", method="lora", real="alone"),
    *(
        [
            Case("zero2", loss="chunked-head"),
            Case("zero3", model="llama", loss="chunked-head"),
            Case("zero3", loss="chunked-head", method="lora", checkpointing=False, real="alone"),
        ]
        if find_spec("trl")
        else []
    ),
]
IN_BF16 = [  # masters alone need an optimizer on the host
    Case("zero2", bf16_states="masters and states", accumulation=2),
    Case("zero2-offload", bf16_states="masters"),
    Case("zero3", bf16_states="masters and states", world_size=3, rank=2, real="alone"),
    Case("zero3-offload", bf16_states="masters and states", accumulation=2, model="llama"),
]
BY_SCRIPT = [  # torch's AdamW, from the training script
    Case("zero2", step="loop", checkpointing=False),
    Case("zero3", step="fused", method="lora", real="alone"),
    Case("zero3-offload", step="foreach"),
]
LAYERS_SPLIT = [  # AutoTP; a tied head stays whole
    Case("zero2", accumulation=2, autotp_size=2),
    Case("zero3", model="llama", world_size=4, rank=1, autotp_size=2),
]
SECOND_COPIES = [  # hpZ
    Case("zero3", model="llama", checkpointing=False, accumulation=2, world_size=4, rank=1, zero_hpz_partition_size=2),
    Case("zero3-offload-param", zero_hpz_partition_size=2),
]
GRID = [  # every strategy over gloo, pairs of the other settings; SMOKE has the usual ones
    Case("ddp", accumulation=2),
    Case("zero2"),
    Case("zero1", checkpointing=False, precision="fp32"),
    Case("zero2-offload", checkpointing=False),
    Case("zero3", checkpointing=False, accumulation=2, world_size=3, rank=2),
    Case("zero3-nvme", checkpointing=False),
    Case("zero3-offload-param", pin_memory=False, real="alone"),
    Case("zero2", method="lora", world_size=64, rank=63, real="alone"),
    Case("zero3", method="lora", modules_to_save=("embed_tokens", "lm_head")),
    Case("zero3", model="gpt2", world_size=64, rank=63, real="alone"),
    Case("zero3", model="t5", world_size=8, rank=7, real="alone"),
    Case("zero2", model="vit", real="alone"),
    Case("zero3", model="convnet", precision="fp16", real="alone"),
    *SHARED,
    *TILED,
    *LOSSES,
    *IN_BF16,
    *SECOND_COPIES,
    *LAYERS_SPLIT,
    *BY_SCRIPT,
    Case("zero2", cpu_checkpointing=True),
    Case("zero3-offload", method="lora", cpu_checkpointing=True, real="alone"),
]
INPUT_BYTES = 2 * 128 * 256 * 2  # of a layer: two samples of 128 tokens, 256 wide, in 16 bits
PARTS = 3  # each one process, so that two can run at a time


def run_of(case: Case, folder: Path) -> Run:
    stage, optimizer, parameters = STRATEGIES[case.strategy]
    zero: dict[str, Any] = {"stage": stage}
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    zero |= dict.fromkeys(sizes, 50_000 if case.model == "convnet" else "auto")
    if optimizer != "none":
        zero["offload_optimizer"] = {"device": optimizer, "nvme_path": str(folder)}
    if parameters != "none":
        zero["offload_param"] = {"device": parameters, "nvme_path": str(folder), "buffer_size": 600_000}
        if not case.pin_memory:
            zero["offload_param"]["pin_memory"] = False
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if case.step == "auto":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    if case.sequence_parallel_size > 1:
        config |= {"sequence_parallel_size": case.sequence_parallel_size}
        config |= {"seq_parallel_communication_data_type": case.precision}
    if case.autotp_size > 1:
        config["tensor_parallel"] = {"autotp_size": case.autotp_size, "vocab_parallel_lm_head": False}
    if case.zero_hpz_partition_size > 1:
        zero["zero_hpz_partition_size"] = case.zero_hpz_partition_size
    if case.precision == "bf16":  # without it the Trainer builds fp32 weights under ZeRO-3 and AutoTP
        config["bf16"] = {"enabled": "auto"}
    if case.bf16_states:
        states = case.bf16_states == "masters and states"
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": states}
    if case.precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 4}  # from the usual 16 the first real steps overflow
    workload = Workload(
        method=case.method,
        lora_rank=8,
        modules_to_save=case.modules_to_save,
        seq_len=128,
        precision=case.precision,
        attention="eager" if case.sequence_parallel_size == 1 else "sdpa",
        mlp="tiled" if case.tiled else "whole",
        loss="tiled" if case.tiled else case.loss,
        framework="trl" if case.loss == "chunked-head" else "hf",
        software=Software(optimizer_step=case.step),
    )
    return Run(
        config=config,
        model=MODELS.get(case.model, f"{Path(__file__).with_name('convnet.py')}:ConvNet"),
        workload=workload,
        cluster=h100s(case.world_size),
        micro_batch_size=32 if case.model == "convnet" else 2,
        gradient_accumulation_steps=case.accumulation,
        gradient_checkpointing=case.checkpointing,
        cpu_checkpointing=case.cpu_checkpointing,
    )


def steps_of(case: Case) -> int:
    return 3 if STRATEGIES[case.strategy][0] == 3 else 2  # ZeRO-3 prefetches from the third on


def answers(cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """{"dry": ..., "real": ...}, or {"error": why not}, for each case.

    "gloo" trains all ranks; "alone" one rank of a job whose other ranks do not exist.
    """
    return [
        answer(run_of(case, folder), folder / f"job{index}", steps_of(case), rank=case.rank, real=case.real)
        for index, case in enumerate(cases)
    ]


def answer(run: Run, job: Path, steps: int, *, rank: int = 0, real: str = "gloo") -> dict[str, Any]:
    """The answers of the run's default script."""
    job.mkdir()
    write_folder(run, job)
    ranks = range(run.cluster.world_size) if real == "gloo" else [rank]
    shared = {"words": command_words(run, steps=steps), "cluster": run.cluster, "steps": steps}
    shared |= {"evaluated_batches": run.workload.eval_logits or 1}
    shared |= {"seconds": LIMIT_S, "alone": real != "gloo"}
    (job / "dry").mkdir()
    tasks = {"dry": {"dry": True, "rank": rank, "folder": job / "dry"}}
    tasks |= {f"rank{each}": {"dry": False, "rank": each, "folder": job} for each in ranks}
    for name, task in tasks.items():
        (job / f"{name}.task").write_bytes(pickle.dumps(shared | task))
    try:
        run_to_the_end([partial(start, job / f"{name}.task") for name in tasks], job, LIMIT_S + 60)
        ours, theirs = (json.loads(path.read_text()) for path in (job / "dry/answer.json", job / f"rank{rank}.json"))
    except AssertionError as error:
        written = [json.loads(path.read_text()) for path in job.rglob("rank*.json")]
        return {"error": "\n".join([str(error), *(each["error"] for each in written if "error" in each)])}
    return {"dry": ours["result"]["result"], "real": theirs} if "result" in ours else ours


def start(task: Path, log: Path) -> ForkedRank:
    """A process of a job."""
    environment = cpu_environment() | {"PYTHONWARNINGS": "ignore"}
    return ForkedRank(SCRIPT, [str(task)], cwd=task.parent, env=environment, log=log)


def differences(case: Case, answer: dict[str, Any]) -> list[str]:
    """What differs by more than 0.1 %: a mask, a counter, a batch's labels. Iterations that the dry run left out must
    really repeat its last one.

    Where ZeRO-3 keeps shards in host memory it moves them to the GPU before it gathers: one after the other while the
    model is built (unless the CPU's pinned copy, which a GPU's host makes too, hides it) and initialized, all that stay
    gathered after a step (partition_parameters.py, `_allgather_params_sequential` and
    `_allgather_params_coalesced`). The dry run copies them; here, where GPU and host are one memory, nothing is copied.
    So it is with a layer's input that waited on the host.
    """
    if "error" in answer:
        return [answer["error"]]
    found = []
    dry = {(phase["iteration"], phase["phase"]): phase for phase in answer["dry"]["phases"]}
    last = max(iteration for iteration, _ in dry)
    assert max(phase["iteration"] for phase in answer["real"]["phases"]) == answer["dry"]["iterations"]
    for theirs in answer["real"]["phases"]:
        ours = dry[min(theirs["iteration"], last), theirs["phase"]]
        for name in ("total_live_bytes", "total_peak_bytes"):
            more, limit, copies = ours[name] - theirs[name], 0.001 * theirs[name], 0
            if case.strategy in ("zero3-offload", "zero3-offload-param") and name == "total_peak_bytes":
                which = {
                    "load": "largest_shard_bytes",
                    "initialize": "largest_shard_bytes",
                    "step": "persistent_shard_bytes",
                }.get(ours["phase"])
                copies = answer["real"][which] if which else 0
            if case.cpu_checkpointing and ours["phase"] == "backward" and name == "total_peak_bytes":
                copies += INPUT_BYTES
            if not -limit <= more <= limit + copies:
                found.append(f"{ours['phase']} {ours['iteration']} {name}: {ours[name]} against {theirs[name]}")
    return found


def test_a_dry_run_counts_what_the_real_engine_allocates(tmp_path: Path) -> None:
    """ZeRO-3 with an AdamW of the script on two ranks over gloo, and with offload and without checkpointing as one of
    sixteen alone."""
    assert_counted(SMOKE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_strategy_counts_what_the_real_engine_allocates(part: int, tmp_path: Path) -> None:
    """Strategies with NVMe, checkpointing, accumulation, LoRA, precision, families, world sizes; a case's failure is
    its own."""
    assert_counted(GRID[part::PARTS], tmp_path)


def assert_counted(cases: Sequence[Case], folder: Path) -> None:
    found = {str(case): differences(case, answer) for case, answer in zip(cases, answers(cases, folder), strict=True)}
    assert not any(found.values()), "\n".join(f"{case}: {wrong}" for case, wrong in found.items() if wrong)


OTHER = [  # not LoRA with ZeRO-3 and checkpointing, which 0.18.3 cannot do
    Case("zero2"),
    Case("zero3"),
    Case("zero3-offload", method="lora", checkpointing=False, real="alone"),
]


WITH_OTHER = """
import json, sys
from pathlib import Path
from tests.probes.dry_run.test_dry_run_truth import OTHER, answers
folder = Path(sys.argv[1])
found = answers(OTHER, folder)
(folder / "answers.json").write_text(json.dumps(found))
"""
"""A process of its own, whose forks have imported the other DeepSpeed."""


@pytest.mark.slow
@pytest.mark.skipif(
    "DS_ADVISE_OTHER_DEEPSPEED" not in os.environ,
    reason="DS_ADVISE_OTHER_DEEPSPEED names no folder with DeepSpeed 0.18.3, as tests/run --slow installs it",
)
def test_the_dry_run_agrees_with_an_older_deepspeed(tmp_path: Path) -> None:
    """DeepSpeed 0.18.3 holds other bytes than the newest one."""
    path = [os.environ["DS_ADVISE_OTHER_DEEPSPEED"], *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    subprocess.run([sys.executable, "-c", WITH_OTHER, str(tmp_path)], cwd=ROOT, env=environment, check=True)
    for case, answer in zip(OTHER, json.loads((tmp_path / "answers.json").read_text()), strict=True):
        assert not differences(case, answer), str(case)
        assert answer["dry"]["versions"]["deepspeed"] == answer["real"]["versions"]["deepspeed"] == "0.18.3"
