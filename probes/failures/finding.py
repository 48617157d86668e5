"""An error of a log: the known message that it is, and what it says."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from .log_error import LogError
from .logged_steps import count_steps
from .messages import Message, filled
from .traceback_frames import Frame

_RANK = re.compile(r"\b[Rr]ank[ :]+(\d+)")
_COLLECTIVE = re.compile(r"SeqNum=(\d+), OpType=(\w+).*?Timeout\(ms\)=(\d+)|OpType=(\w+), Timeout\(ms\)=(\d+)")

_GROUP = re.compile(r"\[PG (?:ID )?(\d+)")

_KILLED = re.compile(r"exitcode ?: -(\d+)|return code = -(\d+)")
_LOCAL_RANK = re.compile(r"local_rank: (\d+)|'--local_rank=(0)'.* return code = ")
"""The rank of which torchrun's agent tells. DeepSpeed's launcher prints the command of the last rank of the node,
whichever failed (0.19.8 launcher/launch.py): it tells the rank only if there is one."""

_ANY_RANK = "a rank"
"""A rank that the log does not name."""

_FAILED = re.compile(r"exitcode ?: (-?\d+)\)? local_rank: \d+")
"""The word of the elastic agent on a rank."""

_FAILED_RANK = re.compile(r"host\s*: (?P<host>\S+)\s+rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
"""A rank in torchrun's table of failures (torch 2.13 distributed/elastic/multiprocessing/errors)."""

_OF_SLURM = re.compile(r"^(?:slurmstepd|srun): ")
"""What a line of Slurm on a task or a step begins with, whatever rank's output it is in."""

_VICTIM = re.compile(
    r"Killed process (?P<process>\d+ \([^)]+\))(?:[^\n]{0,200}?anon-rss:(?P<kib>\d+)kB)?|"
    r"error: (?P<node>\S+): (?P<task>tasks? [\d,-]+): Out Of Memory"
)
"""The process that ran out of memory, as Linux (mm/oom_kill.c) and Slurm (srun) name it."""

_LIMIT = re.compile(r"Limits:\s[^:]*(?:\S+: +\d+\s+)*?memory: +(\d+)([GMT])i\b")
"""The memory of a pod's container (`kubectl describe pod`)."""

_WARNING = re.compile(r"^\W*(?:\d[\d\-:., T]*)?\W*(?:[\w.]+: )?\[?WARN(?:ING)?\b")
"""What a line of the level of warnings begins with: alone, or after the time and the logger's name."""

_AROUND = "'\"`,:;.!/"
"""Signs around a word of a title that are not part of it."""

_QUOTES = "'\"`"

_SENTENCE = re.compile(r"\. (?![KMGT]i?B\b)")
"""The end of a sentence. numpy writes `329. MiB`."""

_LONGEST_HEADLINE = 100
"""Characters of an error that are its headline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A collective operation in which ranks waited until it timed out."""

    operation: str
    sequence: int | None
    """Its number since the start of the group; None if the message does not name it."""
    minutes: float
    """The timeout."""
    group: str
    """The process group; "" if the message does not name it."""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """`ALLREDUCE 48209`, as the message has it."""
        number = "" if self.sequence is None else f" {self.sequence}"
        return f"{self.operation}{number}{self.group and f' of process group {self.group}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An error of the log, and the known message that it is."""

    error: LogError
    message: Message | None
    """None for an exception that is not known."""

    @property
    def role(self) -> Literal["cause", "late", "effect", "unknown"]:
        if self.error.ignored:
            return "effect"
        return "unknown" if self.message is None else self.message.role

    @property
    def is_step(self) -> bool:
        """Whether it is a training step with a figure that is not a finite number."""
        return not self.error.is_exception and bool(count_steps(self.error.head.encode()))

    @property
    def only_warns(self) -> bool:
        """Whether a program warns and goes on. What a launcher warns of, such as a signal, is no `cause`."""
        return not self.error.is_exception and self.role == "cause" and bool(_WARNING.match(self.error.head))

    @property
    def is_quoted(self) -> bool:
        """Whether the message stands in quotes behind other words. In a record of JSON every message does."""
        head = self.error.head
        found = None if self.message is None else self.message.pattern.search(head)
        return found is not None and not head.startswith("{") and head[: found.start()].count('"') % 2 == 1

    @property
    def rank(self) -> int | None:
        """The rank: by what the launcher wrote in front of the line, or by the message."""
        if _OF_SLURM.match(self.error.head):
            return None
        found = _RANK.search(self.error.head)
        return self.error.rank if self.error.rank is not None or found is None else int(found[1])

    @property
    def own_frame(self) -> Frame | None:
        """The last frame in a file of the user's; None without one."""
        return next((frame for frame in reversed(self.error.frames) if frame.is_own), None)

    @property
    def deciding(self) -> int:
        """Number of the line in which the known message ends; of the error's first line without one."""
        lines = self.error.lines
        ends = accumulate(len(line.text.strip()) + 1 for line in lines)
        text = " ".join(line.text.strip() for line in lines)
        pattern = self.message and self.message.pattern
        # The pattern may read on in the next line, which may begin with any words.
        found = self._victim or (pattern and (pattern.search(lines[0].text.strip()) or pattern.search(text)))
        numbered = zip(lines, ends, strict=True)
        return next((line.number for line, end in numbered if found and found.end() <= end), self.error.line)

    @property
    def named(self) -> dict[str, str]:
        """What the message names, by the pattern's groups: in its first line, else in all of them, else also in the
        lines behind an empty one; empty if it does not name all."""
        if self.message is None:
            return {}
        error = self.error
        further = " ".join([error.head, *(line.text.strip() for line in error.after)])
        return next(filter(None, map(self.message.names, (error.head, error.text, further))), {})

    @property
    def _victim(self) -> re.Match[str] | None:
        """The process that the kernel ended because memory ran out; None if the message does not name it."""
        is_out = self.message is not None and self.message.kind == "host_out_of_memory"
        return _VICTIM.search(self.error.text) if is_out else None

    @property
    def memory_limit(self) -> str:
        """The RAM that the container was allowed, as `--ram` takes it; "" if the log does not show it."""
        found = _LIMIT.search("\n".join(self.error.around))
        return "" if found is None else f"{found[1]}{found[2]}iB"

    @property
    def headline(self) -> str:
        """What the message says: the table's sentence, or the signal that ended the process, or the parts of the title
        that the log has, or the log's own words."""
        text, message = self.error.text, self.message
        if message is not None:
            if victim := self._victim:
                who = f"process {victim['process']}" if victim["process"] else f"{victim['task']} on {victim['node']}"
                held = f", which held {int(victim['kib']) / 2**20:.1f} GiB," if victim["kib"] else ""
                return f"the kernel ended {who}{held} because memory ran out"
            if message.headline and (self.named or "{" not in message.headline):
                return filled(message.headline, self.named)
            if killed := _KILLED.search(text):
                number = int(killed[1] or killed[2])
                place = self._place if self.rank is None else f"rank {self.rank}"
                which = "; DeepSpeed's launcher does not say which" if place == _ANY_RANK and killed[2] else ""
                return f"{place} was killed by {_signal(number)} (exit code -{number}){which}"
            if known := ", ".join(_filled(part, text) for part in message.title.split(", ") if _says(text, part)):
                return known
        found = message and (message.pattern.search(self.error.head) or message.pattern.search(text))
        head = self.error.head
        if found is None and (last := self._last_error_of_nccl):
            head = f"NCCL: {last}"
        if head.rstrip().endswith(":") and len(self.error.lines) > 1:  # the message begins in the next line
            head = f"{head.rstrip()} {self.error.lines[1].text.strip()}"
        words = _SENTENCE.split(head, maxsplit=1)[0]
        if found and (not self.error.is_exception or found.start() > len(words)):
            words = _SENTENCE.split(found.string[found.start() :], maxsplit=1)[0]
        words = " ".join(words.split()).strip(" :")
        words = words.strip(_QUOTES) if sum(map(words.count, _QUOTES)) % 2 else words  # the rest of a quotation
        return words if len(words) <= _LONGEST_HEADLINE else f"{_cut(words)}..."

    @property
    def _last_error_of_nccl(self) -> str:
        """What NCCL itself says in torch's exception, whose own words name the call alone; "" if it says nothing."""
        lines = [line.text.strip() for line in self.error.lines]
        after = (following for line, following in pairwise(lines) if line == "Last error:")
        return next(after, "")

    @property
    def _place(self) -> str:
        """The rank of which the elastic agent tells: with its host, by the table of failures below, where the log has
        it."""
        local = _LOCAL_RANK.search(self.error.text)
        if local is None:
            return _ANY_RANK
        number = local[1] or local[2]
        below = "\n".join(line.text for line in self.error.after)
        table = (found for found in _FAILED_RANK.finditer(below) if found["local"] == number)
        return next((f"rank {found['rank']} on {found['host']}" for found in table), f"local rank {number}")

    @property
    def failed_rank(self) -> str:
        """What the elastic agent or Slurm says of a rank whose own error is missing; "" for any other line."""
        if found := _FAILED.search(self.error.text):
            return f"{self._place} {_end(int(found[1]))}"
        named = self.named
        if "task" not in named:
            return ""
        verb = "each ended" if named["task"].startswith("tasks") else "ended"
        return f"{named['task']} on {named['node']} {verb} with exit code {named['code']}"


def _signal(number: int) -> str:
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def _end(exit_code: int) -> str:
    """How a process ended, by its exit code: that of a signal is negative."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    verb = "aborted with" if exit_code == -signal.SIGABRT else "was ended by"
    return f"{verb} {_signal(-exit_code)} (exit code {exit_code})"


def _says(text: str, title: str) -> bool:
    """Whether a text has all words of a part of a title as they are written, besides its remark in parentheses and its
    placeholders."""
    words = re.sub(r"\(.*?\)|\b[A-Z]+\b|\.\.\.", " ", title).casefold().split()
    words = [word for word in (each.strip(_AROUND) for each in words) if word]
    form = r"(?<![^\W_]){}(?!(?<=\d)\d)"  # a number is whole, a word may have an ending
    return bool(words) and all(re.search(form.format(re.escape(word)), text.casefold()) for word in words)


def _cut(words: str) -> str:
    """The whole words at the beginning that a headline holds; a part of the first one if that is longer."""
    whole = words[: _LONGEST_HEADLINE + 1].rpartition(" ")[0]
    return (whole or words[:_LONGEST_HEADLINE]).rstrip(" ,;:(")


def _filled(title: str, text: str) -> str:
    """A part of a title with the text's words in place of its placeholders, which are single capitals."""
    words = r"\S+".join(map(re.escape, re.split(r"(?<!\S)[A-Z](?!\S)", title)))
    found = re.search(words, text, re.IGNORECASE)
    return found[0] if found else title


def timed_out(text: str, rank: int | None = None) -> Wait | None:
    """The collective operation in the message of NCCL's watchdog (torch 2.13 ProcessGroupNCCL.cpp); None for none."""
    found, group = _COLLECTIVE.search(text), _GROUP.search(text)
    if found is None:
        return None
    return Wait(
        operation=found[2] or found[4],
        sequence=int(found[1]) if found[1] else None,
        minutes=int(found[3] or found[5]) / 60_000,
        group=group[1] if group else "",
        ranks=() if rank is None else (rank,),
    )
