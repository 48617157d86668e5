"""What holds for all tests: a store of results of their own, and DeepSpeed's extensions compiled once."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import pytest
from ds_advise.probes.machine import search_path
from ds_advise.probes.real_run import extension_lock
from ds_advise.validate.lint import read_deepspeed
from hypothesis import HealthCheck, settings

from tests.helpers import TINY, dry_runs_in_forks

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SCRIPTS = Path(__file__).with_name("training_scripts")
BUILD_LIMIT_S = 1800
EXTENSIONS = ("FusedAdamBuilder", "CPUAdamBuilder", "AsyncIOBuilder", "ShareMemCommBuilder")
SESSIONS: pytest.StashKey[TextIO] = pytest.StashKey()

# A busy machine may stretch every example.
settings.register_profile("ds-advise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ds-advise")


LONGEST = (
    "test_every_strategy_counts_what_the_real_engine_allocates",
    "test_a_cpu_measures_what_it_can",
    "test_the_keys_that_act_are_followed",
    "test_the_dry_run_agrees_with_an_older_deepspeed",
    "test_no_other_rank_peaks_higher",
)
"""Each takes minutes, and shares no fixture with others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin at once, so that no worker is left with one of them when the others have ended."""
    items.sort(key=lambda item: not item.name.startswith(LONGEST))


class Checkout:
    """The checkout's root is a folder to pytest, although an `__init__.py` makes it a package: no folder with a dash in
    its name, such as a clone's `ds-advise`, can be imported as one."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None


def pytest_configure(config: pytest.Config) -> None:
    """All processes that tests start find the extensions in one folder, which outlives the run."""
    config.pluginmanager.register(Checkout())  # a conftest's own hooks are not asked about the folders above it
    if find_spec("torch") is None:
        return  # the base package alone, which compiles nothing
    assert config.cache is not None
    versions = "-".join(
        [*(f"{name}{version(name)}" for name in ("torch", "deepspeed")), sys.implementation.cache_tag or ""]
    )
    folder = config.cache.mkdir(f"torch_extensions-{versions}")
    if not hasattr(config, "workerinput"):  # before pytest-xdist's workers begin
        sessions = config.stash[SESSIONS] = (folder / "sessions").open("w")
        with contextlib.suppress(BlockingIOError):  # another session of this checkout runs, and may hold them
            fcntl.flock(sessions, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for lock in folder.glob("*/lock"):
                lock.unlink()  # torch's, left by a build that was killed; the next one would wait for it forever
        fcntl.flock(sessions, fcntl.LOCK_SH)  # until this process ends
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    os.environ["PATH"] = search_path()
    os.environ["CXX"] = str(SCRIPTS / "quick" / "g++")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SCRIPTS / "quick"), os.environ.get("PYTHONPATH"))))


@pytest.fixture(autouse=True, scope="session")
def no_users_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a whole module keep does not go to the user's store either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ADVISE_CACHE", str(tmp_path_factory.mktemp("results of modules")))
        yield


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, for it and the processes that it starts. They work in a folder that begins empty."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results of this test"
    monkeypatch.setenv("DS_ADVISE_CACHE", str(folder))
    return folder / "results.sqlite"


@pytest.fixture(autouse=True, scope="session")
def sources_are_read_once() -> Iterator[None]:
    """DeepSpeed's, for lint: reading them takes longer than most tests, and each test has a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_deepspeed, "read_facts", functools.cache(read_deepspeed.read_facts))
        yield


@pytest.fixture
def in_forks() -> Iterator[None]:
    with dry_runs_in_forks():
        yield


@pytest.fixture(scope="session")
def extensions(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compile what DeepSpeed compiles at first use (`extensions("FusedAdamBuilder")`), because ranks would race for it.

    They are compiled side by side; where the long tests run too, all of them at the first call, so that no test waits
    later.
    """
    with_long_tests = request.config.option.markexpr != "not slow"

    def build(*builders: str) -> None:
        builders = EXTENSIONS if with_long_tests else builders
        folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        with (folder / "one_at_a_time").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            # of ranks whose watcher a test killed; a training would wait for them forever
            extension_lock.remove_abandoned()
            missing = [builder for builder in builders if not (folder / f"built {builder}").exists()]
            compilers = {
                builder: subprocess.Popen(
                    [sys.executable, str(SCRIPTS / "build_extension.py"), builder],
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "DS_ACCELERATOR": "cpu"},
                )
                for builder in missing
            }
            try:
                for builder, process in compilers.items():
                    assert process.wait(BUILD_LIMIT_S) == 0, f"{builder} was not compiled"
                    (folder / f"built {builder}").touch()
            finally:
                for process in compilers.values():
                    process.kill()
                    process.wait()

    return build


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer of 300 tokens, as Qwen's is made, with ChatML as its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        ["the answer to the question is the sum of the numbers"] * 4,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path, tokenizer_folder: Path) -> Path:
    """The folder of a tiny model: configuration and tokenizer, without weights."""
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder, folder)
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder
