"""Removes names, addresses and secrets from a text, for bug reports."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|sk-[\w-]{8,}|AKIA[A-Z0-9]{8,}|xox[a-z]-[\w-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w.-]+|[A-Fa-f0-9]{32,})\b"
)
"""Tokens of Hugging Face, GitHub, OpenAI, AWS and Slack, JSON web tokens, and long hexadecimal keys."""

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)"
    r"|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"
)
_HOMES = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s:'\"]+")
_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(?:^|_)KEY|KEY$")
_PUBLIC_NAMES = {"root", "localhost", ""}

_MIN_LENGTH = 3
"""Shorter names without a digit occur in any text and are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """(name, replacement) pairs, the longest name first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_machine(cls, *, nodes: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> Redactor:
        """Covers the user, the home folder, this host, the nodes of a hostfile, and the values of secret variables."""
        known = os.environ if environment is None else environment
        home = known.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  Path.home() fails for a user without one
        names = {home: "<home>"} if len(home) > 1 else {}
        for variable in ("USER", "LOGNAME", "SUDO_USER"):
            names[known.get(variable, "")] = "<user>"
        names[_account_name()] = "<user>"
        own = socket.gethostname()
        for name in (own, own.partition(".")[0], known.get("HOSTNAME", "")):
            names[name] = "<host>"
        for number, node in enumerate(nodes):
            user, _, host = node.rpartition("@")
            names |= {node: f"<node{number}>", host: f"<node{number}>", user: "<user>"}
        for variable, value in known.items():
            if _SECRET_VARIABLE.search(variable) and len(value) >= 6:
                names[value] = "<secret>"
        identifying = [
            (name, mask)
            for name, mask in names.items()
            if name not in _PUBLIC_NAMES and (len(name) >= _MIN_LENGTH or re.search(r"\w\d", name))
        ]
        return cls(names=tuple(sorted(identifying, key=lambda pair: -len(pair[0]))))

    def redact(self, text: str) -> str:
        """The text without these names, credentials, tokens, home folders and network addresses."""
        text = _CREDENTIALS.sub("<secret>@", text)
        for name, mask in self.names:
            whole = r"(?<![A-Za-z0-9])" + re.escape(name) + r"(?![A-Za-z0-9])"
            text = re.sub(whole if mask != "<secret>" else re.escape(name), mask, text)
        text = _HOMES.sub("<home>", _TOKENS.sub("<secret>", text))
        return _ADDRESS.sub(_mask_address, text)


def _mask_address(match: re.Match[str]) -> str:
    """Loopback and unspecified addresses are kept; version numbers are not addresses."""
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "<address>"


def _account_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user of a container may have no name
        return ""
