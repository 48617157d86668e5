"""The answer on the screen: what one acts on by default, the rest behind `--details`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ds_advise import advise
from ds_advise.advisor.cli.main import program, run
from ds_advise.advisor.document.terminal import line_count
from ds_advise.advisor.render.answer import MOST_LINES, answer_document
from ds_advise.advisor.render.ladder import ladder_table

from tests.helpers import printed_document

QUESTIONS = [
    "Qwen2.5-14B --gpus 2x32GB",
    "Llama-3.1-8B --gpus 8xH100 --sharding fsdp",
    "Llama-3.1-8B --gpus 8xH100 --seq-len 131072",
    "flan-t5-xl --gpus 4xA100-80GB --framework deepspeed",
    "Qwen2.5-14B --gpus RTX4090 --method qlora",
    "Qwen2.5-7B --gpus 4xA100-40GB --objective grpo --method lora",
    "Qwen2.5-14B --gpus 2x32GB --micro-batch max",
    "Qwen2.5-14B --gpus 2x32GB --seq-len max",
    "Qwen2.5-7B --gpus 2x16GB --method qlora --tokens 50M --price 1/h --eval-batch 8",
    "Qwen2.5-7B --gpus 4x16GB --method qlora --tokens 50M --price 1/h --eval-batch 8"
    " --modules-to-save embed_tokens,lm_head",
    "Llama-3.1-8B --gpus 2x8xH100 --seq-len 262144 --tokens 1B --price 20USD/node/h",
    "Llama-3.1-8B --gpus 4x8xH100 --seq-len max",
]


def _answer(question: str, columns: int = 80) -> list[str]:
    words = ["advise", *question.split(), "--no-write", "--offline"]
    words += [] if "--details" in words else ["--no-deepspeed-estimate"]
    done = CliRunner().invoke(program, words, env={"COLUMNS": str(columns)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.output.splitlines()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_takes_a_screen_and_overflows_at_no_width(question: str) -> None:
    """45 lines of 80 columns: where the script needs many, those that say why give way. At 80 and 40 columns every line
    is whole, commands and Python included. At 120 columns, sentences use them."""
    model, *options = question.split()
    pairs = zip(options[::2], options[1::2], strict=True)
    asked = {name.removeprefix("--").replace("-", "_"): int(text) if text.isdigit() else text for name, text in pairs}
    document = answer_document(advise(model, offline=True, deepspeed_estimate=False, **asked))
    assert line_count(document) <= MOST_LINES == 45
    for columns in (80, 40):
        lines = printed_document(document, columns).splitlines()
        assert [line for line in lines if len(line) > columns] == []
        assert columns < 80 or len(lines) == line_count(document)
    assert any(len(line) > 80 for line in _answer(question, 120))


def test_a_long_script_leaves_only_the_chosen_plan() -> None:
    """A regular expression of the frozen parts is not broken at all."""
    asked = "Qwen2.5-VL-7B --gpus 2x24GB --method qlora --freeze vision-tower --tokens 10M --price 1/h"
    assert len(_answer(asked)) <= MOST_LINES
    answer = advise("gpt2", gpus="2xL4", offline=True)
    assert [row.cells[0] for row in ladder_table(answer, shown="taken").rows] == [answer.strategy]


@pytest.mark.parametrize(
    ("question", "left_out"),
    [
        (
            "Qwen3-32B --gpus 8x8xH100 --seq-len 32768 --loss standard",
            "the bars of memory and time, plans that may not fit",
        ),
        ("Qwen2.5-14B --gpus 2x32GB", "the bars of memory and time"),
        ("gpt2 --gpus L4 --framework deepspeed", ""),
    ],
)
def test_an_answer_names_what_has_no_room(question: str, left_out: str) -> None:
    """What would change the answer and the dry run have room before plans that may not fit. The notes below the table
    are about the columns that it has."""
    for columns in (80, 64, 40):
        lines = _answer(question, columns)
        text = " ".join(" ".join(lines).split())
        assert ("Left out:" in text) == bool(left_out)
        assert f"Left out: {left_out} (--details)." in text or not left_out
        assert "What would change the answer" in text
        head = next(line for line in lines if "GPU GiB" in line)
        assert all(title in f"{head} " for title in (" batch ", " ckpt ", " RAM GiB ")) == (
            "Not shown at this width: " not in text
        )
        assert ("that share it" in text) <= (" batch " in head) and ("RAM, NVMe: per node" in text) <= ("RAM" in head)
    assert "What would change" in text and ("ds-advise dry-run" in text)


@pytest.mark.parametrize(
    ("asked", "lacks"),
    [
        ("--ram 128GB", "127.7 GiB of NVMe per node (--nvme)."),
        ("--ram 64GB --nvme /nvme:100GB", "127.7 GiB of NVMe per node (93.1 available)."),
    ],
)
def test_the_closest_plan_names_what_it_lacks(asked: str, lacks: str) -> None:
    """Where GPU and RAM suffice, the drive is missing. The table marks it. No two blank lines follow each other."""
    lines = _answer(f"Qwen2.5-7B --gpus 2xRTX5090 {asked}")
    verdict = " ".join(line.strip() for line in lines[: lines.index("")]).partition(" model ")[0].strip()
    assert verdict.startswith(
        "Nothing fits. The closest plan, zero3-nvme, needs 19.3 GiB per GPU (31.4 available) and "
    )
    assert verdict.endswith(lacks)
    assert [line for line in lines if line.startswith(">")] == [line for line in lines if " zero3-nvme  " in line]
    assert "\n\n\n" not in "\n".join(lines)


def test_embeddings_name_their_negatives_and_who_computes_their_loss() -> None:
    """The loss compares the texts of a micro batch, so steps of accumulation are not more of it."""
    text = " ".join(" ".join(_answer("bge-m3 --gpus 4xL40S --objective embedding")).split())
    found = re.search(r"micro batch (\d+) x (\d+) accumulation", text)
    assert found is not None
    micro, steps = map(int, found.groups())
    assert f"each text is compared with {micro} texts, those of its micro batch" in text
    assert f"--micro-batch {micro * steps}, if it fits" in text
    assert "SentenceTransformerTrainer" in text


def test_the_closest_plan_names_ram_above_that_of_usual_nodes() -> None:
    """Whether it has been asked about or not."""
    text = " ".join(" ".join(_answer("Llama-3.1-405B --gpus 8xA100-80GB")).split())
    assert re.search(
        r"The closest plan, zero3-nvme, needs .* [\d,]+ GiB of RAM per node \(--ram\) and [\d,]+ GiB of N", text
    )


def test_where_nothing_fits_three_shortages_are_a_list_and_no_probe_is_advised() -> None:
    text = " ".join(" ".join(_answer("Qwen2.5-7B --gpus 1x24GB --ram 32GB")).split())
    assert re.search(r"\([\d.]+ available\), [\d.]+ GiB of RAM .* available\) and [\d.]+ GiB of NVMe", text)
    on_cpu = _answer("Qwen2.5-14B --device cpu --ram 16GB")
    assert on_cpu[0].strip() == "Nothing fits." and " Evidence: analytic." in on_cpu


def test_an_answer_says_that_only_the_loading_is_in_the_way() -> None:
    """bitsandbytes quantizes the whole model on every GPU before ZeRO-3 shards it."""
    text = " ".join(" ".join(_answer("Llama-3.1-70B --gpus 8x24GB --method qlora --ram 256GB")).split())
    need = re.search(r"zero3 fits once it is loaded \(([\d.]+) GiB\); before, every GPU holds the whole model\.", text)
    assert text.startswith("No DeepSpeed plan fits; PyTorch's FSDP does. The closest plan, zero2-offload,")
    assert need and 5 < float(need[1]) < 15
    fits = " ".join(" ".join(_answer("Llama-3.1-70B --gpus 2x48GB --method qlora --ram 256GB")).split())
    assert "Its peak is the loading" in fits and "once it is loaded" not in fits


def test_the_loading_peak_of_a_plan_that_needs_too_much_after_it_is_named_too() -> None:
    """Else ZeRO-3 seems to shard nothing."""
    answer = advise("Llama-3.1-70B", gpus="2xRTX3090", ram="64GB", method="qlora", offline=True)
    zero3 = next(step.candidate for step in answer.ladder if step.strategy == "zero3")
    assert zero3 is not None and zero3.memory.peak.name == "load" and not answer.fits
    text = " ".join(str(answer).split())
    need = re.search(r"zero3 needs ([\d.]+) GiB once it is loaded; before, every GPU holds the whole model\.", text)
    assert need and 23.7 < float(need[1]) < 25


def test_the_form_of_a_batch_is_explained_below_the_table_and_is_no_title_of_the_verdicts() -> None:
    lines = _answer(QUESTIONS[0])
    head = next(at for at, line in enumerate(lines) if line.startswith("  strategy "))
    assert lines[head].endswith("tokens/s")
    last = next(at for at in range(head, len(lines)) if not lines[at])
    assert lines[last - 1].startswith("  batch: micro x accum; if RAM allows: ")


def test_a_count_of_parameters_is_not_split() -> None:
    lines = _answer("Llama-3.1-8B --gpus 2x24GB", 40)
    assert any("8.03 B parameters" in line for line in lines) and not [line for line in lines if line.endswith(" 8.03")]


def test_the_phases_of_a_step_with_rollouts_name_what_they_do() -> None:
    text = " ".join(" ".join(_answer("Qwen2.5-1.5B --gpus 1xA100-80GB --objective grpo --beta 0.1 --details")).split())
    assert "; 1 vLLM engine, " in text
    assert "; the policy's log-probabilities, the reference model's log-probabilities" in text


def test_a_comment_is_not_broken_by_a_backslash() -> None:
    """A shell takes the rest of a broken comment for a command."""
    lines = _answer("Llama-3.1-8B --gpus 2x8xA100-80GB", 40)
    comments = [line.strip() for line in lines if line.strip().startswith("#")]
    assert len(comments) > 1 and not [line for line in comments if line.endswith("\\")]


def test_a_host_of_unknown_ram_is_not_assumed_to_have_terabytes() -> None:
    """405 B parameters on a single card of 24 GB would take 9 TiB of RAM, which --ram must state."""
    asked = "Llama-3.1-405B --gpus RTX3090"
    lines = _answer(asked)
    assert lines[0].startswith(" Nothing fits.")
    assert any(line.endswith("needs --ram") for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "needs --ram: pass it if a host has more than 2,048 GiB" in text and "ckpt host: layer inputs in RAM" in text
    assert _answer(f"{asked} --ram 10TB")[0].endswith("fits.")


def test_a_plan_that_lacks_ram_and_a_drive_says_both() -> None:
    """With the RAM that the suggestion asks for."""
    text = "\n".join(_answer("Llama-3.1-8B --gpus 24GB --ram 32GB"))
    assert re.search(r"^> zero3-nvme .* needs RAM, --nvme$", text, re.MULTILINE)
    asked = re.search(r"--ram (\d+)GiB --nvme", text)
    assert asked is not None and f"The RAM with a margin for the error: {asked[1]} GiB." in text


def test_more_gpus_are_named_where_nothing_fits() -> None:
    """Also where more RAM, a drive and other methods would do."""
    assert any("--gpus 8x8xH100-SXM5" in line for line in _answer("DeepSeek-V3 --gpus 4x8xH100"))


def test_details_add_reasons_assumptions_and_the_script() -> None:
    short, long = (_answer(question) for question in (QUESTIONS[0], f"{QUESTIONS[0]} --details"))
    for words in (
        "TrainingArguments(",
        "Assumed: ",
        "No other strategy fits without NVMe.",
        "estimate_zero3_model_states",
    ):
        assert [line for line in long if words in line], words
        assert not [line for line in short if words in line], words


def test_a_command_that_is_broken_is_the_same_to_a_shell() -> None:
    """What stands on both sides of a backslash belongs together; text in quotes is not broken. Python:
    `test_python_is_continued_inside_its_parentheses`."""
    for question, lines in (
        (
            QUESTIONS[0],
            (
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) / 2))}",
                "deepspeed --num_gpus 2 train.py --deepspeed ds_config.json",
            ),
        ),
        (
            "gpt2 --gpus 2x8x32GB --details",
            (
                '--rdzv_endpoint $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):'
                "$((10000 + SLURM_JOB_ID % 20000)) train.py --deepspeed ds_config.json",
            ),
        ),
    ):
        printed = _answer(question, 40)
        assert [line for line in printed if len(line) > 40] == []
        joined = "\n".join(printed).replace(" \\\n     ", " ").replace("\\\n", "")
        assert [line for line in lines if line not in joined] == []


def test_details_say_what_a_checkpoint_takes_before_a_training() -> None:
    """14 bytes a parameter at stage 3 with AdamW, 2 of the model alone. How many fit is known of this machine alone."""
    text = " ".join(" ".join(_answer("Qwen2.5-14B --gpus 2x32GB --details")).split())
    assert "A checkpoint takes 192.6 GiB, and the Trainer keeps all of them; save_total_limit=1 needs" in text
    assert "with save_only_model=True each takes 27.5 GiB" in text
    text = " ".join(" ".join(_answer("gpt2 --device cpu --details")).split())
    assert re.search(r"keeps all of them: [\d,]+ fit into the [\d.]+ GiB free here", text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_details_show_on_a_terminal_that_they_work(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds. Where stderr is no terminal, nothing is printed there."""

    class _Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    shown = _Stream()
    monkeypatch.setattr(sys, "stderr", shown)
    assert run(["gpt2", "--gpus", "1x24GB", "--no-write", "--offline", "--details", "--no-deepspeed-estimate"]) == 0
    assert ("trying changes" in shown.getvalue()) == is_terminal and (is_terminal or not shown.getvalue())


def test_a_file_that_is_not_written_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands name it. An older file of this name is another's."""
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text("{}", encoding="utf-8")
    answered = " ".join(" ".join(_answer("gpt2 --gpus L4")).split())
    assert "ds_config.json is not written. The commands below need it. In the script, create " in answered
    both = " ".join(" ".join(_answer("Qwen2.5-14B --gpus 2x32GB --ram 180GB --method lora --seq-len 51")).split())
    assert "ds_config.json is not written. The commands below need it and ds_config_try_first.json. Try first" in both
    assert "ds_config.json is not written." in str(advise("gpt2", gpus="L4", offline=True))
    done = CliRunner().invoke(program, ["advise", "gpt2", "--gpus", "L4", "--offline", "-o", "other.json"])
    assert "Wrote other.json." in done.output and "not written" not in done.output


def test_code_in_a_sentence_is_not_broken_inside_a_name() -> None:
    """At 40 columns, where a sequence-parallel training's arguments are longer than a line."""
    lines = [line.strip() for line in _answer("Qwen3-32B --gpus 8x8xH100 --seq-len 32768 --loss standard", 40)]
    at = lines.index("sp_handler=")
    assert lines[at + 1 : at + 3] == ["DeepSpeedSequenceParallelConfig(", "sp_seq_length_is_variable=True,"]


def test_all_plans_that_are_asked_for_are_shown() -> None:
    """In as many lines as they take."""
    rows = [line for line in _answer("llama3.1-8b --gpus 8xH100 --all") if re.match(r"^[> ] (ddp|zero)", line)]
    assert len(rows) > MOST_LINES - 10 and sum(row[2:].startswith("zero1 ") for row in rows) > 1


def test_the_starts_of_many_job_files_take_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of the default script are not repeated for every launcher."""
    monkeypatch.chdir(tmp_path)
    asked = "llama3.1-8b --gpus 8xH100 --offline --no-deepspeed-estimate --script c.py --emit"
    words = ["advise", *asked.split(), "slurm,skypilot,ray,kubernetes,hostfile,accelerate"]
    text = CliRunner().invoke(program, words, env={"COLUMNS": "80"}).output
    assert len(text.splitlines()) <= MOST_LINES and text.count("--adam_epsilon") == 1
    assert "starts by further launchers (--details)." in text and "kubectl create -f trainjob.yaml" in text
    assert "without --train_file FILE (Arrow: input_ids, labels; ds-advise train makes it)" in " ".join(text.split())
    details = CliRunner().invoke(program, [*words, "--details"], env={"COLUMNS": "80"}).output
    assert details.count("--adam_epsilon") == 3


def test_a_file_that_is_kept_is_named_as_another_configuration(tmp_path: Path) -> None:
    """The commands name a free file, and how to write it: with the other one they would start another training."""
    for file in ("a.json", "a-2.json"):
        Path(file).write_text("{}", encoding="utf-8")
    done = CliRunner().invoke(program, ["advise", "gpt2", "--gpus", "L4", "--offline", "-o", "a.json"])
    kept = "a.json is not written: it is another configuration (--force replaces it). -o a-3.json writes this one."
    text = " ".join(done.output.split())
    assert kept in text and "--deepspeed a-3.json" in text and "launch a-3.json" in text
    assert text.count(" a.json") == 1 and Path("a.json").read_text(encoding="utf-8") == "{}"
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["a-2.json", "a.json"]


def test_a_network_that_more_nodes_need_is_named_with_their_speed() -> None:
    text = " ".join(" ".join(_answer("llama3.1-8b --gpus 8xH100")).split())
    assert re.search(r"--gpus 2x8xH100-SXM5 .* x at 3,200 Gb/s between nodes\)", text)
    text = " ".join(" ".join(_answer("llama3.1-8b --gpus 2x8xH100 --interconnect 100Gb/s")).split())
    assert "What would change the answer" in text and "between nodes" not in text


def test_a_plan_of_much_more_ram_than_one_of_its_speed_names_both() -> None:
    text = " ".join(" ".join(_answer("Qwen2.5-72B --gpus 8x192GB --method lora")).split())
    assert re.search(r"the simpler plan is used, with 1,\d+ GiB of RAM \(zero3: 15\d\.\d\)", text)


@pytest.mark.parametrize(
    ("length", "batch"), [(131_072, "32 samples (--global-batch),"), (200_000, "fewer than 32: long samples),")]
)
def test_a_smaller_default_batch_says_why(length: int, batch: str) -> None:
    assert batch in " ".join(_answer(f"llama3.1-8b --gpus 8xH100 --seq-len {length}"))


@pytest.mark.parametrize("details", ["", " --details"])
def test_ppo_names_the_trl_that_has_its_trainer(details: str) -> None:
    """And its parameters are those of two models."""
    lines = [line.strip() for line in _answer(f"Qwen2.5-7B --gpus 8xH100 --objective ppo{details}")]
    text = " ".join(lines)
    assert 'pip install "trl<1.13"' in lines
    assert "14.69 B parameters (policy and value model)" in text
    assert "trl 1.12" in text
    assert "pip install" not in " ".join(_answer("Qwen2.5-7B --gpus 8xH100 --objective dpo --loss standard"))


def test_a_plan_as_fast_as_one_that_is_close_is_named_with_it() -> None:
    """The ratio of ZeRO-1's speed to ZeRO-3's is predicted better than that to an offload's."""
    lines = _answer("Qwen2.5-7B --gpus 8xH100 --objective grpo")
    [note] = [line for line in lines if line.startswith(" note ")]
    speeds = {line[2:].split()[0]: line.split()[-2] for line in lines if line.startswith("  zero") and "fits" in line}
    assert speeds["zero3"] == speeds["zero3-offload-param"]
    assert "zero3-offload-param" in note and "zero3 " in note


def test_the_images_of_a_sample_stand_under_the_training() -> None:
    text = " ".join(" ".join(_answer("Qwen2.5-VL-7B --gpus 2xA100-80GB")).split())
    assert "sequence 2048, one image of 5,120 patches in each sample" in text


def test_every_row_of_a_narrow_table_has_one_form() -> None:
    """Where most names stand above their figures, short ones do too."""
    lines = _answer("Qwen2.5-7B --gpus 8xH100", 40)
    assert "  ddp" in lines
