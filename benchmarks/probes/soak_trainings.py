"""The trainings that `soak` disturbs and resumes: `ds-advise train`, and `launch` with a script of the Trainer.

Each is compared with the same training undisturbed: every step once, with its loss. `EXACT` bounds a resumed step under
the same plan, where DeepSpeed's Adam on a CPU rounds its bias correction otherwise; `OTHER_PLAN` one after a fallback,
whose sums have another order in bf16.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds_advise.validate.checkpoint import checkpoints_in, newest_usable

EXACT, OTHER_PLAN = 1e-3, 3e-2
VOCABULARY, LONG = 2**14, 256
"""With `LONG` tokens a sample, the logits of a micro batch are most of a rank's tensors."""

_RANDOM_WEIGHTS = """
import sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes |= {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "tie_word_embeddings": True}
torch.manual_seed(0)
AutoModelForCausalLM.from_config(Qwen2Config(**sizes), dtype=torch.bfloat16).save_pretrained(sys.argv[1])
words = Tokenizer(models.WordLevel({"<end>": 0, **{str(number): number for number in range(1, 512)}}, "<end>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>").save_pretrained(sys.argv[1])
""".replace("VOCABULARY", str(VOCABULARY))

_SCRIPT = """
import dataclasses, os, deepspeed, json, torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclasses.dataclass
class Given:
    model_name_or_path: str

deepspeed.init_distributed("gloo")
given, arguments = HfArgumentParser((Given, TrainingArguments)).parse_args_into_dataclasses()
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(given.model_name_or_path, dtype=torch.bfloat16)
rows = [[int(word) for word in json.loads(line)["text"].split()] for line in open("data.jsonl")]
trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
torch.distributed.barrier()
os._exit(0)
"""

_CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
}


@dataclass(frozen=True)
class Training:
    """One training, undisturbed: its size, and what `soak` measured of it."""

    command: str
    """"train" or "script"."""
    seq_len: int
    steps: int
    save_steps: int
    micro_batch: int

    def words(self, folder: Path) -> list[str]:
        """The arguments of ds-advise that begin it."""
        common = ["--device", "cpu", "--no-check", "--fallback"]
        if self.command == "train":
            return [
                *("train", "--model", "model", "--data", "data.jsonl", "--output-dir", "out", "--ranks", "2", *common),
                *("--strategy", "zero2", "--learning-rate", "1e-3", "--seq-len", str(self.seq_len), "--max-steps"),
                *(str(self.steps), "--save-steps", str(self.save_steps), "--micro-batch", str(self.micro_batch)),
                *("--global-batch", str(2 * self.micro_batch)),
            ]
        number = sum(1 for _ in folder.glob("log*"))
        return [
            *("launch", "ds_config.json", "--ranks", "2", *common, "--log-dir", f"log{number}", "--seq-len"),
            *(str(self.seq_len), "--", "train.py", "--model_name_or_path", "model", "--output_dir", "out", "--use_cpu"),
            *("True", "--bf16", "True", "--learning_rate", "1e-3", "--logging_steps", "1", "--report_to", "none"),
            *("--max_steps", str(self.steps), "--save_steps", str(self.save_steps), "--per_device_train_batch_size"),
            str(self.micro_batch),
        ]

    def resumed(self, folder: Path) -> list[str]:
        """The arguments that go on with it in the folder, or begin anew where there is no whole checkpoint."""
        usable, _ = newest_usable(checkpoints_in(folder / "out"), ranks=2, say=lambda _: None)
        if self.command == "train":
            return ["train", "--resume", "--output-dir", "out"] if usable else [*self.words(folder), "--force"]
        return [*self.words(folder), *(["--resume_from_checkpoint", str(usable)] if usable else [])]

    def prepare(self, here: Path, folder: Path) -> None:
        """Write model, data and script into the folder. here: of all trainings."""
        (folder / "model").symlink_to(model_folder(here), target_is_directory=True)
        (folder / "ds_config.json").write_text(json.dumps(_CONFIG))
        (folder / "train.py").write_text(_SCRIPT)
        dice = random.Random(0)
        rows = [" ".join(str(dice.randrange(1, 512)) for _ in range(self.seq_len - 1)) for _ in range(64)]
        (folder / "data.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))

    def losses(self, folder: Path) -> list[tuple[int, float]]:
        """(step, loss) of a training that has ended, empty where it has not."""
        state = folder / "out/trainer_state.json"
        if self.command == "script":
            state = folder / f"out/checkpoint-{self.steps}/trainer_state.json"
        if not state.exists():
            return []
        history = json.loads(state.read_text())["log_history"]
        return [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]

    def step(self, folder: Path) -> int:
        """The last step that rank 0 of the last launch has noted."""
        logs = [*folder.glob("out/training/**/rank0.jsonl"), *folder.glob("log*/rank0.jsonl")]
        if not logs:
            return 0
        lines = max(logs, key=lambda path: path.stat().st_mtime).read_text().splitlines()
        return max((json.loads(line).get("step", 0) for line in lines[:-1]), default=0)

    def whole_checkpoints(self, folder: Path) -> list[Path]:
        """Those that have been written to their end."""
        return [path for path in checkpoints_in(folder / "out") if (path / "ds_advise_checksums.json").exists()]


SHORT = {command: Training(command, 16, 40, 10, 4) for command in ("train", "script")}
MEMORY = {command: Training(command, LONG, 6, 2, 8) for command in ("train", "script")}
"""Trainings whose memory runs out."""


def model_folder(here: Path) -> Path:
    """The folder of a model with random weights, which is made where it is missing."""
    folder = here / "weights"
    if not folder.exists():
        subprocess.run([sys.executable, "-c", _RANDOM_WEIGHTS, str(folder)], check=True, stderr=subprocess.DEVNULL)
    return folder


def difference(found: Sequence[tuple[int, float]], undisturbed: Sequence[tuple[int, float]], most: float) -> str:
    """How the losses differ from the undisturbed ones, "" where they are the same."""
    if [step for step, _ in found] != [step for step, _ in undisturbed]:
        return f"its steps are {[step for step, _ in found]}"
    if not found:
        return "it has no losses"
    worst, step = max(
        (abs(loss - other) / other, step) for (step, loss), (_, other) in zip(found, undisturbed, strict=True)
    )
    return f"the loss of step {step} differs by {worst:.1%}" if worst > most else ""


def _states(checkpoint: Path) -> Path:
    return next(checkpoint.glob("global_step*/*rank_1_mp_rank_00_optim_states.pt"))


def _empty(file: Path) -> None:
    file.write_text("")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _change(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0x40]))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "states cut off": lambda checkpoint: _cut(_states(checkpoint)),
    "states changed": lambda checkpoint: _change(_states(checkpoint)),
    "states missing": lambda checkpoint: _states(checkpoint).unlink(),
    "weights changed": lambda checkpoint: _change(checkpoint / "model.safetensors"),
    "weights cut off": lambda checkpoint: _cut(next(checkpoint.glob("global_step*/mp_rank_00_model_states.pt"))),
    "trainer_state.json empty": lambda checkpoint: _empty(checkpoint / "trainer_state.json"),
}
"""What is done to the newest checkpoint of a training that was killed."""


def limit(pids: Sequence[int], kind: int, limit_bytes: int) -> None:
    """Let the ranks take no further memory, or write no longer file."""
    for pid in pids:
        resource.prlimit(pid, kind, (limit_bytes, limit_bytes))


def memory_limit_bytes(undisturbed: Path) -> int:
    """Memory of a rank that suffices for half of the micro batch of `MEMORY` or less, not for all of it: `Data` of
    the undisturbed training's peak, in its folder, less two of its logits in fp32."""
    return int((undisturbed / "peak").read_text()) - 2 * 4 * VOCABULARY * LONG * MEMORY["train"].micro_batch
