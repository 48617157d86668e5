"""Sources of a model: a folder, a file, the catalogue, the hub; and the errors without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest
from ds_advise.advisor.question.model_source import load_model
from ds_advise.estimators.errors import ModelConfigError, UnknownModelError
from ds_advise.estimators.models import catalogue

from tests.helpers import sizes

TINY = {"model_type": "llama", **sizes(64, 96, 2, 4, 4, 128)}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, whose refusals have the header X-Error-Code."""

    requests: ClassVar[list[tuple[str, str]]] = []
    """(path, token) of every request."""

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers.get("Authorization", "")))
        name = self.path.split("/")[2]
        if name == "slow":
            self.server.pause.wait(30)  # type: ignore[attr-defined]
        status = {"GatedRepo": 403, "RepoNotFound": 401, "EntryNotFound": 404, "without_a_code": 401, "down": 503}
        self.send_response(307 if name in ("renamed", "elsewhere") else status.get(name, 200))
        if name in ("GatedRepo", "RepoNotFound", "EntryNotFound"):
            self.send_header("X-Error-Code", name)
        if name in ("renamed", "elsewhere"):
            host = self.headers["Host"].replace("127.0.0.1", "localhost") if name == "elsewhere" else ""
            self.send_header("Location", f"{host and 'http://' + host}/someone/tiny/resolve/main/config.json")
        self.end_headers()
        if name == "tiny":
            self.wfile.write(json.dumps(TINY).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The requests to a hub on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.pause = Event()  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        Hub.requests.clear()
        yield Hub.requests
        server.pause.set()  # type: ignore[attr-defined]
        server.shutdown()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty caches, an empty current folder, and a port that nobody listens on in place of the hub."""
    cache, folder = tmp_path / "hub-cache", tmp_path / "here"
    folder.mkdir()
    for name in ("HF_HUB_OFFLINE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("HF_HUB_CACHE", cache),
        ("DS_ADVISE_CACHE", tmp_path / "own-cache"),
        ("HF_TOKEN", "hf_secret"),
    ):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.chdir(folder)
    return cache


def write(path: Path, config: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    file = write(tmp_path / "model" / "config.json", TINY)
    folder, direct = load_model(str(file.parent)), load_model(str(file))
    assert folder.parameters == direct.parameters == 2 * 128 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert folder.name == str(file.parent) and folder.source == str(file)


def test_a_folder_comes_before_the_catalogue(tmp_path: Path) -> None:
    """If it has a config.json; spaces around a name are dropped."""
    assert load_model(" Qwen2.5-14B\n").parameters == 14_770_033_664
    (tmp_path / "here" / "gpt2").mkdir()
    assert load_model("gpt2").parameters == catalogue.find("gpt2").parameters
    write(tmp_path / "here" / "gpt2" / "config.json", TINY)
    assert load_model("gpt2").model_type == "llama"


def test_nothing_of_the_folder_is_executed(tmp_path: Path) -> None:
    """Remote code and pickles next to the config.json are not read."""
    marker, remote = tmp_path / "executed", {"auto_map": {"AutoConfig": "evil.Config"}, "trust_remote_code": True}
    write(tmp_path / "model" / "config.json", TINY | remote)
    (tmp_path / "model" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: ...\n")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert load_model(str(tmp_path / "model")).parameters > 0
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", r"not JSON: .*line 1, column 2"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"[]", "holds no JSON object"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "hidden_size must be a whole number, not nan"),
        (b" " * 10_000_001, "larger than 10,000,000 bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelConfigError, match=message) as caught:
        load_model(str(tmp_path / "config.json"))
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["./nothing", "/nowhere/at/all", "~/no such folder", "../x", "some/folder/deep", "missing.json", "."]
)
def test_a_missing_path_is_not_looked_up_elsewhere(name: str) -> None:
    with pytest.raises(UnknownModelError, match=r"no such file or folder|no config\.json in this folder"):
        load_model(name)


@pytest.mark.usefixtures("hub")
def test_a_hub_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The socket's timeout restarts with every byte. The wait is announced."""
    monkeypatch.setattr("ds_advise.advisor.question.hub._LIMIT_S", 0.3)
    monkeypatch.setattr("ds_advise.advisor.question.hub._PATIENCE_S", 0.1)
    with pytest.raises(UnknownModelError, match="the hub did not send its config"):
        load_model("someone/slow")
    assert capsys.readouterr().err == "ds-advise: asking the hub for the config.json of someone/slow ...\n"


@pytest.mark.parametrize("name", ["Qwen2.5-15B", "", "a b/c", "gpt5"])
def test_a_name_that_is_not_a_hub_id_never_reaches_the_network(name: str, hub: list[tuple[str, str]]) -> None:
    with pytest.raises(UnknownModelError, match="in the catalogue"):
        load_model(name)
    assert not hub


def test_offline_forbids_the_network_but_not_the_cache(no_network: Path) -> None:
    with pytest.raises(UnknownModelError, match="--offline forbids the network") as caught:
        load_model("someone/tiny", offline=True)
    assert "leave --offline out" in caught.value.fix

    commit = "0" * 40
    snapshot = no_network / "models--someone--tiny" / "snapshots" / commit
    write(snapshot / "config.json", TINY)
    (no_network / "models--someone--tiny" / "refs").mkdir()
    (no_network / "models--someone--tiny" / "refs" / "main").write_text(commit)
    shape = load_model("someone/tiny", offline=True)
    assert shape.vocab_size == 128 and shape.name == "someone/tiny"


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("GatedRepo", "accepted its terms", "HF_TOKEN"),
        ("RepoNotFound", "not on the hub", "catalogue name"),
        ("EntryNotFound", r"no config\.json", "catalogue name"),
        ("without_a_code", "not on the hub", "catalogue name"),
        ("down", "the hub answers 503", "--offline"),
    ],
)
def test_refusals_of_the_hub_come_with_a_fix(hub: list[tuple[str, str]], name: str, what: str, fix: str) -> None:
    with pytest.raises(UnknownModelError, match=what) as caught:
        load_model(f"someone/{name}")
    assert fix in caught.value.fix and len(hub) == 1
    assert "nearest names" not in caught.value.why  # they are like no model


def test_a_hub_without_connection_comes_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModelError, match=r"cannot be reached \(.*refused\)") as caught:
        load_model("someone/Qwen2.5-14B")
    assert "--offline" in caught.value.fix and "Qwen/Qwen2.5-14B" in caught.value.why
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownModelError, match="HF_HUB_OFFLINE forbids the network"):
        load_model("someone/tiny")


@pytest.mark.parametrize(("name", "tokens"), [("tiny", 1), ("renamed", 2), ("elsewhere", 1)])
def test_a_downloaded_config_is_read_and_kept(hub: list[tuple[str, str]], name: str, tokens: int) -> None:
    """A redirection to another host does not carry the user's token."""
    for offline in (False, True):
        shape = load_model(f"someone/{name}", offline=offline)
        assert (shape.vocab_size, shape.source) == (128, f"config.json of someone/{name} on the hub")
    assert hub[0] == (f"/someone/{name}/resolve/main/config.json", "Bearer hf_secret")
    assert len(hub) == (1 if name == "tiny" else 2) and sum(bool(token) for _, token in hub) == tokens


def test_a_module_of_the_users_is_not_looked_up_as_a_name() -> None:
    """Commands that read models by name, such as `lint --model`, say which ones take it."""
    with pytest.raises(UnknownModelError, match=r"net\.py:Net is your own module, .* or ds-advise dry-run"):
        load_model("net.py:Net", offline=True)
