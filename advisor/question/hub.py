"""A model's `config.json` from the Hugging Face hub, using only the standard library.

Protocol and cache are those of huggingface_hub 2.4: `utils/_http.py hf_raise_for_status` (the header X-Error-Code),
`constants.py` (the environment variables), `file_download.py try_to_load_from_cache` (the folders).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ...estimators.errors import UnknownModelError
from ...estimators.models import catalogue
from ...probes.store_path import store_path
from ..text.output import to_stderr

_LIMIT_S, _PATIENCE_S, _SILENCE_S = 20.0, 2.0, 10.0
"""Seconds: limit for the download of a configuration (some kB); time until the reason for waiting is printed; limit
without a byte."""

_LARGEST_BYTES = 10_000_001
"""Maximum number of bytes to download: one more than `read_json_object` accepts."""

_OTHERWISE = "give a catalogue name, or a folder with the model's config.json"
_ABSENT = ("not on the hub, or private and not visible to the token", _OTHERWISE)
_REFUSALS = {
    "GatedRepo": (
        "the hub shows this model only to users who accepted its terms",
        "accept them on its page and log in with `hf auth login`, or set HF_TOKEN",
    ),
    "RepoNotFound": _ABSENT,
    "EntryNotFound": ("its repository on the hub has no config.json", _OTHERWISE),
}
"""X-Error-Code -> (problem, fix)."""


def config_from_hub(hub_id: str, *, offline: bool) -> Path:
    """The path of the model's `config.json` in the hub's cache or in the cache of ds-advise. It is downloaded into the
    latter, unless offline or HF_HUB_OFFLINE is set. Raises UnknownModelError."""

    def unknown(what: str, fix: str) -> UnknownModelError:
        if _OTHERWISE in fix and (meant := catalogue.misspelled_owner(hub_id)):
            return UnknownModelError(f"{hub_id}: {what}", fix=f"write {meant}")
        return UnknownModelError(f"{hub_id}: {what}", why=catalogue.nearest_phrase(hub_id), fix=fix)

    name = f"models--{hub_id.replace('/', '--')}"
    own = store_path().parent / "hub" / name / "config.json"
    for cached in (_hub_cache_path(name), own):
        if cached is not None and cached.is_file():
            return cached
    variable = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")
    if offline or variable:
        forbids, leave = ("--offline", "leave --offline out") if offline else ("HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")
        raise unknown(
            f"neither in the catalogue nor in the hub's cache, and {forbids} forbids the network",
            f"{leave} or {_OTHERWISE}",
        )
    no_network = "; ".join([_OTHERWISE, "--offline does not use the hub"])
    try:
        return _call_within_limit(lambda: _download(hub_id, own), f"asking the hub for the config.json of {hub_id} ...")
    except HTTPError as error:
        code = error.headers.get("X-Error-Code", "")
        if code in _REFUSALS or error.code in (401, 404):
            raise unknown(*_REFUSALS.get(code, _ABSENT)) from None
        what = f"not in the catalogue, and the hub answers {error.code} {error.reason}"
        raise unknown(what, no_network) from None
    except TimeoutError:
        what = f"not in the catalogue, and the hub did not send its config.json within {_LIMIT_S:.0f} s"
        raise unknown(what, no_network) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        what = f"not in the catalogue, and the hub cannot be reached ({reason})"
        raise unknown(what, no_network) from error


def _hub_home() -> Path:
    return Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")


def _hub_cache_path(name: str) -> Path | None:
    """The path of the newest version in the hub's cache; None if the cache has no version."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    folder = Path(chosen or _hub_home() / "hub").expanduser() / name
    try:
        return folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip() / "config.json"
    except OSError:
        return None


def _token() -> str:
    if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or _hub_home() / "token").expanduser().read_text("utf-8").strip()
    except OSError:
        return ""


class _TokenStaysWithHub(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


def _download(hub_id: str, to: Path) -> Path:
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if (token := _token()) else {}
    request = Request(f"{endpoint}/{quote(hub_id)}/resolve/main/config.json", headers=headers)
    with build_opener(_TokenStaysWithHub).open(request, timeout=_SILENCE_S) as answer:
        content = answer.read(_LARGEST_BYTES)
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f"{to.name}.{os.getpid()}")
    partial.write_bytes(content)
    return partial.replace(to)  # atomic, because another process may read the file


def _call_within_limit(download: Callable[[], Path], waiting: str) -> Path:
    """The result of a download within `_LIMIT_S`, because the socket's timeout restarts with every byte. waiting: the
    line printed on stderr after `_PATIENCE_S`. Raises the errors of `download`, or TimeoutError."""
    done: SimpleQueue[Path | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            done.put(download())
        except BaseException as error:
            done.put(error)

    Thread(target=run, daemon=True).start()  # a daemon, so that a hanging download does not keep the process alive
    try:
        result = done.get(timeout=_PATIENCE_S)
    except Empty:
        to_stderr(waiting)
        try:
            result = done.get(timeout=_LIMIT_S - _PATIENCE_S)
        except Empty:
            raise TimeoutError from None
    if isinstance(result, BaseException):
        raise result
    return result
