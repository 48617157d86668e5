"""The arguments of the default scripts."""

from __future__ import annotations

from dataclasses import replace

from ds_advise.probes.default_script.words import command_words
from ds_advise.probes.run import Run

from tests.helpers import TINY, h100s, zero_config


def test_whole_numbers_that_a_file_writes_as_floats_are_the_same_run() -> None:
    """DeepSpeed and lint accept `8.0`; transformers' parser refuses it as a number of samples."""
    run = Run(config=zero_config(2, 8, 4), model=TINY, cluster=h100s(2))
    same = replace(run, config=zero_config(2, 8.0, 4.0))  # type: ignore[arg-type]
    assert command_words(same) == command_words(run)
    assert "--per_device_train_batch_size" in command_words(run)
