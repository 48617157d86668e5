"""Shared by tests of all areas: a tiny model, machines, launches, and results without their run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.document.blocks import Document
from ds_advise.advisor.document.terminal import print_document
from ds_advise.advisor.document.translation import translated
from ds_advise.advisor.launch.request import FailureKind, LaunchOutcome, LaunchRequest, Peaks, TrainingFailure
from ds_advise.advisor.render.answer import answer_document
from ds_advise.advisor.text.language import Language
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.files import write_config
from ds_advise.ds_configs.presets import plan_for
from ds_advise.ds_configs.training_script import training_arguments
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan, Strategy
from ds_advise.estimators.workload import Framework, Workload
from ds_advise.probes.benchmark_result import BENCH_VERSION, BenchFigure, BenchResult
from ds_advise.probes.machine import Machine
from ds_advise.probes.real_run.result import ProbeResult, RankFailure, RankReport, StepTime
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run
from ds_advise.probes.run_errors import DryRunError, worker_error
from rich.console import Console


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int, **fields: Any) -> Any:
    """The dimensions of a decoder, as `config.json` has them."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        **fields,
    }


SMALL_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **sizes(256, 688, 2, 4, 2, 1000, max_position_embeddings=512, tie_word_embeddings=False),
}
"""The config.json of a Llama that is dry-run in a second or two."""

WIDE_LLAMA: dict[str, Any] = SMALL_LLAMA | sizes(512, 1024, 3, 8, 4, 4000, max_position_embeddings=1024)
"""Its logits are the largest tensor."""

TINY_SIZES: dict[str, Any] = sizes(64, 128, 2, 4, 2, 512, max_position_embeddings=4096, tie_word_embeddings=False)
TINY: dict[str, Any] = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **TINY_SIZES}
"""A transformers configuration of 100 thousand parameters."""


def zero_config(stage: int, micro_batch_size: int = 1, accumulation: int = 1, **zero: Any) -> dict[str, Any]:
    """A ds_config with AdamW in bf16."""
    return {
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": stage, **zero},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }


def h100s(count: int) -> Cluster:
    """H100s in one node."""
    return Cluster(nodes=1, gpus_per_node=count, gpu=find_gpu("H100-80GB-SXM"))


def printed(answer: Recommendation, *, width: int = 80, details: bool = False, language: Language = "en") -> str:
    """An answer as the terminal shows it."""
    return printed_document(translated(answer_document(answer, details=details), language), width)


def printed_document(document: Document, width: int = 80) -> str:
    """A document as the terminal shows it."""
    page = io.StringIO()
    print_document(document, Console(file=page, width=width, highlight=False, color_system=None))
    return page.getvalue()


def schema_errors(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Where a value is not as a JSON Schema says; a field that the schema does not know is an error, too."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(_closed(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def _closed(form: Any) -> Any:
    """The schema without further fields in any of its objects."""
    if isinstance(form, list):
        return [_closed(each) for each in form]
    if not isinstance(form, Mapping):
        return form
    closed = {name: _closed(each) for name, each in form.items()}
    return closed | {"additionalProperties": False} if isinstance(form.get("properties"), Mapping) else closed


def imports_of(program: str, names: Sequence[str]) -> list[str]:
    """Those of the modules that a Python of its own has imported when the program has ended."""
    code = f"{program}\nimport sys\nprint('IMPORTED', *[name for name in {list(names)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("IMPORTED")[2].split()


def processes_of(folder: Path | str) -> list[psutil.Process]:
    """Processes with a file of the folder among their arguments: ranks, and what they started."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
    ]


def left_lock(folder: Path, op: str = "cpu_adam") -> Path:
    """The lock of an extension that is built, or whose build was ended. folder: TORCH_EXTENSIONS_DIR."""
    lock = folder / op / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def preset(
    strategy: Strategy, model: ModelShape, workload: Workload, cluster: Cluster, micro: int = 2, steps: int = 2
) -> Plan:
    """A strategy's plan for micro batches of two and two of them in a step, with checkpointing."""
    return plan_for(
        strategy,
        model,
        workload,
        cluster,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        gradient_checkpointing=True,
    )


def launch_request(run: Run, folder: Path, *arguments: str, **changes: Any) -> LaunchRequest:
    """A launch of `train.py` in the folder with torchrun."""
    request = LaunchRequest(
        words=(str(folder / "train.py"), *arguments),
        run=run,
        config_path=folder / "ds_config.json",
        folder=folder / "log",
    )
    return replace(request, **changes)


def outcome_of(folder: Path, kind: FailureKind | None, **changes: Any) -> LaunchOutcome:
    """A training that failed on rank 0 by this kind, or that finished."""
    outcome = LaunchOutcome(
        status="failed" if kind else "finished",
        failure=None if kind is None else TrainingFailure(kind=kind, rank=0, step=0, message=""),
        last_step=0,
        peaks=Peaks(host_bytes=1),
        seconds=1.0,
        folder=folder,
    )
    return replace(outcome, **changes)


MACHINE = Machine(
    gpus=("L4", "L4"),
    gpu_memory_bytes=(22 * 2**30,) * 2,
    driver="570.1",
    cpu="a CPU",
    cpu_cores=8,
    ram_bytes=64 * 2**30,
)


def bench_result(*figures: BenchFigure, **changes: Any) -> BenchResult:
    """A benchmark of two GPUs with these figures."""
    result = BenchResult(
        version=BENCH_VERSION,
        device="cuda",
        ranks=2,
        figures=figures,
        skipped=(),
        nvme_mount="",
        versions={},
        seconds=1.0,
    )
    return replace(result, **changes)


def ran(
    step: StepTime | float, *, world_size: int, device: Any, tokens_per_step: int, **memory: int | None
) -> ProbeResult:
    """A probe with this time, or as many seconds, for every step; memory: fields of its first rank's report."""
    if isinstance(step, float):
        step = StepTime(total_s=step, forward_s=1, backward_s=1, optimizer_s=1, waiting_s=None)
    report: dict[str, Any] = {
        "rank": 0,
        "allocated_bytes": None,
        "reserved_bytes": None,
        "device_bytes": None,
        "host_baseline_bytes": 0,
        "host_loading_peak_bytes": 0,
        "host_peak_bytes": 0,
        "host_pinned_bytes": None,
        "nvme_bytes": 0,
        "nvme_read_bytes": 0,
        "nvme_written_bytes": 0,
        "steps": (step,),
        "losses": (1.0,),
    }
    return ProbeResult(
        world_size=world_size,
        device=device,
        solo=False,
        tokens_per_step=tokens_per_step,
        ranks=(RankReport(**report | memory),),
        failure=None,
        versions={},
    )


def failed_probe(kind: Any, message: str = "no", *, world_size: int = 2, device: Any = "cpu") -> ProbeResult:
    """A probe whose rank 1 failed in its first step."""
    return ProbeResult(
        world_size=world_size,
        device=device,
        solo=False,
        tokens_per_step=0,
        ranks=(),
        failure=RankFailure(kind=kind, rank=1, phase="step 1", message=message),
        versions={},
        seconds=0.01,
    )


def fork_outcomes(dry_runs: Sequence[Callable[[], DryRunResult]]) -> list[DryRunResult | DryRunError]:
    """Calls of `dry_run` side by side, in forks of one process of the session, because importing torch takes long."""
    from benchmarks.dry_run.forked_dry_runs import answers
    from tests.training_scripts.forked_ranks import start_server

    start_server()
    return list(answers(dry_runs))


def ask_forks(dry_runs: Sequence[Callable[[], DryRunResult]]) -> list[DryRunResult]:
    """Their results. An error of a run fails the test."""
    outcomes = fork_outcomes(dry_runs)
    failed = [each for each in outcomes if isinstance(each, DryRunError)]
    assert not failed, failed
    return [each for each in outcomes if isinstance(each, DryRunResult)]


def recorded_in_fork(request: Any, *_: Any, **__: Any) -> dict[str, Any]:
    """What `probes.model_recorder.process.answer` answers, from a fork."""
    from tests.training_scripts.forked_ranks import recordings

    (answer,) = recordings([request])
    if "error" in answer:
        raise worker_error(answer)
    result: dict[str, Any] = answer["result"]
    return result


@contextmanager
def dry_runs_in_forks() -> Iterator[None]:
    """Dry runs and recorded modules are forks."""
    from benchmarks.dry_run.forked_dry_runs import runs_in_forks
    from tests.training_scripts.forked_ranks import start_server

    start_server()
    with patch("ds_advise.probes.model_recorder.recorded_model.answer", recorded_in_fork), runs_in_forks():
        yield


def write_training(
    folder: Path,
    plan: Plan,
    workload: Workload,
    cluster: Cluster,
    framework: Framework,
    *,
    model: dict[str, Any] = TINY_SIZES,
    steps: int = 5,
    samples: int | None = None,
    seq_len: int = 32,
    tiles: int = 0,
    file: str = "ds_config.json",
) -> None:
    """Write the configuration of a plan, and `job.json`, the input of the training scripts. The learning rate is larger
    than a user's, for a small model on random tokens."""
    shape = shape_from_config({"model_type": "qwen2", **model}, name="small")
    config = ds_config(plan, shape, workload, cluster, flavor=framework)
    learning_rate = 1e-2 if workload.method == "lora" else 1e-3
    if framework == "deepspeed":
        config["optimizer"]["params"]["lr"] = learning_rate
    write_config(config, folder / file, force=False)
    (folder / "reports").mkdir()
    job = {
        "model": model,
        "dtype": {"bf16": "bfloat16", "fp32": "float32"}[workload.precision],
        "lora_rank": workload.lora_rank if workload.method == "lora" else 0,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "optimizer_steps": steps,
        "samples": samples or cluster.world_size * plan.micro_batch_size * plan.gradient_accumulation_steps,
        "seq_len": seq_len,
        "sequence_parallel_size": plan.sequence_parallel_size,
        "tiles": tiles,
        "autotp_size": plan.autotp_size,
        "reports": str(folder / "reports"),
        "training_arguments": training_arguments(plan, workload, cluster)
        | {"output_dir": str(folder / "out"), "learning_rate": learning_rate},
    }
    (folder / "job.json").write_text(json.dumps(job))


def write_checkpoint(
    folder: Path, *, ranks: int, tag: str | None = None, stage: int = 2, parameters: int = 4096
) -> Path:
    """A Trainer's checkpoint under ZeRO, or without it (stage 0), with the files that a resumption reads. Its states
    have the entries that say what was saved (0.19.8 runtime/engine.py `_common_checkpoint_state`)."""
    import torch
    from safetensors.torch import save_file

    tag = tag or f"global_step{folder.name.removeprefix('checkpoint-')}"
    (folder / tag).mkdir(parents=True)
    (folder / "latest").write_text(tag)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 8, "log_history": []}))
    weights = {"weight": torch.arange(float(parameters))}
    save_file(weights, folder / "model.safetensors")
    shapes = [{"weight": torch.Size([parameters])}] if stage else None
    states = {"module": weights, "optimizer": None if stage else {}, "param_shapes": shapes}
    states |= {"shared_params": {}, "dp_world_size": ranks, "ds_version": "0.19.8"}
    for rank in range(ranks if stage == 3 else 1):
        prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
        torch.save(states, folder / tag / f"{prefix}mp_rank_00_model_states.pt")
    for rank in range(ranks):
        torch.save(weights, folder / f"rng_state_{rank}.pth")
        if stage:
            shard = {"zero_stage": stage, **weights}
            torch.save(shard, folder / tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder
