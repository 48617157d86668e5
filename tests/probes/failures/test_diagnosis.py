"""Which error of a log is the cause: ranks mixed, chains, survived errors, lines that are no errors, large logs."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from collections.abc import Iterator

import pytest
from ds_advise.probes.failures.diagnosis import Diagnosis, diagnose, diagnose_text
from ds_advise.probes.failures.out_of_memory import memory_figures, unfragmented
from ds_advise.probes.failures.signs import _FORMS, Sign, signs_in

GiB = 2**30
MiB = 2**20

FRAMES = """Traceback (most recent call last):
  File "/data/train.py", line 88, in <module>
    trainer.train()
  File "/opt/venv/lib/python3.11/site-packages/transformers/trainer.py", line 3736, in training_step
    self.accelerator.backward(loss, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 347, in backward
    _engine_run_backward(
"""
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the "
    "allocated memory 75.00 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.\n"
)
WATCHDOG = (
    "[rank0]:[E1129 10:11:12.131415 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8841, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800029 milliseconds "
    "before timing out.\n"
)
MEGATRON = (
    " iteration     5426/  250000 | consumed samples:        43408 | elapsed time per iteration (ms): 4247.9 | "
    "learning rate: 2.999E-04 | lm loss: {}E+00 | loss scale: 1.0 | grad norm: {} | number of nan iterations:   0 |\n"
)
LOSS = "{'loss': 1.2, 'grad_norm': 0.8, 'learning_rate': 1e-05, 'epoch': 0.1}\n"


def with_prefix(text: str, prefix: str) -> list[str]:
    return [f"{prefix}{line}\n" for line in text.splitlines()]


def mixed(*parts: list[str]) -> str:
    """Lines of several ranks by turns."""
    longest = max(map(len, parts))
    return "".join(part[row] for row in range(longest) for part in parts if row < len(part))


def found(text: str) -> str:
    message = diagnose_text(text).message
    return "" if message is None else message.id


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank{}]: ",
        "[default{}]:",
        "{}: ",
        "[1,{}]<stderr>:",
        "(Worker pid=1{}) ",
        "[pod/worker-{}/pytorch] [rank{}]: ",
        "worker-{} [rank{}]: ",
        "2026-01-02T03:04:05.678Z [rank{}]: ",
        "trainer-{}  | [rank{}]: ",
        "2026-01-02 03:04:05,678 ERROR [rank{}]: ",
    ],
)
def test_tracebacks_of_two_ranks_are_told_apart(prefix: str) -> None:
    """Rank 1 ran out of memory; rank 0's KeyError began later."""
    other = FRAMES.replace("train.py", "other.py") + "KeyError: 'labels'\n"
    log = mixed(with_prefix(FRAMES + FULL, prefix.format(1, 1)), [LOSS, LOSS, *with_prefix(other, prefix.format(0, 0))])
    first = diagnose_text(log).first
    assert first is not None and first.message is not None and first.message.id == "gpu-memory"
    assert first.rank in ((None,) if "pid" in prefix else (1,))
    assert str(first.error.frames[0]).startswith("/data/train.py:<module>") and len(first.error.frames) == 3


def test_the_first_error_of_the_first_rank_wins() -> None:
    """A timeout of the others is its effect, whether it is printed before or after it; alone it is the cause."""
    failure = "".join(with_prefix(FRAMES + FULL, "[rank3]: "))
    assert found(failure + WATCHDOG) == found(WATCHDOG + failure) == "gpu-memory"
    diagnosis = diagnose_text(WATCHDOG)
    waited = diagnosis.collective
    assert found(WATCHDOG) == "timeout" and waited is not None and str(waited) == "ALLREDUCE 8841"
    assert (waited.minutes, waited.ranks) == (30.0, (0,))
    assert diagnosis.first is not None and diagnosis.first.rank == 0
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED\n"
    assert found(launcher + failure) == "gpu-memory"
    only = diagnose_text(launcher)
    assert only.message is None and only.first is not None and only.first.role == "effect"


def test_an_unknown_exception_that_came_first_is_not_replaced_by_its_effect() -> None:
    unknown = with_prefix(FRAMES + "my_project.BadSample: row 7\n", "[rank2]: ")
    effect = with_prefix(FRAMES + FULL, "[rank0]: ")
    first = diagnose_text("".join(unknown + effect)).first
    assert first is not None and first.message is None and first.rank == 2
    assert first.error.text == "my_project.BadSample: row 7"


def test_a_chain_is_decided_by_its_first_known_exception() -> None:
    """Both tracebacks belong to one failure, in either order."""
    then = "\nDuring handling of the above exception, another exception occurred:\n\n"
    unknown = FRAMES + "ValueError: something else\n"
    for first, second in ((FRAMES + FULL, unknown), (unknown, FRAMES + FULL)):
        assert found(first + then + second) == "gpu-memory"


def test_an_error_that_the_training_survived_is_no_cause() -> None:
    """Steps were logged after it; the error at the end counts."""
    survived = FRAMES + FULL + LOSS * 5
    assert found(survived) == ""
    assert diagnose_text(survived).first is None
    assert (
        found(survived + FRAMES + "FileNotFoundError: [Errno 2] No such file or directory: 'dev.json'\n")
        != "gpu-memory"
    )


ENDED = "{'train_runtime': 4800.1, 'train_loss': 1.23, 'epoch': 1.0}\n"
EXITED = "[2026-11-20 12:00:00,000] [INFO] [launch.py:351:main] Process 4301 exits successfully.\n"


@pytest.mark.parametrize("end", [ENDED, EXITED])
def test_a_training_that_ended_normally_survived_its_errors(end: str) -> None:
    """Also an error that was never known; not one after the end, and none if the launcher then reports a failure."""
    own = FRAMES + "requests.exceptions.ConnectionError: no route\n"
    diagnosis = diagnose_text(FRAMES + FULL + LOSS + own + end)
    assert diagnosis.first is None and diagnosis.ended
    assert [(each.deciding, each.headline) for each in diagnosis.survived] == [
        (8, "CUDA out of memory"),
        (17, "requests.exceptions.ConnectionError: no route"),
    ]
    assert found(own + end + FRAMES + FULL) == "gpu-memory"
    assert found(FRAMES + FULL + end + "[ERROR] [launch.py:325] exits with return code = 1\n") == "gpu-memory"
    assert found(LOSS.replace("0.8", "nan") + end) == "nan-gradient"


LIBAIO = """ [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
 [WARNING]  async_io: please install the libaio-dev package with apt
"""


@pytest.mark.parametrize("before", ["", "[rank0]: ", "2024-05-01 10:00:00,123 "])
def test_a_warning_is_no_cause(before: str) -> None:
    """Of what failed afterwards, or of nothing; the op that then fails to load is one."""
    warning = "".join(with_prefix(LIBAIO, before))
    killed = "[ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = -9\n"
    assert diagnose_text(warning + LOSS).first is None and diagnose_text(warning + ENDED).first is None
    assert found(warning + FRAMES + FULL) == "gpu-memory"
    assert found(warning + killed) == "killed" and found(warning + WATCHDOG) == found(WATCHDOG)
    assert found(warning + FRAMES + "KeyboardInterrupt\n") == "interrupted"
    assert found(warning + FRAMES + "RuntimeError: Unable to JIT load the async_io op\n") == "async-io"


def test_an_ignored_exception_of_a_destructor_is_an_effect() -> None:
    ignored = (
        "Exception ignored in: <function Engine.__del__ at 0x7f>\n" + FRAMES + "AttributeError: 'NoneType' object\n"
    )
    assert found(FRAMES + FULL + ignored) == "gpu-memory"
    assert diagnose_text(ignored).message is None


@pytest.mark.parametrize(
    "line",
    [
        "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "usage: train.py [-h] [--ddp_timeout DDP_TIMEOUT] [--fp16_backend {auto,cuda_amp}]",
        "node1:7:8 [0] NCCL INFO NCCL_ASYNC_ERROR_HANDLING set by environment to 1.",
        "[WARNING] If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        "Found cached dataset. timeout=1800, on_error=raise",
        "Loading extension module fused_adam... Time to load fused_adam op: 0.1 seconds",
        "  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|          | 1/100 [00:09<14:51,  9.00s/it]",
    ],
)
def test_a_line_that_informs_is_no_error(line: str) -> None:
    assert diagnose_text(f"{line}\n{LOSS}{line}\n").first is None
    assert found(f"{line}\n{FRAMES}{FULL}{line}\n") == "gpu-memory"


def test_escape_codes_and_progress_bars_do_not_hide_an_error() -> None:
    colored = FULL.replace("torch.OutOfMemoryError", "\x1b[1;31mtorch.OutOfMemoryError\x1b[0m")
    bar = "".join(f"\r{step:3}%|#####     | {step}/100" for step in range(50))
    diagnosis = diagnose_text(f"{bar}{FRAMES}{bar}\r{colored}".replace("\n", "\r\n"))
    assert diagnosis.message is not None and diagnosis.message.id == "gpu-memory"
    assert diagnosis.phase is not None and diagnosis.phase.name == "backward"


def test_the_traceback_of_a_notebook_has_frames() -> None:
    log = (
        "OutOfMemoryError                          Traceback (most recent call last)\nCell In[2], line 1\n"
        "----> 1 trainer.evaluate()\n\nFile /opt/transformers/trainer.py:3140, in Trainer.evaluation_loop(self)\n"
        "-> 3140     preds_host = nested_concat(preds_host, logits)\n\n" + FULL.removeprefix("torch.")
    )
    diagnosis = diagnose_text(log)
    assert diagnosis.phase is not None and diagnosis.phase.name == "evaluation"
    assert diagnosis.first is not None and tuple(map(str, diagnosis.first.error.frames)) == (
        "/opt/transformers/trainer.py:evaluation_loop preds_host = nested_concat(preds_host, logits)",
    )


BOX = """│ /opt/conda/lib/python3.10/site-packages/torch/autograd/__init__.py:197 in  │
│ backward                                                                     │
│ ❱ 197 │   Variable._execution_engine.run_backward(                           │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
WRAPPED = """ERROR    Command failed.
         File
         "/opt/conda/lib/python3.12/site-packages/torch/autograd/
         __init__.py", line 347, in backward
           _engine_run_backward(
"""
HEADLESS = {
    "the end of a log": (FRAMES.partition("\n")[2], "backward"),
    "the end of a box": (BOX, "backward"),
    "a logger of 80 columns": (WRAPPED, "backward"),
    "a terminal of 60 columns": (
        '[rank1]:   File "/opt/conda/lib/python3.11/torch/autograd/__i\nnit__.py", line 267, in backward\n',
        "backward",
    ),
    "pytest": (">   trainer.train()\n\nsrc/trainer.py:14: in evaluate\n    nested_concat(a, b)\nE   ", "evaluation"),
    "a notebook": ("File /opt/train.py:62, in Trainer.evaluate(self)\n---> 62 nested_concat(a, b)\n", "evaluation"),
    "the code of its last frame": ("    return Variable._execution_engine.run_backward(\n    ^^^^^^^\n", "backward"),
    "an assignment": ("    denom = (exp_avg_sq.sqrt() / correction).add_(eps)\n", "optimizer_step"),
    "a new state": ("    state['exp_avg_sq'] = torch.zeros_like(p)\n", "first_step"),
    "a step": ("    self.optimizer.step()\n", "optimizer_step"),
    "a loss": ("    loss = F.cross_entropy(logits.view(-1, size), labels)\n", "loss"),
    "a level and a name": ('ERROR:root:  File "/opt/own.py", line 505, in validate\n', "evaluation"),
    "a level": (
        'ERROR:  File "/opt/torch/optim/adam.py", line 505, in step\nERROR:    self._step_all(grads)\n',
        "optimizer_step",
    ),
    "a Ray worker": ("ray::Worker.generate_sequences() (pid=7, ip=10.0.0.1)\n", "generation"),
}


@pytest.mark.parametrize("form", HEADLESS)
def test_frames_count_without_the_first_line_of_their_traceback(form: str) -> None:
    """It is cut off, or between the lines of other ranks."""
    frames, phase = HEADLESS[form]
    rank = "[rank1]: " if frames.startswith("[rank1]") else ""
    diagnosis = diagnose_text(f"{LOSS}{frames}{rank}{FULL}")
    assert diagnosis.message is not None and diagnosis.message.id == "gpu-memory"
    assert diagnosis.phase is not None and diagnosis.phase.name == phase


def test_the_frame_of_a_file_that_is_not_python_has_its_code() -> None:
    """It is in no function, and its code is no rest of a frame that a terminal broke."""
    for before in (
        "",
        'Traceback (most recent call last):\n  File "/w/run.py", line 3, in <module>\n    import data\n',
    ):
        first = diagnose_text(f'{before}  File "/w/data.py", line 12\n    x = f(\n         ^\nSyntaxError: bad\n').first
        assert first is not None and first.headline == "SyntaxError: bad"
        assert first.error.frames[-1][1:] == ("/w/data.py", "12", "", "x = f(")


def test_a_frame_that_no_exception_follows_ends() -> None:
    """A stack that was only printed is not the traceback of an error long after it."""
    stack = FRAMES.partition("\n")[2]
    diagnosis = diagnose_text(stack + "loading\n" * 200 + FULL)
    assert diagnosis.message is not None and diagnosis.first is not None and not diagnosis.first.error.frames


def test_the_message_of_a_logger_is_the_one_of_the_traceback_behind_it() -> None:
    diagnosis = diagnose_text("10:02 ERROR: " + FULL + FRAMES + FULL)
    assert diagnosis.phase is not None and diagnosis.phase.name == "backward"


def test_a_traceback_that_is_cut_off_is_of_the_message_in_front_of_it() -> None:
    """That of a launcher is not."""
    diagnosis = diagnose_text(LOSS + FULL + FRAMES)
    assert diagnosis.phase is not None and diagnosis.phase.name == "backward" and diagnosis.first is not None
    assert diagnosis.first.error.frames[-1].name == "backward"
    after = diagnose_text("    x = f(\n" + FULL + FRAMES + FULL).phase
    assert after is not None and after.name == "backward"
    launcher = FRAMES.replace("torch/autograd/__init__.py", "accelerate/commands/launch.py")
    for other in (diagnose_text(FULL + launcher), diagnose_text(FULL + "\nloading\n" + FRAMES)):
        assert other.phase is None


@pytest.mark.parametrize("prefix", ["", "[rank6]: "])
def test_the_line_that_raises_is_the_message_of_a_traceback_that_is_cut_off(prefix: str) -> None:
    frame = '  File "/opt/transformers/integrations/deepspeed.py", line 504, in deepspeed_load_checkpoint\n'
    raised = '    raise ValueError(f"Can\'t find a valid checkpoint at {checkpoint_path}")\n'
    log = "".join(with_prefix(FRAMES + frame + raised, prefix))
    first = diagnose_text(log).first
    assert first is not None and first.message is not None and first.message.id == "no-latest"
    assert first.error.line == first.deciding == 9 and first.error.frames[-1].name == "deepspeed_load_checkpoint"
    assert found(log.replace("raise ValueError", "error = ValueError")) == ""
    other = diagnose_text(log + prefix + "KeyError: 'answer'\n").first
    assert other is not None and other.headline == "KeyError: 'answer'"


FRAME_PHASES = [
    ("/w/accelerate/optimizer.py", "step", "self.optimizer.step(closure)", "optimizer_step"),
    ("H:\\venv\\lib\\accelerate\\optimizer.py", "step", "pass", "optimizer_step"),
    ("/w/torch/optim/adamw.py", "step", "state['exp_avg'] = torch.zeros_like(p)", "first_step"),
    ("/w/own.py", "train", "optimizer.step()", "optimizer_step"),
    ("/w/deepspeed/runtime/zero/parameter_offload.py", "pre_sub_module_forward_function", "pass", "forward"),
    ("/w/deepspeed/runtime/zero/parameter_offload.py", "post_sub_module_forward_function", "pass", "forward"),
    ("/w/deepspeed/runtime/zero/parameter_offload.py", "post_sub_module_backward_function", "pass", "backward"),
    ("/w/deepspeed/runtime/zero/partition_parameters.py", "_post_init_method", "param.partition()", "zero_init"),
    ("/w/deepspeed/runtime/zero/partition_parameters.py", "_partition_param", "pass", ""),
    ("/w/fused_cross_entropy.py", "forward", "grad = torch.zeros_like(x)", "loss"),
    ("/w/label_smoothed_cross_entropy.py", "forward", "out = model(**sample)", "loss"),
    ("/w/loss.py", "forward", "kl = self.criterion(torch.log_softmax(x, dim=1), target)", "loss"),
    ("/w/torch/nn/modules/module.py", "state_dict", "module.state_dict()", "saving"),
    ("/w/torch/nn/modules/module.py", "_apply", "module._apply(fn)", "load"),
    ("/w/own.py", "main", 'batch = batch.to("cuda")', ""),
    ("/w/own.py", "main", 'model.to("cuda")', "load"),
    ("/w/torch/distributed/fsdp/flat_param.py", "_init_flat_param", "pass", "load"),
    ("/w/torch/distributed/fsdp/fully_sharded_data_parallel.py", "__init__", "_auto_wrap(", "load"),
    ("/w/torch/distributed/fsdp/_wrap_utils.py", "_auto_wrap", "_recursive_wrap(**kwargs)", "load"),
    ("/w/torch/distributed/fsdp/wrap.py", "_recursive_wrap", "child = _recursive_wrap(", "load"),
    ("/w/torch/distributed/fsdp/_fully_shard/_fully_shard.py", "fully_shard", "_init_param_group(", "load"),
    ("/w/torch/distributed/fsdp/_runtime_utils.py", "_pre_forward", "pass", ""),
    ("/w/torch/distributed/fsdp/_state_dict_utils.py", "_full_post_state_dict_hook", "pass", "saving"),
    ("/w/torch/distributed/fsdp/_state_dict_utils.py", "_pre_load_state_dict_hook", "pass", "checkpoint"),
    ("/w/torch/distributed/checkpoint/state_dict.py", "set_model_state_dict", "pass", "checkpoint"),
    ("/w/torch/nn/modules/module.py", "_load_from_state_dict", "hook(state_dict)", "load"),
    ("/w/torch/optim/optimizer.py", "wrapper", "out = func(*args, **kwargs)", "optimizer_step"),
    ("/w/trainer.py", "prediction_loop", "preds = torch.cat((preds, logits), dim=0)", "evaluation_logits"),
    ("/w/own.py", "validate", "scores.clone()", "evaluation"),
    ("/w/own.py", "val_one_epoch", "self.model(x)", "evaluation"),
    ("/w/own.py", "evaluate_actions", "self.actor(x)", ""),
    ("/w/own.py", "test", "scores[~mask] += bias", "evaluation"),
    ("/w/own.py", "evaluate_predictions", "scores.clone()", "evaluation"),
    ("/w/own.py", "optim_policy_step", "self.opt.step()", "optimizer_step"),
    ("/w/own.py", "vocab_parallel_cross_entropy", "x.exp()", "loss"),
    ("/w/own.py", "<module>", "torch._C._nn.cross_entropy_loss(input, target, weight)", "loss"),
    ("/w/torch/utils/data/_utils/fetch.py", "fetch", "data = [self.dataset[i] for i in index]", "data"),
]


@pytest.mark.parametrize(("file", "name", "code", "phase"), FRAME_PHASES)
def test_the_innermost_frame_has_the_phase(file: str, name: str, code: str, phase: str) -> None:
    head = 'Traceback (most recent call last):\n  File "/w/own.py", line 9, in <module>\n    main()\n'
    log = f'{head}  File "{file}", line 12, in {name}\n    {code}\n{FULL}'
    found_phase = diagnose_text(log).phase
    assert ("" if found_phase is None else found_phase.name) == phase


PARTITIONED = """
  File "/w/deepspeed/runtime/zero/partitioned_param_coordinator.py", line 629, in __release_param
    param.partition(free_data=free_data)
  File "/w/deepspeed/runtime/zero/partition_parameters.py", line 1610, in partition
    self._partition(param_list, has_been_updated=has_been_updated, free_data=free_data)
  File "/w/deepspeed/runtime/zero/partition_parameters.py", line 1769, in _partition
    self._partition_param(param, has_been_updated=has_been_updated, free_data=True)
"""


@pytest.mark.parametrize(
    ("outer", "phase"),
    [
        ('  File "/w/torch/nn/modules/module.py", line 12, in _call_impl\n    hook_result = hook()', "forward"),
        ('  File "/w/torch/autograd/function.py", line 12, in backward\n    self.after(module)', "backward"),
        ('  File "/w/deepspeed/runtime/zero/partition_parameters.py", line 474, in wrapper\n    f()', "zero_init"),
    ],
)
def test_weights_are_partitioned_when_a_model_is_created_and_after_each_module(outer: str, phase: str) -> None:
    found_phase = diagnose_text(f"Traceback (most recent call last):\n{outer}{PARTITIONED}{FULL}").phase
    assert found_phase is not None and found_phase.name == phase


def test_the_line_of_a_warning_has_the_phase() -> None:
    warns = "/w/torch/distributed/fsdp/_state_dict_utils.py:312: UserWarning: Failed to clone() tensor with name x on "
    full = f"{warns}rank 0. Error: CUDA out of memory. Tried to allocate 172.00 MiB\n"
    found_one = diagnose_text(full)
    assert found_one.phase is not None and found_one.phase.name == "saving"
    assert found_one.explanation == found_one.message


def test_a_loss_that_calls_the_model_is_in_the_forward_pass() -> None:
    """What an outer frame names is not where the memory ran out."""
    for file, code in (
        ("label_cross_entropy.py", "out = model(x)"),
        ("own.py", "loss = F.cross_entropy(out, model(x))"),
    ):
        log = (
            f'Traceback (most recent call last):\n  File "/w/{file}", line 9, in get\n    {code}\n'
            f'  File "/w/torch/nn/modules/module.py", line 12, in _call_impl\n    result = forward_call(*args)\n{FULL}'
        )
        found_phase = diagnose_text(log).phase
        assert found_phase is not None and found_phase.name == "forward"


def test_the_fix_in_an_evaluation_of_ones_own_names_no_grad() -> None:
    diagnosis = diagnose_text(FRAMES.replace("in backward", "in validate") + FULL)
    assert diagnosis.explanation is not None and "torch.no_grad()" in diagnosis.explanation.fix


IN_CHINESE = [
    ("./run.sh: 行 3: 8810 已杀死              python train.py", "killed"),
    ("./run.sh: 行 3: 8810 段错误               （核心已转储）python train.py", "segmentation-fault"),  # noqa: RUF001
    ("/tmp/x.c:1:10: 致命错误：Python.h：没有那个文件或目录", "no-python-headers"),  # noqa: RUF001
    ("FAILED: a.o\ncsrc/a.cpp:1:10: 错误：‘x’在此作用域中尚未声明", "compiler-error"),  # noqa: RUF001
    ("OSError: [WinError 1455] 页面文件太小，无法完成操作。", "paging-file"),  # noqa: RUF001
]


@pytest.mark.parametrize(("line", "message"), IN_CHINESE)
def test_messages_of_a_system_in_chinese_are_known(line: str, message: str) -> None:
    assert found(f"step 1\n{line}\n") == message


BUILD = """FAILED: [code=1] cpu_adam.o
{line}
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File "/w/torch/utils/cpp_extension.py", line 2506, in _run_ninja_build
    subprocess.run(
RuntimeError: Error building extension 'cpu_adam'
"""


@pytest.mark.parametrize(
    ("line", "headline"),
    [
        (
            "a.cpp:12:5: error: 'AVX_Data' was not declared",
            "the compiler stopped at a.cpp:12:5: 'AVX_Data' was not decl",
        ),
        ("csrc\\a.cpp(41): error C2131: no constant", "the compiler stopped at csrc\\a.cpp(41): no constant"),
        (
            "LINK : fatal error LNK1181: cannot open input file 'x.lib'",
            "the compiler stopped at LINK: cannot open input",
        ),
        ("a.cu(7): warning: unused", "Error building extension 'cpu_adam'"),
        ("LINK : fatal error LNK1181: cannot open input file 'aio.lib'", "Error building extension 'cpu_adam'"),
    ],
)
def test_the_line_of_a_compiler_is_the_error_of_a_build(line: str, headline: str) -> None:
    """Not the word that the build stopped, and not DeepSpeed's test for libaio, which Windows never has."""
    first = diagnose_text(BUILD.format(line=line).replace("ninja: build stopped: subcommand failed.\n", "")).first
    assert first is not None and first.headline.startswith(headline)
    alone = diagnose_text(f"{line}\nKeyError: 'x'\n").first
    assert alone is not None and alone.headline == "KeyError: 'x'"


IN_A_DATA_SET = (
    '  File "/opt/torch/utils/data/_utils/fetch.py", line 44, in fetch\n    data = [self.dataset[i] for i in index]\n'
    '  File "/w/train.py", line 351, in __getitem__\n    one_hot = np.zeros(size, dtype=np.float32)\n'
)
IN_FORWARD = '  File "/opt/torch/nn/modules/module.py", line 9, in _call_impl\n    return forward_call(*args)\n'
NUMPY = "numpy.core._exceptions.MemoryError: Unable to allocate 329. MiB for an array with shape (5526, 15604)\n"
NO_RAM = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 237949750272 bytes.\n"


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        (IN_A_DATA_SET, NUMPY, "Make the samples smaller"),
        (IN_FORWARD, NO_RAM, "truncation=True"),
        ("[engine.py:1:init] [Rank 0] DeepSpeed info: version=0.19.8\n", NO_RAM, "Offload less"),
    ],
)
def test_a_lack_of_ram_has_the_fix_of_its_phase(frames: str, error: str, words: str) -> None:
    """Under DeepSpeed the forward pass also allocates what is offloaded."""
    head = "Traceback (most recent call last):\n"
    diagnosis = diagnose_text(f"{frames}{head}{IN_FORWARD}{error}" if "DeepSpeed" in frames else head + frames + error)
    assert diagnosis.explanation is not None and words in diagnosis.explanation.fix
    assert diagnosis.first is not None and not diagnosis.first.headline.endswith("329")


@pytest.mark.parametrize("head", ["  ", "  0%|      | 0/41 [00:00<?, ?it/s]"])
def test_a_traceback_that_is_indented_as_a_whole_has_its_exception(head: str) -> None:
    """As one that is pasted into a list or a code block."""
    lines = ["Traceback (most recent call last):", '   File "/w/a.py", line 8, in main', "     loss.backward()"]
    first = diagnose_text(head + "\n".join([*lines, "  RuntimeError: Found dtype Half but expected Float"])).first
    assert first is not None and first.message is not None and first.message.id == "loss-types-differ"
    assert [frame.name for frame in first.error.frames] == ["main"] and first.error.line == 4


def test_a_traceback_that_is_a_list_of_strings_is_read() -> None:
    """As Megatron logs it: the strings of traceback.format_exception in one line."""
    strings = [f"{line}\n" for line in (FRAMES + FULL).splitlines()]
    diagnosis = diagnose_text(f"12:[default0]:{strings}\n")
    assert diagnosis.phase is not None and diagnosis.phase.name == "backward" and diagnosis.memory is not None


IN_SAVE = '  File "/opt/transformers/trainer.py", line 9, in _save\n    state_dict = self.model.state_dict()\n'
IN_LOAD = '  File "/opt/transformers/modeling_utils.py", line 9, in from_pretrained\n    return load()\n'
IN_BACKWARD = '  File "/opt/torch/_tensor.py", line 9, in backward\n    torch.autograd.backward(\n'
OF_ZERO_3 = '  File "/opt/deepspeed/runtime/zero/stage3.py", line 9, in wrap\n    pass\n'
OF_FSDP = '  File "/opt/torch/distributed/fsdp/_x.py", line 9, in wrap\n    pass\n'
LOADING = "loading\n" * 200
OF_CODE = "│ 2349 │   │   if self.deepspeed: deepspeed.initialize(model) │\n"

BY_ENGINE = [
    ("", IN_SAVE, "weight.cpu()", "stage3_gather"),
    (OF_CODE, IN_SAVE, "weight.cpu()", "stage3_gather"),
    ("", OF_ZERO_3 + IN_SAVE, "stage3_gather_16bit_weights_on_model_save", "rank0_only"),
    ("", OF_FSDP + IN_SAVE, "rank0_only=True", "stage3_gather"),
    ("", IN_LOAD, "16 bits", "TrainingArguments"),
    ("Setting ds_accelerator to cuda (auto detect)\n", IN_LOAD, "16 bits", "TrainingArguments"),
    ("$ deepspeed --num_gpus 4 train.py\n", IN_LOAD, "Create TrainingArguments", "fsdp"),
    ("", OF_FSDP + IN_LOAD, "fsdp_cpu_ram_efficient_loading", "ZeRO"),
    ("", IN_BACKWARD, "(ZeRO, FSDP)", "a higher ZeRO stage"),
    ("[engine.py:1:init] [Rank 0] DeepSpeed info: version=0.15.4\n", IN_BACKWARD, "a higher ZeRO stage", "FSDP"),
    ("$ torchrun train.py --deepspeed ds_z3.json\n", IN_BACKWARD, "more GPUs", "ZeRO"),
    ("", OF_FSDP + IN_BACKWARD, "more GPUs", "ZeRO"),
]


@pytest.mark.parametrize(("before", "frames", "has", "lacks"), BY_ENGINE)
def test_a_fix_follows_the_engine_that_the_log_shows(before: str, frames: str, has: str, lacks: str) -> None:
    """By frames, and by lines long before the error."""
    log = f"{before}{LOADING}Traceback (most recent call last):\n{frames}{FULL}"
    explanation = diagnose_text(log).explanation
    assert explanation is not None and has in explanation.fix and lacks not in explanation.fix


@pytest.mark.parametrize(
    ("before", "is_in_16"),
    [
        ("", False),
        ("$ torchrun train.py --bf16 True --fp16 False\n", True),
        ("$ torchrun train.py --bf16 False\n", False),
        ("[INFO] [config.py:1:print]   bfloat16_enabled ............. True\n", True),
        ("[INFO] [config.py:1:print]   bfloat16_config .............. enabled=True x=False\n", True),
        ("[INFO] [config.py:1:print]   bfloat16_config .............. enabled=False x=True\n", False),
        ('  "torch_dtype": "bfloat16",\n', False),
    ],
)
def test_bf16_is_not_advised_to_a_training_in_bf16(before: str, is_in_16: bool) -> None:
    """What the type of a model's files does not show."""
    message = diagnose_text(f"{before}{LOADING}{{'loss': nan, 'grad_norm': nan}}\n").message
    assert message is not None and message.id == "nan-loss"
    assert ("16" not in message.cause + message.fix) == is_in_16
    steps = (f"{{'loss': {loss}, 'epoch': 0.1}}\n" for loss in (1.2, 9.1, 9.2, 9.3))
    course = diagnose_text(f"{before}{LOADING}{''.join(steps)}").course
    assert course is not None and ("16" not in course.cause + course.fix) == is_in_16


def test_a_full_gpu_in_another_library_has_its_own_fix() -> None:
    head, full = "Traceback (most recent call last):\n", FULL
    kv = '  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 9, in initialize_kv_cache\n    torch.zeros(shape)\n'
    layout = '  File "/opt/bitsandbytes/nn/modules.py", line 9, in _save_to_state_dict\n    w = undo_layout(x)\n'
    explanations = [diagnose_text(f"{head}{frames}{full}").explanation for frames in (kv, layout)]
    assert [each is not None and each.fix.split()[:2] for each in explanations] == [
        ["Lower", "vllm_gpu_memory_utilization"],
        ["Upgrade", "bitsandbytes:"],
    ]


def test_a_fix_names_no_argument_that_the_log_s_transformers_lacks() -> None:
    frame = '  File "/opt/transformers/trainer.py", line 9, in prediction_loop\n    preds = torch.cat((preds, x))\n'
    explanation = diagnose_text(f"Traceback (most recent call last):\n{frame}{FULL}").explanation
    assert explanation is not None and explanation.fix.startswith("Upgrade transformers")


def test_a_time_in_brackets_in_front_of_torchs_rank_hides_no_frame() -> None:
    log = f"Traceback (most recent call last):\n{IN_LOAD}{FULL}"
    log = "".join(f"[2026-04-02 10:12:33] [rank4]: {line}\n" for line in log.splitlines())
    found_in = diagnose_text(log)
    assert found_in.phase is not None and found_in.phase.name == "load"
    assert found_in.first is not None and found_in.first.rank == 4


def test_the_first_collective_operations_have_several_causes() -> None:
    """The link is not the only one: a rank without trained parameters calls fewer operations."""
    message = diagnose_text(WATCHDOG.replace("SeqNum=8841", "SeqNum=5")).message
    assert message is not None and message.id == "timeout-first" and not message.certain
    fix = message.fix
    assert fix.index("without trained parameters") < fix.index("NCCL_P2P_DISABLE=1")


def test_a_forward_pass_in_the_closure_of_an_optimizer_is_no_step_of_it() -> None:
    """Lightning."""
    frames = (
        'Traceback (most recent call last):\n  File "/opt/lightning/precision.py", line 93, in optimizer_step\n'
        '    return optimizer.step(closure=closure)\n  File "/opt/lightning/automatic.py", line 129, in closure\n'
        '    step_output = self._step_fn()\n  File "/data/model.py", line 12, in training_step\n    y = self(x)\n'
    )
    for text, phase in (
        (frames, "forward"),
        (frames.partition('  File "/opt/lightning/automatic')[0], "optimizer_step"),
    ):
        found_phase = diagnose_text(text + FULL).phase
        assert found_phase is not None and found_phase.name == phase


ALLOCATOR = {
    "1.13 to 2.0": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 79.15 GiB total capacity; "
        "70.00 GiB already allocated; 1.00 GiB free; 77.00 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation."
    ),
    "1.0 to 1.3": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 79.15 GiB total capacity; 70.00 GiB "
        "already allocated; 1.00 GiB free; 7.00 GiB cached)"
    ),
    "1.4 to 1.12": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 79.15 GiB total capacity; "
        "70.00 GiB already allocated; 1.00 GiB free; 77.00 GiB reserved in total by PyTorch)"
    ),
    "2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacty of "
        "79.15 GiB of which 1.00 GiB is free. Process 99 has 78.10 GiB memory in use. Of the allocated memory 70.00 "
        "GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."
    ),
    "2.2 and later": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 "
        "GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the "
        "allocated memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."
    ),
}


@pytest.mark.parametrize("torch", ALLOCATOR)
def test_the_allocators_figures_are_read_in_every_wording(torch: str) -> None:
    """7 GiB are free inside the allocator, and 2 GiB were asked: fragmentation."""
    figures = memory_figures(ALLOCATOR[torch])
    assert figures is not None and figures.device == 3
    assert (figures.asked_bytes, figures.free_bytes) == (2 * GiB, GiB)
    assert (figures.allocated_bytes, figures.reserved_bytes) == (70 * GiB, 77 * GiB)
    assert figures.total_bytes == round(79.15 * GiB)
    assert figures.is_fragmented and not figures.is_shared
    assert found(FRAMES + ALLOCATOR[torch]) == "gpu-fragmented"


def test_figures_of_the_async_allocator() -> None:
    """Its message has a line per figure."""
    text = (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 70.00 GiB\nRequested               : 512.00 MiB\n"
        "Device limit            : 79.15 GiB\nFree (according to CUDA): 20.00 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n"
    )
    figures = diagnose_text(FRAMES + text).memory
    assert figures is not None and figures.device == 0
    assert (figures.asked_bytes, figures.free_bytes, figures.allocated_bytes) == (512 * MiB, 20 * MiB, 70 * GiB)
    assert not figures.is_fragmented


def test_memory_of_another_process_is_seen_in_the_figures() -> None:
    """79.15 - 1.2 - 40 = 37.95 GiB belong to others."""
    diagnosis = diagnose_text(FRAMES + FULL.replace("77.90", "40.00").replace("75.00", "38.00"))
    assert diagnosis.message is not None and diagnosis.message.id == "gpu-shared"
    assert diagnosis.memory is not None and diagnosis.memory.other_bytes == pytest.approx(37.95 * GiB, rel=1e-3)


IN_A_CONTAINER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 7 has a total capacity of 79.33 GiB "
    "of which 800.31 MiB is free. {}Process 99 has 78.40 GiB memory in use. Of the allocated memory 76.02 GiB is "
    "allocated by PyTorch, and 510.20 MiB is reserved by PyTorch but unallocated."
)


def test_the_own_process_is_not_taken_for_another_one() -> None:
    """In a container torch does not recognize itself in the driver's list; NCCL's buffers are its own, too."""
    assert found(FRAMES + IN_A_CONTAINER.format("")) == "gpu-memory"
    shared = IN_A_CONTAINER.format("Process 98 has 20.00 GiB memory in use. ").replace("79.33", "99.33")
    assert found(FRAMES + shared) == "gpu-shared"
    larger = memory_figures(
        IN_A_CONTAINER.format("Process 98 has 120.00 GiB memory in use. ").replace("79.33", "199.33")
    )
    assert larger is not None and larger.process_bytes == pytest.approx(78.40 * GiB, abs=2)
    assert larger.other_bytes == pytest.approx(120.15 * GiB, rel=1e-3)
    before = (
        "RuntimeError: CUDA out of memory. Tried to allocate 164.00 MiB (GPU 2; 79.35 GiB total capacity; 77.10 GiB "
        "already allocated; 146.19 MiB free; 77.11 GiB reserved in total by PyTorch)"
    )
    assert found(FRAMES + before) == "gpu-memory"


def test_what_the_driver_keeps_in_ram_is_no_fragmentation() -> None:
    """Under Windows and WSL the allocator may hold more than the GPU has; under WSL NVML does not know the process."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of "
        "8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory "
        "in use. Of the allocated memory 14.21 GiB is allocated by PyTorch, and 467.99 MiB is reserved by PyTorch but "
        "unallocated."
    )
    diagnosis = diagnose_text(FRAMES + text)
    assert diagnosis.message is not None and diagnosis.message.id == "gpu-memory"
    figures = diagnosis.memory
    assert figures is not None and figures.exceeds_gpu and not figures.is_fragmented
    assert figures.process_bytes is None and figures.runtime_bytes == 0


def test_another_process_that_no_message_names_is_an_inference() -> None:
    """The runtime of the own process is assumed to be 2 GiB."""
    text = (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 191.98 "
        "GiB of which 1.10 GiB is free. Of the allocated memory 186.70 GiB is allocated by PyTorch, and 300.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    diagnosis = diagnose_text(FRAMES + text)
    assert diagnosis.message is not None and diagnosis.message.id == "gpu-outside" and not diagnosis.message.certain
    assert "micro batch" in diagnosis.message.fix
    cached = "RuntimeError: CUDA out of memory. Tried to allocate 350.00 MiB (GPU 0; 7.92 GiB total capacity; 1.65 GiB "
    assert found(f"{cached}already allocated; 158.00 MiB free; 122.28 MiB cached)") == "gpu-outside"
    assert found(f"{cached}already allocated; 158.00 MiB free)") == "gpu-memory"
    assert diagnosis.memory is not None and diagnosis.memory.is_assumed and diagnosis.memory.is_shared
    named = memory_figures(FULL)
    assert named is not None and not named.is_assumed


@pytest.mark.parametrize(
    ("torch", "setting"),
    [
        ("1.13", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"),
        ("2.1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("2.10", "PYTORCH_ALLOC_CONF=expandable_segments:True"),
    ],
)
def test_the_setting_against_fragmentation_is_one_of_the_own_torch(torch: str, setting: str) -> None:
    """torch 2.0 and older end with an error on `expandable_segments`."""
    message = {
        "1.13": "(GPU 0; 39.43 GiB total capacity; 25.12 GiB already allocated) If reserved memory is >> allocated "
        "memory try setting max_split_size_mb. See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF",
        "2.1": "GPU 0 has a total capacty of 39.43 GiB. If reserved but unallocated memory is large try setting "
        "max_split_size_mb. See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        "2.10": "GPU 0 has a total capacity of 39.43 GiB. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    }
    assert unfragmented(message[torch]) == setting
    assert unfragmented("CUDA out of memory.") == ""


def test_the_free_blocks_of_a_full_allocator_are_no_fragmentation() -> None:
    """150 MiB of 79 GiB would hold the request of 56 MiB, and not the next ones."""
    full = IN_A_CONTAINER.format("").replace("1.02 GiB", "56.00 MiB")
    assert found(FRAMES + full) == "gpu-memory"


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("RuntimeError: CUDA error: out of memory", "host_out_of_memory", "pinned-memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed", "host_out_of_memory", "ray-host-memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.", "host_out_of_memory", "kernel-oom-killer"),
        ("RuntimeError: The server socket has failed to listen: Address already in use", "crash", "port-in-use"),
    ],
)
def test_memory_of_the_host_is_not_taken_for_the_gpus(line: str, kind: str, message: str) -> None:
    """Page-locked memory is told from the GPU's by the frame that asked for it."""
    frames = FRAMES + '  File "/opt/deepspeed/runtime/zero/stage3.py", line 9, in _create\n    t.pin_memory()\n'
    diagnosis = diagnose_text(frames + line)
    assert diagnosis.message is not None and (diagnosis.message.id, diagnosis.kind) == (message, kind)


_STARTS = """Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/subprocess.py", line 1950, in _execute_child
    raise child_exception_type(errno_num, err_msg, err_filename)
"""
_SHARED = "RuntimeError: unable to allocate shared memory(shm) for file </torch_77_3_0>: No space left on device (28)"
_WAITS = """Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/torch/utils/file_baton.py", line 54, in wait
    time.sleep(self.wait_seconds)
"""
_NO_COMPILER = """Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 2893, in _run_ninja_build
    subprocess.run(
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status {}."""


@pytest.mark.parametrize(
    ("log", "message"),
    [
        # A program that is started is no file of data, and a path of one is none either.
        (_STARTS + "FileNotFoundError: [Errno 2] No such file or directory: 'numactl'", "missing-program"),
        (FRAMES + "FileNotFoundError: [Errno 2] No such file or directory: 'train.jsonl'", "missing-file"),
        # The disk of shared memory is not that of the checkpoints.
        (_SHARED, "shared-memory-full"),
        ("OSError: [Errno 28] No space left on device: '/scratch/out'", "disk-full"),
        # A compiler that is missing has no error of its own to read.
        (_NO_COMPILER.format(127), "no-build-compiler"),
        (_NO_COMPILER.format(1), "build-failed"),
        # torch says nothing while it waits for a lock, so that only the interrupt shows it.
        (_WAITS + "KeyboardInterrupt", "extension-lock-interrupted"),
        (FRAMES + "KeyboardInterrupt", "interrupted"),
        ("ValueError: --tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7", "tf32-unsupported"),
        ("RuntimeError: [enforce fail] Received data size doesn't match expected size.", "collectives-differ"),
    ],
)
def test_the_same_words_of_two_causes_are_told_apart(log: str, message: str) -> None:
    """As faults struck in real trainings showed (`benchmarks/struck_faults/`)."""
    assert found(log) == message


_NO_FILES = """Traceback (most recent call last):
  File "/opt/deepspeed/runtime/state_dict_factory.py", line 191, in check_ckpt_list
    assert len(self.ckpt_list) > 0
AssertionError"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("RuntimeError: element 0 of tensors does not require grad", "torch.no_grad"),
        (_NO_FILES, "the folder of the step was renamed"),
        ("RuntimeError: 'weight' must be 2-D", "outside of the module that it belongs to"),
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05}", "inputs that are not finite already"),
        ("AssertionError: loss must be a scalar tensor. If you need", "Several elements"),
    ],
)
def test_a_message_of_several_causes_names_those_that_were_struck(log: str, cause: str) -> None:
    """And none of them as the only one."""
    message = diagnose_text(log).message
    assert message is not None and not message.certain and cause in message.cause


def test_a_log_that_ends_while_it_waits_for_a_lock() -> None:
    """Only if nothing follows."""
    waits = "Using /root/.cache/torch_extensions/py311_cu124 as PyTorch extensions root...\n"
    assert found(LOSS + waits) == "extension-lock"
    assert diagnose_text(LOSS + waits + "Loading extension module cpu_adam...\n" + LOSS).first is None


class _Stream(io.RawIOBase):
    """A log of many parts that is never in memory as a whole."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts

    def read(self, _size: int = -1) -> bytes:
        return next(self._parts, b"")


def _diagnosed(parts: Iterator[bytes]) -> tuple[Diagnosis, int]:
    tracemalloc.start()
    try:
        return diagnose(_Stream(parts)), tracemalloc.get_traced_memory()[1]  # type: ignore[arg-type]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "filler", [LOSS.encode() * 3_000, b"WARNING: 7 rows failed, error 12345\n" * 300, b"." * (1 << 18)]
)
def test_a_large_log_is_read_in_bounded_memory(filler: bytes) -> None:
    """An error in front of 64 parts and one behind them: the first counts if the training did not go on."""

    def parts() -> Iterator[bytes]:
        yield b"\n".join([b"start", *with_bytes("[rank1]: ", FRAMES + FULL)])
        for _ in range(64):
            yield filler
        yield b"\nlast line\n"

    diagnosis, peak = _diagnosed(parts())
    assert peak < 24 * MiB
    survived = b"loss" in filler
    assert (diagnosis.first is None) == survived
    assert survived or (diagnosis.first is not None and diagnosis.first.error.line == 9)


def with_bytes(prefix: str, text: str) -> list[bytes]:
    return [line.encode() for line in (*(line.rstrip("\n") for line in with_prefix(text, prefix)), "")]


@pytest.mark.parametrize(
    ("log", "message", "line"),
    [
        ("{'loss': '2.1', 'grad_norm': '4.1'}\n{'loss': 'nan', 'grad_norm': 'nan'}\n", "nan-loss", 2),
        ("{'loss': 2.1, 'grad_norm': 4.1}\n{'loss': 0.0, 'grad_norm': nan}\n", "nan-gradient", 2),
        ("{'loss': '2.1', 'grad_norm': '4.1'}\n{'loss': '2.0', 'grad_norm': 'inf'}\n", "nan-gradient", 2),
        ("step 10 loss 2.31\nstep 20 loss nan\nstep 30 loss nan\n", "nan-loss", 2),
        ("Step 1 loss: 2.3\nStep 2 loss: inf\n", "nan-loss", 2),
        ("Step 1 loss: 2.3\nStep 2 loss: NaN\n", "nan-loss", 2),
        (LOSS * 5 + LOSS.replace("1.2", "nan") * 500, "nan-loss", 6),
        (LOSS * 5 + LOSS.replace("0.8", "inf") + LOSS * 5, "", 0),
        (f"{MEGATRON.format(7.1, 1.0)}{MEGATRON.format(7.0, 'nan') * 3}", "nan-gradient", 2),
        (f"{MEGATRON.format(7.1, 1.0)}{MEGATRON.format(7.0, 'inf')}", "nan-gradient", 2),
        (f"{MEGATRON.format(7.1, 1.0)}{MEGATRON.format(7.0, 'nan')}{MEGATRON.format(7.0, 1.0) * 5}", "", 0),
        ("step 10 loss 2.31\nloading nanogpt, info: loss information\n", "", 0),
    ],
)
def test_a_step_that_is_not_finite_is_found(log: str, message: str, line: int) -> None:
    """Bare and in quotes, in the loss or its gradient: the first of those that stay so, unless the training goes on."""
    diagnosis = diagnose_text(log)
    first = diagnosis.first
    assert (found(log), first.error.line if first else 0) == (message, line)
    assert first is None or first.error.steps == line - 1


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_exception_of_a_rank_is_what_the_others_waited_for(order: str) -> None:
    """Logs of ranks may be joined, so that the timeouts stand first."""
    raised = "".join(with_prefix(FRAMES + "KeyError: 'labels'\n", "[rank3]: "))
    timeouts = "".join(WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}") for rank in range(3))
    diagnosis = diagnose_text(raised + timeouts if order == "before" else timeouts + raised)
    assert diagnosis.first is not None and diagnosis.first.headline == "KeyError: 'labels'"
    assert diagnosis.first.rank == 3 and diagnosis.waits[0].ranks == (0, 1, 2)
    assert diagnosis.effects == ("Watchdog caught collective operation timeout",)


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.npy'\n"


@pytest.mark.parametrize("number", ["2", "8841"])
@pytest.mark.parametrize("prefix", ["[rank3]: ", ""])
def test_a_known_exception_of_a_rank_is_what_the_others_waited_for(prefix: str, number: str) -> None:
    """Also where its lines do not name the rank, and in one of the first operations."""
    raised = "".join(with_prefix(FRAMES + MISSING, prefix))
    assert found(WATCHDOG.replace("8841", number) + raised) == "missing-file"


def test_an_exception_of_a_collective_operation_is_of_a_rank_that_waited() -> None:
    frames = FRAMES + '  File "/opt/torch/distributed/distributed_c10d.py", line 3, in all_reduce\n'
    assert found(WATCHDOG + frames + "ValueError: closed\n") == "timeout"
    assert found(WATCHDOG + FRAMES + "ValueError: closed\n") == ""


LAUNCH = "[2025-01-01 00:00:12,345] [WARNING] [runner.py:191:fetch_hostfile] Unable to find hostfile\n"
TORCHRUN = "W0712 {}:00:00.123000 51200 torch/distributed/run.py:766] *****************************************\n"
FAILED = "E0712 09:40:05.400000 51200 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)\n"
EXITED = "[INFO] [launch.py:351:main] Process 3141 exits successfully.\n"


def test_of_appended_trainings_the_last_one_counts() -> None:
    failed = FRAMES + FULL
    after = diagnose_text(LAUNCH + 3 * LOSS + EXITED + LAUNCH + LOSS + failed)
    assert after.first is not None and after.first.error.steps == 1 and after.begin == 6
    assert [(run.begin, run.ended, run.first) for run in after.earlier] == [(1, True, None)]
    before = diagnose_text(LAUNCH + LOSS + failed + LAUNCH + 5 * LOSS + EXITED)
    assert before.first is None and before.ended and not before.survived and before.steps == 5
    assert [run.message and run.message.id for run in before.earlier] == ["gpu-memory"]
    assert not diagnose_text(LAUNCH + LAUNCH + LOSS + failed).earlier  # one start has several lines


@pytest.mark.parametrize(("hour", "runs"), [("09", 0), ("10", 1)])
def test_torchrun_starts_on_every_node_of_a_training(hour: str, runs: int) -> None:
    """Logs of nodes may be joined; a later start is another training."""
    log = TORCHRUN.format("09") + LOSS + FRAMES + FULL + FAILED + TORCHRUN.format(hour) + LOSS
    assert len(diagnose_text(log).earlier) == runs


def test_frames_of_another_rank_are_no_part_of_a_message() -> None:
    """Ranks without a prefix are mixed; the GPUs are told apart by the allocator's message."""
    other = '    loss = model(x)\n  File "/opt/torch/nn/modules/module.py", line 3, in forward\n    return x\n'
    diagnosis = diagnose_text(
        FRAMES + FULL + other + FULL.replace("GPU 1", "GPU 2") + other + FULL.replace("GPU 1", "GPU 3")
    )
    assert diagnosis.first is not None and len(diagnosis.first.error.lines) == 1
    assert diagnosis.devices == (2, 3)


@pytest.mark.parametrize(
    ("log", "message", "headline", "line"),
    [
        (
            "slurmstepd: error: Detected 2 oom_kill events in StepId=9.0. Some of the step tasks have been OOM Killed"
            "\n"
            "srun: error: node17: task 3: Out Of Memory\n"
            "0: slurmstepd: error: *** STEP 991.0 ON node17 CANCELLED AT 2025-05-05T11:22:33 ***\n",
            "kernel-oom-killer",
            "the kernel ended task 3 on node17 because memory ran out",
            2,
        ),
        (
            "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n"
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=40123,uid=0\n"
            "Memory cgroup out of memory: Killed process 40123 (python) total-vm:180234234kB, anon-rss:66234232kB\n",
            "container-memory",
            "the kernel ended process 40123 (python), which held 63.2 GiB, because memory ran out",
            3,
        ),
        (
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=40123,uid=0\n"
            "Out of memory: Killed process 40123 (python) total-vm:180234234kB, anon-rss:66234232kB\n",
            "kernel-oom-killer",
            "the kernel ended process 40123 (python), which held 63.2 GiB, because memory ran out",
            2,
        ),
    ],
)
def test_the_process_that_the_kernel_ended_is_named(log: str, message: str, headline: str, line: int) -> None:
    """By Slurm's task, which is no rank's output, or by the kernel's line."""
    diagnosis = diagnose_text(log)
    first = diagnosis.first
    assert first is not None and first.message is not None and first.message.id == message
    assert (first.headline, first.deciding, first.rank, diagnosis.followers) == (headline, line, None, ())


def test_code_in_a_traceback_is_not_the_message() -> None:
    """The line that raises has the words of the exception."""
    log = (
        'Traceback (most recent call last):\n  File "/opt/deepspeed/builder.py", line 50, in installed_cuda_version\n'
        '    raise MissingCUDAException("CUDA_HOME does not exist")\n'
        "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist\n"
    )
    first = diagnose_text(log).first
    assert first is not None and first.deciding == 4 and first.error.is_exception


def test_the_exception_that_names_the_feature_counts() -> None:
    """Of a chain whose exceptions are the same message."""
    log = (
        FRAMES + "ValueError: expected sequence of length 512 at dim 1 (got 341)\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        + FRAMES
        + "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with "
        "'padding=True'. Perhaps your features (`labels` in this case) have excessive nesting\n"
    )
    first = diagnose_text(log).first
    assert first is not None and first.headline.endswith("in the feature `labels`")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  1%|2         | 3/10500 [00:22<8:12:33,  2.87s/it]Bus error (core dumped)", "bus-error"),
        ("run.sh: line 3:  2211 Bus error               (core dumped) python train.py", "bus-error"),
        (
            "[rank2]:[F624 03:12:11.120 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 2] Terminating "
            "the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            "watchdog-stuck",
        ),
        ("/usr/bin/ld: cannot find -lcurand: No such file or directory", "no-libcurand"),
        ("RuntimeError: Expected all tensors to be on the same device, but got index is on cpu", "devices-cpu"),
        (
            "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/torch/lib/THC/THCStorage.cu:58",
            "gpu-memory",
        ),
        (
            "RuntimeError: cuda runtime error (2) : out of memory at /w/THC/THCCachingHostAllocator.cpp:271",
            "pinned-memory",
        ),
        (
            "RuntimeError: Failed to import transformers.trainer because of the following error (look up to see its "
            "traceback):\ncannot import name 'Cache' from 'transformers' (/opt/transformers/__init__.py)",
            "import-name",
        ),
        (
            "RuntimeError: The weights trying to be saved contained shared tensors [{'a.weight', 'b.weight'}] that are "
            "mismatching the transformers base configuration.",
            "tied-weights",
        ),
        (
            '  File "/opt/datasets/arrow_dataset.py", line 3450, in _map_single\n    for i, row in enumerate(rows):\n'
            "KeyError: 'instruction'",
            "missing-column",
        ),
        (
            '  File "/opt/datasets/formatting/formatting.py", line 270, in __getitem__\n    value = self.data[key]\n'
            "KeyError: 'instruction'",
            "missing-column",
        ),
        ("RuntimeError: still have inflight params [{'id': 711, 'status': 'AVAILABLE'}]", "zero3-parameter-state"),
        (
            "ValueError: The version of PEFT you are using is not compatible, please use a version that is greater "
            "than 0.5.0",
            "version-required",
        ),
        ("steps: 100%|####| 3300/3300 [2:41:46<00:00,  2.94s/it, avr_loss=nan]", "nan-loss"),
        ("Epoch 1:  10%|#| 30/330 [00:46<00:00,  2.94s/it, val_loss=nan]", ""),
        (
            "torch.distributed.DistStoreError: wait timeout after 900000ms, keys: /none/torchelastic/role_info/0",
            "rendezvous-store",
        ),
        (
            "[W301 18:45:15.741177013 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[n2]:38674, "
            "remote=[node1]:23456) timed out after 900000ms\n"
            '  File "/opt/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 7, in next_rendezvous\n',
            "rendezvous-store",
        ),
        (
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
            "cuda:1!",
            "devices-differ",
        ),
        (
            '  File "/opt/transformers/models/auto/configuration_auto.py", line 723, in __getitem__\n'
            "    raise KeyError(key)\nKeyError: 'qwen9'",
            "unknown-architecture",
        ),
        (
            "Unrecognized keys in `rope_scaling` for 'rope_type'='yarn': {'mscale'}\n"
            "  File \"/w/train.py\", line 7, in main\n    x = batch['qwen9']\nKeyError: 'qwen9'",
            "",
        ),
        ("nvcc fatal   : Value 'c++17' is not defined for option 'std'", "compiler-version"),
        ("AttributeError: 'DeepSpeedZeroOptimizer_Stage3' object has no attribute 'train'", "optimizer-train"),
        (
            "ValueError: You can't train a model that has been loaded in 8-bit precision on multiple devices.",
            "quantized-multi-gpu",
        ),
        (
            "OSError: [Errno 39] Directory not empty: '/d/tmp-checkpoint-a81kqz0p' -> '/d/checkpoint-200'",
            "checkpoint-rename",
        ),
        (
            "UserWarning: The installed version of bitsandbytes was compiled without GPU support.\n"
            "AttributeError: /opt/bitsandbytes/libbitsandbytes_cpu.so: undefined symbol: cget_managed_ptr",
            "bitsandbytes-cpu",
        ),
    ],
)
def test_a_fatal_line_alone_is_found(line: str, message: str) -> None:
    assert found(f"{LOSS}{line}\n") == message


def test_a_stuck_watchdog_is_the_effect_of_a_timeout_before_it() -> None:
    stuck = "[rank1]:[E1128 ProcessGroupNCCL.cpp:1858] ProcessGroupNCCL's watchdog got stuck for 480 seconds\n"
    assert found(WATCHDOG + stuck) == "timeout" and found(stuck) == "watchdog-stuck"


def test_nccl_that_connects_ranks_has_reached_the_rendezvous() -> None:
    """Its own line, and the last one of torch's exception."""
    refused = "socketStartConnect: Connect to 10.0.0.2<43211> failed : No route to host\n"
    error = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, remote process exited or\n"
    for log in (f"node1:1:2 [0] misc/socket.cc:484 NCCL WARN {refused}", f"{error}Last error:\n{refused}"):
        assert found(log) == "nccl-connect"
    assert found("RuntimeError: connect() timed out. No route to host\n") == "rendezvous"


def test_no_end_of_a_quotation_is_in_a_headline() -> None:
    first = diagnose_text("terminate called after throwing an instance of 'std::bad_alloc'\n").first
    assert first is not None and first.headline == "std::bad_alloc"


def _course(*losses: float, norm: float = 1.0, more: str = "") -> str:
    lines = (f"{{'loss': '{loss}', 'grad_norm': '{norm}'{more}}}\n" for loss in losses)
    message = diagnose_text("".join(lines)).course
    return "" if message is None else message.id


def test_the_course_of_a_loss_is_wrong_if_it_stays_0_or_ends_far_above_the_first_one() -> None:
    """A loss that is only unsteady is not, nor one of a reinforcement learning; 0 with a gradient is no loss of 0."""
    assert _course(1.2, 0, 0, 0, norm=0) == "zero-loss" and _course(1.7, *[11.8] * 60) == "rising-loss"
    usual = ((1.2, 1.4, 1.9, 2.0), (0.1, 0.3, 0.4, 0.5), (1.2, 0.8, 0.7, 9.8), (0, 0, 0), (1.7, 11.8))
    assert not any(_course(*losses) for losses in usual)
    assert not _course(0.01, 2, 3, 4, more=", 'reward': 0.5")
    failed = diagnose_text("{'loss': 0.0, 'grad_norm': 0.0}\n" * 3 + "KeyError: 'labels'\n")
    assert failed.course is None and failed.first is not None


def test_the_first_loss_is_that_of_the_last_training_and_may_be_far_above() -> None:
    """In a log whose steps have no word of an error, and in one with an earlier training."""
    begin, end = "{'loss': 1.7, 'grad_norm': 1.0}\n", "{'loss': 11.8, 'grad_norm': 9.0}\n"
    long = diagnose_text(begin + "some other line\n" * 60_000 + end * 5)
    assert long.course is not None and "from 1.7 in the first logged step to 11.8" in long.course.headline
    assert diagnose_text(f"{begin}$ torchrun train.py --bf16\n" + end * 5).course is None


FAILURES = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_10:11:12
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:11:12
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 13)
"""


def test_the_rank_that_torchrun_saw_fail_first_counts_before_the_order_of_lines() -> None:
    """Not against a known cause of another rank."""
    errors = {1: "ValueError: bad row 7", 2: "KeyError: 'text'"}
    lines = [f"[rank{rank}]: {line}\n" for rank, error in errors.items() for line in (FRAMES + error).splitlines()]
    first, told = diagnose_text("".join(lines)), diagnose_text("".join(lines) + FAILURES)
    assert first.first is not None and first.first.rank == 1 and not first.is_first
    assert told.first is not None and told.first.rank == 2 and told.is_first and told.followers == (1,)
    full = "".join(f"[rank1]: {line}\n" for line in (FRAMES + FULL).splitlines())
    known = diagnose_text(full + "".join(line for line in lines if line.startswith("[rank2]")) + FAILURES)
    assert known.first is not None and known.first.rank == 1 and known.message is not None
    later = FAILURES.replace("10:11:12", "10:11:13", 1)
    timed = diagnose_text(full + "".join(line for line in lines if line.startswith("[rank2]")) + later)
    assert timed.first is not None and timed.first.rank == 2 and timed.is_first and timed.followers == (1,)


def test_a_message_in_the_words_of_a_line_loses_to_a_traceback() -> None:
    """It is quoted, or steps were logged after it: a sample of the data, or an error that a script had handled."""
    quoted = 'INFO root: sample 0: "RuntimeError: CUDA out of memory. How do I fix this?"\n'
    plain = "input: torch.OutOfMemoryError: CUDA out of memory\n"
    end = FRAMES + "ZeroDivisionError: division by zero\n"
    for log in (quoted + LOSS + end, quoted + end, plain + LOSS + end):
        diagnosis = diagnose_text(log)
        assert diagnosis.first is not None and diagnosis.first.headline == "ZeroDivisionError: division by zero", log
    for log in (plain + end, plain + LOSS, quoted, f"ERROR trainer: {FULL}{end}"):
        assert found(log) == "gpu-memory", log


def test_a_normal_end_after_finite_steps_shows_that_a_gradient_of_inf_was_survived() -> None:
    inf = LOSS.replace("0.8", "inf")
    diagnosis = diagnose_text(LOSS * 4 + inf + LOSS * 2 + ENDED)
    assert diagnosis.first is None and diagnosis.ended
    assert [each.headline for each in diagnosis.survived] == ["the norm of the gradient became inf"]
    assert found(LOSS * 4 + inf + ENDED) == found(LOSS * 4 + inf + LOSS * 2) == "nan-gradient"


def test_the_deciding_line_is_the_one_that_has_the_message() -> None:
    """The pattern may read on in the next line."""
    warn = "node1:1:2 [3] misc/socket.cc:5 NCCL WARN socketStartConnect: Connect to 172.17.0.1<4> failed : No route\n"
    first = diagnose_text(warn + "node1:1:2 [3] NCCL INFO misc/socket.cc:567 -> 2\n").first
    assert first is not None and first.deciding == 1


@pytest.mark.parametrize("key", ["message", "msg", "event"])
def test_a_record_of_json_is_read_as_its_lines(key: str) -> None:
    """With a traceback in one record, or in one per line; data in JSON stays as it is."""
    text = (FRAMES + FULL).rstrip()
    one = json.dumps({"ts": "2026-11-29", "level": "error", "rank": 3, key: text})
    long = json.dumps({"ts": "2026-11-29", "level": "error", "rank": 3, key: "x" * 3_000 + "\n" + text})
    beside = json.dumps({"ts": "2026-11-29", "level": "error", "rank": 3, key: "failed", "exc_info": text})
    each = "\n".join(json.dumps({"level": "error", "rank": 3, key: line}) for line in text.split("\n"))
    for log in (one, long, beside, each, f"2026-11-29T10:11:12Z stdout F {one}"):
        diagnosis = diagnose_text(LOSS + log + "\n")
        assert diagnosis.phase is not None and diagnosis.phase.name == "backward"
        assert diagnosis.first is not None and diagnosis.first.rank == 3 and len(diagnosis.first.error.frames) == 3
    warned = json.dumps({"level": "warning", "msg": LIBAIO.partition("] ")[2].strip()})
    assert diagnose_text(f"{warned}\n{LOSS}").first is None
    assert diagnose_text(json.dumps({key: "sample", "text": text}) + "\n" + LOSS).phase is None


ILLEGAL = "CUDA error: an illegal memory access was encountered"


def _at(rank: int, time: str, error: str = ILLEGAL) -> str:
    return f"[rank{rank}]:[E1129 {time} ProcessGroupNCCL.cpp:616] [Rank {rank}] terminated with exception: {error}\n"


@pytest.mark.parametrize(
    ("log", "rank", "is_first"),
    [
        (_at(1, "10:00:09.1") + "".join(with_prefix(f"{FRAMES}RuntimeError: {ILLEGAL}", "[rank0]: ")), 1, False),
        (_at(1, "10:00:09.1") + _at(0, "10:00:09.2"), 1, True),
        (_at(1, "10:00:09.1") + _at(0, "10:00:08.9"), 0, True),
        (_at(1, "10:00:09.1") + _at(0, "10:00:08.9") + f"RuntimeError: {ILLEGAL}\n", 1, False),
        (
            _at(1, "10:00:09.1")
            + "".join(with_prefix(f"{FRAMES}KeyError: 'text'", "[rank0]: "))
            + _at(0, "10:00:09.2", "CUDA error: unspecified launch failure"),
            1,
            False,
        ),
        (_at(1, "10:00:09.1") + _at(0, "10:00:08.9", "CUDA error: device-side assert triggered"), 1, False),
    ],
    ids=["no time", "later", "earlier", "no time and no rank", "a time of its second error", "another cause earlier"],
)
def test_clocks_tell_that_a_rank_failed_first_if_every_rank_has_one(log: str, rank: int, is_first: bool) -> None:
    """Of its first error. None may be earlier, whatever the error is."""
    diagnosis = diagnose_text(log)
    assert diagnosis.first is not None and diagnosis.first.rank == rank
    assert diagnosis.is_first == is_first


SIGNS: dict[Sign, list[str]] = {
    "deepspeed": [
        *("deepspeed/runtime/engine.py", "DeepSpeed info: version=0.15.4", "transformers/deepspeed.py:deepspeed_init"),
        *("accelerate/utils/deepspeed.py:9", "accelerator.py:_prepare_deepspeed", "--deepspeed ds.json"),
        *("deepspeed train.py", "[INFO] [deepspeed] ", "deepspeed.initialize(", "[launch.py:1:main]"),
        *("[runner.py:1:main]", "[engine.py:1:init]", "[stage_1_and_2.py:1:step]"),
    ],
    "zero12": ["deepspeed/runtime/zero/stage_1_and_2.py", "[stage_1_and_2.py:1:step]"],
    "zero3": [
        *("deepspeed/runtime/zero/stage3.py", "in _zero3_consolidated_16bit_state_dict", "[stage3.py:1:step]"),
        *("--zero_stage 3", "zero_stage: 3", "--config_file z3.yaml"),
    ],
    "fsdp": [
        *("torch/distributed/fsdp/api.py", "torch/distributed/_composable/fsdp/api.py", "--fsdp full_shard"),
        *("accelerate/utils/fsdp_utils.py:9", "FSDP(", "fsdp_workers.py"),
    ],
    "outside_fp16": [
        *("--bf16", "bf16: true", "--dtype bfloat16", "--torch_dtype bf16", "torch_dtype=torch.bfloat16"),
        *("mixed_precision: bf16", "bfloat16_enabled ...... True", '"bf16": {"enabled": true}'),
    ],
    "prediction_loop": ["trainer.py:prediction_loop preds = torch.cat("],
}


@pytest.mark.parametrize("sign", _FORMS)
def test_every_form_of_a_sign_is_found(sign: Sign) -> None:
    """Each of its alternatives has an example here: only lines with certain words are searched."""
    assert all(sign in signs_in(example) for example in SIGNS[sign])
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[(?:\\.|[^\]\\])+\]|.", _FORMS[sign].pattern):
        depth += (token == "(") - (token == ")")
        parts = [*parts, ""] if token == "|" and not depth else [*parts[:-1], parts[-1] + token]
    assert not [part for part in parts if not any(re.search(part, example) for example in SIGNS[sign])]


AGENT = "W1129 10:11:12.131415 4700 torch/distributed/elastic/agent/server/api.py:739] "


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (f"{AGENT}Received 15 death signal, shutting down workers\n", "terminated"),
        ("[2026-11-29] [INFO] [launch.py:335:sigkill_handler] Main process received SIGTERM, exiting\n", "terminated"),
        ("E1129 10:11:12.1 4700 torch/x.py:984] failed (exitcode: -15) local_rank: 0 (pid: 4711)\n", "terminated"),
        (f"{AGENT}Sending process 4711 closing signal SIGTERM\n", ""),  # of a rank, because another one failed
        ("[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: x\n" + AGENT + "got signal: 15\n", ""),
        (
            f"{AGENT}Received 15 death signal, shutting down workers\n"
            "slurmstepd: error: *** JOB 4711 ON node-3 CANCELLED AT 2026-05-01T12:00:00 DUE TO TIME LIMIT ***\n",
            "time-limit",
        ),
        ("command terminated with exit code 137\n", "killed"),
        ("command terminated with exit code 139\n", ""),
        (
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\nsocketPollConnect: connect to 10.0.0.1<43211> returned Connection refused\n",
            "nccl-connect",
        ),
    ],
)
def test_signals_from_outside_and_connections(log: str, message: str) -> None:
    assert found(LOSS + log) == message


def test_a_message_that_begins_in_the_next_line_is_the_headline() -> None:
    """transformers' requires_backends begins with an empty line; a long headline ends with a whole word."""
    named = diagnose_text(
        "ImportError: \nA requires the SentencePiece library but it was not found in your environment.\n"
    )
    assert named.message is not None and named.message.fix.startswith("pip install sentencepiece")
    assert named.first is not None and named.first.headline == "SentencePiece is not installed"
    first = diagnose_text(
        "ImportError: \nA requires the Other library but it was not found in your environment.\n"
    ).first
    assert first is not None and first.headline.startswith("ImportError: A requires the Other library but it was not")
    long = diagnose_text(f"my.BadError: {'word ' * 40}\n").first
    assert long is not None and long.headline.endswith("word...") and len(long.headline) < 104


def test_the_headline_of_a_failed_task_names_it() -> None:
    first = diagnose_text("srun: error: n01: tasks 0-3: Exited with exit code 1\n").first
    assert first is not None and first.headline == "tasks 0-3 on n01: exit code 1"


def test_a_sign_of_zero_2_long_before_the_error_is_read() -> None:
    start = "[2026-11-29 10:11:12,131] [INFO] [stage_1_and_2.py:150:__init__] Reduce bucket size 500000000\n"
    assert "zero12" in diagnose_text(f"{start}{300 * LOSS}{FRAMES}{FULL}\n").signs


PACKAGES = "/opt/venv/lib/python3.11/site-packages"


def of_frames(*frames: str, error: str) -> str:
    """A traceback with frames as `FILE: CODE`."""
    parts = [frame.partition(": ") for frame in frames]
    lines = "".join(f'  File "{file}", line 9, in main\n    {code}\n' for file, _, code in parts)
    return f"Traceback (most recent call last):\n{lines}{error}\n"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("ValueError: Environment variable RANK expected, but not set\n", "no-rank-in-environment"),
        # The place of a warning is no frame.
        (
            f"{PACKAGES}/transformers/tokenization_utils_base.py:2888: FutureWarning: `x` is deprecated\n"
            + of_frames(
                "/data/train.py: json.load(file)", error="json.decoder.JSONDecodeError: Expecting value: line 1"
            ),
            "",
        ),
        (
            of_frames(
                f"{PACKAGES}/transformers/tokenization_utils_base.py: json.load(file)",
                error="json.decoder.JSONDecodeError: Expecting value: line 1",
            ),
            "json-file-damaged",
        ),
        # The parent of a spawned process is gone; no file is read.
        (
            of_frames(
                "/usr/lib/python3.11/multiprocessing/spawn.py: self = reduction.pickle.load(from_parent)",
                error="EOFError: Ran out of input",
            ),
            "",
        ),
        (
            of_frames(
                f"{PACKAGES}/torch/multiprocessing/spawn.py: fn(i, *args)",
                "/data/train.py: pickle.load(file)",
                error="EOFError: Ran out of input",
            ),
            "empty-file",
        ),
        # Of the user's own collective, also behind a line of zero.Init, and of ZeRO-3's.
        (
            "[2026-11-29 10:11:12,131] [INFO] [partition_parameters.py:348:__exit__] finished initializing model\n"
            + of_frames(
                "/data/train.py: dist.all_gather_into_tensor(out, part)",
                f"{PACKAGES}/torch/distributed/distributed_c10d.py: group._allgather_base(out, part)",
                error="TypeError: output tensor must have the same type as input tensor",
            ),
            "gathered-types-differ",
        ),
        (
            of_frames(
                f"{PACKAGES}/deepspeed/runtime/zero/partition_parameters.py: dist.allgather_fn(out, part)",
                error="TypeError: output tensor must have the same type as input tensor",
            ),
            "mixed-dtypes-zero3",
        ),
    ],
)
def test_what_is_near_an_error_tells_its_kind(log: str, message: str) -> None:
    assert found(log) == message


REFUSED = (
    "Couldn't connect to the Hub: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x.\n"
)
TOO_MANY = (
    "requests.exceptions.RetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with "
    "url: /api/models/x (Caused by ResponseError('too many 429 error responses'))\n"
)
FETCH = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/huggingface_hub/file_download.py", line 9, in hf_hub_download
[rank1]:     raise head_call_error
[rank1]: ValueError: nothing in the cache
"""


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (REFUSED + "".join(with_prefix(FRAMES + FULL, "[rank1]: ")), "gpu-memory"),
        (REFUSED + FRAMES + "ValueError: an odd value\n", ""),
        (REFUSED + FETCH, "hub-rate-limit"),  # the answer was needed
        (REFUSED, "hub-rate-limit"),
        (TOO_MANY, "hub-rate-limit"),  # of urllib3, which asked again after each
    ],
)
def test_a_request_that_failed_loses_to_a_later_traceback_without_one(log: str, message: str) -> None:
    assert found(log) == message


def test_of_an_exception_that_repeats_a_worker_s_the_original_one_counts() -> None:
    shared = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 "
        "GiB of which 1.58 GiB is free. Process 42 has 12.02 GiB memory in use. Including non-PyTorch memory, this "
        "process has 966.00 MiB memory in use. Of the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 "
        "MiB is reserved by PyTorch but unallocated.\n"
    )
    inner = '  File "/data/net.py", line 61, in forward\n    x = self.embed(x)\n'
    for error, expected in ((shared, "gpu-shared"), ("ValueError: an odd value\n", "")):
        name = error.partition(":")[0].rpartition(".")[2]
        log = f"{FRAMES}{name}: Caught {name} in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
        cause = diagnose_text(log + inner + error)
        assert (cause.message.id if cause.message else "") == expected
        assert cause.first is not None and cause.first.error.head == error.strip() and not cause.effects
        assert [frame.short_file for frame in cause.first.error.frames][-1].endswith("net.py")
        assert len(cause.first.error.frames) == 4  # also those of the thread that waited
        assert diagnose_text(log).first is not None  # the log ends before the original one


def test_the_size_of_an_exchanged_object_is_told_from_a_lack_of_memory() -> None:
    place = (
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 42, in {}\n    x\n'
    )
    full = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 1 has a total capacity of 79.14 GiB"
    )
    text = f"Traceback (most recent call last):\n{{}}{full} of which 37.80 GiB is free.\n"
    for function in ("all_gather_object", "broadcast_object_list", "_object_to_tensor"):
        assert found(text.format(place.format(function), "184.13")) == "object-size"
        assert found(text.format(place.format(function), "60.00")) == "gpu-memory"
    assert found(text.format(place.format("all_gather"), "184.13")) == "gpu-memory"


def test_what_nccl_says_is_the_headline_of_an_error_that_is_not_known() -> None:
    head = (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:1249, internal error\n"
    )
    log = f"{FRAMES}{head}ncclInternalError: Internal check failed.\nLast error:\n"
    first = diagnose_text(f"{log}An odd thing of the transport\n").first
    assert first is not None and first.headline == "NCCL: An odd thing of the transport"
    first = diagnose_text(f"{log}Bootstrap : no socket interface found\n").first
    assert first is not None and first.headline == "NCCL found no network interface"


@pytest.mark.parametrize(
    ("file", "function", "name", "message"),
    [
        ("torch/serialization.py", "_cuda_deserialize", "load", "load-location"),
        ("torch/serialization.py", "default_restore_location", "load", "load-location"),
        ("torch/nn/parallel/distributed.py", "__init__", "load", "gpu-memory"),
    ],
)
def test_memory_that_a_file_or_the_wrapping_takes_is_that_of_loading(
    file: str, function: str, name: str, message: str
) -> None:
    frame = f'  File "/opt/venv/lib/python3.11/site-packages/{file}", line 155, in {function}\n    x\n'
    cause = diagnose_text(f"Traceback (most recent call last):\n{frame}RuntimeError: CUDA error: out of memory\n")
    cause = cause if message == "load-location" else diagnose_text(f"Traceback (most recent call last):\n{frame}{FULL}")
    assert cause.message is not None and cause.message.id == message
    assert cause.phase is not None and cause.phase.name == name


def test_the_traceback_of_a_launcher_ends_no_rank() -> None:
    """Each task of `srun --label` starts a launcher, whose lines have the task's name."""
    launcher = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    assert found("".join(with_prefix(FRAMES + FULL + launcher, "3: "))) == "gpu-memory"
