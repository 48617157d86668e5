"""Files of options: what a script's words are without running it, and changes that leave everything else as it is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.importers.answer import detect_format
from ds_advise.advisor.importers.file_text import edit_json, edit_yaml, read_yaml
from ds_advise.advisor.importers.launch_line import SlurmJob, read_slurm, training_lines
from ds_advise.advisor.importers.shell_words import read_shell
from ds_advise.advisor.importers.source import parse_source
from ds_advise.estimators.errors import ConfigFileError

SHELL = {
    "run --a 1 --b='two words' --c \"three 'quoted' words\" --d e\\ f \\\n --e 2   # the rest is a comment": (
        "run --a 1 --b='two words' --c \"three 'quoted' words\" --d 'e f' --e 2"
    ),
    "A=3\nrun --a $A --b ${A} --c=$A": "run --a 3 --b 3 --c=3",
    'ARGS="--a 1 \\\n --b 2"\nrun $ARGS': "run --a 1 --b 2",
    "ARGS=(--a 'x y' # no\n --b 2)\nARGS+=(--c)\nrun \"${ARGS[@]}\"": "run --a 'x y' --b 2 --c",
    "export N=4\nrun $((N * 2)) $((1 + M))": "run 8 '$((1 + M))'",
    "run $(hostname) `date`": "run '$(...)' '$(...)'",
    "if [ -z $B ]; then B=2; fi\nrun $B": "run '$B'",
    "run a > log.txt 2>&1 | tee b": "run a",
    "cat <<EOF\nrun wrong\nEOF\nrun right": "run right",
    "X=1 run $X": "run '$X'",
    "run 'it''s' \"a\\\"b\"": "run its 'a\"b'",
}


@pytest.mark.parametrize("text", SHELL)
def test_known_variables_are_expanded(text: str) -> None:
    """What only the shell knows stays as it is written."""
    ran = [list(command.words) for command in read_shell(text) if command.words[0] == "run"]
    assert ran[0] == shlex.split(SHELL[text])


LAUNCHES = {
    "torchrun --nnodes 2 --nproc_per_node=8 train.py --output_dir o --bf16": ("script", "torchrun", 2, 8),
    "deepspeed --include localhost:0,1,2 run_clm.py --deepspeed ds.json": ("script", "deepspeed", 1, 3),
    "accelerate launch --num_processes 16 --num_machines 2 t.py": ("script", "accelerate", 2, 8),
    "CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft --model m": ("ms-swift", "", None, 2),
    "CUDA_VISIBLE_DEVICES=0,1 python train.py --deepspeed d.json": ("script", "", None, 1),
    "accelerate launch -m axolotl.cli.train a.yml": ("axolotl", "accelerate", None, None),
    "srun --ntasks 2 python3 -u train.py --output_dir o --learning_rate 1": ("script", "", None, None),
    'N=4\nRUN="torchrun --nnodes $N"\nsrun bash -lc "cd code && $RUN --node_rank \\$R t.py --bf16 --x \'y\'"': (
        "script",
        "torchrun",
        4,
        None,
    ),
    "sh -c 'NPROC_PER_NODE=2 exec bash -c \"swift sft --model m\"'": ("ms-swift", "", None, 2),
}


@pytest.mark.parametrize("text", LAUNCHES)
def test_a_launch_is_recognised(text: str) -> None:
    """Program, launcher, nodes, processes of each."""
    line = training_lines(read_shell(text))[0]
    assert (line.program, line.launcher, *line.counts()) == LAUNCHES[text]


@pytest.mark.parametrize(
    "text", ["python convert.py --in a", "pip install torch", "echo torchrun t.py", "ls", "bash -c", "bash x.sh -c"]
)
def test_commands_that_do_not_train_are_not_launches(text: str) -> None:
    assert training_lines(read_shell(text)) == []


JOBS = {
    "#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:8  # all\n#SBATCH --ntasks-per-node 1": SlurmJob(
        nodes=2, gpus_per_node=8, gpu="a100", tasks_per_node=1
    ),
    "#SBATCH -N 4 -G 16": SlurmJob(nodes=4, gpus_per_node=4),
    "#SBATCH --gpus-per-node=h100:4\n#SBATCH -n 8\n#SBATCH -N 2": SlurmJob(
        nodes=2, gpus_per_node=4, gpu="h100", tasks_per_node=4
    ),
    "#SBATCH --job-name=x": SlurmJob(),
}


@pytest.mark.parametrize("text", JOBS)
def test_directives_have_nodes_and_gpus(text: str) -> None:
    assert read_slurm(f"#!/bin/bash\n{text}\nsrun x") == JOBS[text]


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


SCRIPT = """# start --batch 9
B=${B:-4}
torchrun t.py --output_dir out --batch $B \\
    --flag --deepspeed 'a b.json' \\
    --last=1 > log 2>&1  # end
"""


def test_a_change_to_a_script_is_made_where_the_value_stands() -> None:
    """In the variable that is put in, within quotes, at the end of the command for what is new."""
    source = parse_source(Path("t.sh"), SCRIPT, "shell")
    text = source.edited({"batch": 2, "deepspeed": "c.json", "last": 7, "new": True, "flag": False})
    expected = SCRIPT.replace(":-4", ":-2").replace("'a b.json'", "c.json")
    expected = expected.replace("--last=1", "--last=7 --new true").replace("--flag", "--flag false")
    assert text == expected
    without = parse_source(Path("t.sh"), source.edited({"flag": None, "deepspeed": None}), "shell")
    assert without.arguments.text("deepspeed") is None


def test_a_command_for_another_shell_is_changed_in_its_quotes() -> None:
    """What is new goes to the end of the command, in the variable that holds it."""
    script = 'ARGS="--batch 4 --bf16"\nsrun bash -c "torchrun --node_rank \\$I t.py --output_dir \'o\' $ARGS"\n'
    text = parse_source(Path("t.sh"), script, "shell").edited({"batch": 2, "output_dir": "p", "new": 1})
    assert text == script.replace("4 --bf16", "2 --bf16 --new 1").replace("'o'", "p")
    listed = "torchrun t.py --output_dir o --bf16 --targets q v 2> log"
    text = parse_source(Path("t.sh"), listed, "shell").edited({"new": 1})
    assert text == listed.replace("q v", "q v --new 1")
    source = parse_source(Path("t.sh"), "A=1\ntorchrun t.py --output_dir o --bf16 --batch $A$A", "shell")
    with pytest.raises(ConfigFileError, match="several parts"):
        source.edited({"batch": 2})


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
