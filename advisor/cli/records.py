"""The commands about stored records: `history` and `contribute`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...estimators.errors import DsAdviseError
from ..text.output import Output
from .help import GroupedCommand
from .options import COUNT, FORCE, CommandWithItsWords, OutputFile, output_options, warn_ignored

if TYPE_CHECKING:
    from ...probes.store import Record, Store
    from ..document.blocks import Document


@click.command(cls=CommandWithItsWords)
@click.argument("words", nargs=-1, metavar="[ID ... | WORD ...]")
@click.option("--forget", is_flag=True, help="Remove the records with the numbers behind it, or `all`.")
@click.option("--force", is_flag=True, help="Remove a range or all without a question; needed off a terminal.")
@click.option("--limit", type=COUNT, default=20, help="Maximum number of lines; --json has all records.")
@output_options
def history(words: Sequence[str], forget: bool, force: bool, limit: int, output: Output) -> int:
    """List probes, benchmarks, trainings and dry runs, newest first, or show everything that is stored of one.

    ID is the number of a record; 3-5 stands for several, 3- for all from 3 on, `last` for the newest. WORD is a part of
    a model, a script, a kind, GPUs or a failure, or `failed`: only records with every WORD are listed. Before --forget
    removes a range or all, it asks; off a terminal it needs --force.

    \b
    ds-advise history
    ds-advise history 12
    ds-advise history probe qwen
    ds-advise history --json > records.json
    ds-advise history --forget 3-5 8
    ds-advise history --forget all

    A record identifies a machine by its hardware only. Exit code: 0, or 2 if one does not exist or cannot be read.
    """
    from ...probes.store import Store
    from ..render.deliver import show_document
    from ..render.history import has_words, history_document, page_document

    _refuse_other_form(words)
    store = Store()
    ids = [word for word in words if _is_id(word)]
    names = [word for word in words if word not in (*ids, _ALL)]
    if names and len(names) < len(words) and not forget:
        _refuse_mixed(ids or [_ALL], names)
    if _ALL in words and len(words) > 1:
        raise click.UsageError("all stands for every record; write it alone, or the numbers without it")
    if forget:
        warn_ignored("limit", "with --forget")
        _forget(words, store, output, force=force)
        return 0

    warn_ignored("force", "without --forget")
    chosen = _numbers(words, store) if ids else None
    most = None if output.mode == "json" else limit
    found = store.find() if chosen is None else _records(store, chosen)
    if names and found:
        found = [record for record in found if has_words(record, names)]
        if not found:
            what = f"no record has {' and '.join(repr(word[:40]) for word in names)}"
            fix = f"write {meant}" if (meant := _meant_line(names)) else "`ds-advise history` lists them"
            raise DsAdviseError(f"{what} in its model, script, kind, GPUs or failure", fix=fix)
    older = 0 if most is None else max(0, len(found) - most)

    def document() -> Document:
        if chosen is not None and len(found) == 1:
            return page_document(found[0], path=store.path)
        return history_document(found[:most], path=store.path, older=older, words=names)

    show_document(document, output)
    return 0


def _forget(words: Sequence[str], store: Store, output: Output, *, force: bool) -> None:
    """Remove the records with these numbers, and print which. Before a word removes several, ask; without a terminal
    only `force` allows it. Raises UsageError for words in front of --forget, and for several records that are neither
    forced nor asked for, and DsAdviseError for a number without a record."""
    from ..render.deliver import show_document
    from ..render.history import forgotten_document, records_label
    from .typed_line import line

    typed = click.get_current_context().obj
    if not words:
        raise click.UsageError("--forget needs the numbers of records, or all")
    if not {*words} <= {*typed[typed.index("--forget") + 1 :]}:  # of a line that showed a record
        fix = line(["history", "--forget", *words])
        raise click.UsageError(f"the numbers to forget stand behind --forget; write {fix}")
    is_all = _ALL in words
    chosen = _ids(store) if is_all else _numbers(words, store)
    if not is_all:
        _records(store, chosen)  # raises before any is removed
    if chosen and (is_all or len(chosen) > len(words)) and not force:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            removes, forced = f"this removes {records_label(chosen)}", line(["history", *typed, "--force"])
            raise click.UsageError(f"{removes}, and nobody can be asked off a terminal; write {forced}")
        if not click.confirm(f"Remove {records_label(chosen)}?", err=True):
            chosen = []
    removed = store.forget(chosen)
    show_document(lambda: forgotten_document(removed), output)


_ALL, _LAST = "all", "last"
"""Words for every record, and for the newest."""


def _refuse_other_form(words: Sequence[str]) -> None:
    """Raise UsageError for a word that names records in another form: `1,2`, `1..5`, `9-3`, `#4`, `ALL`."""
    typed = click.get_current_context().obj
    meant = [part for word in typed for part in (_in_own_form(word) if word in words else [word])]
    if meant != [*typed]:
        from .typed_line import line  # imported here: only this mistake needs it

        other = next(word for word in words if _in_own_form(word) != [word])
        raise click.UsageError(f"{other[:40]!r} names no records; write {line(['history', *meant])}")


def _in_own_form(word: str) -> list[str]:
    """The words that name the same records; the word itself if it names none in another form."""
    if word.lower() in (_ALL, _LAST):
        return [word.lower()]
    parts = [re.sub(r"\.\.+|:", "-", part.lstrip("#")) for part in re.split("[,;]", word) if part]
    if not parts or not all(_is_number(part) or _range(part) for part in parts):
        return [word]
    ends = {part: _range(part) for part in parts}
    return [f"{end[1]}-{end[0]}" if (end := ends[part]) and end[0] > end[1] else part for part in parts]


def _refuse_mixed(ids: Sequence[str], names: Sequence[str]) -> None:
    """Raise UsageError for words beside the numbers of records."""
    from .typed_line import line  # imported here: only this mistake needs it

    if meant := _meant_line([*names, *ids]):
        raise click.UsageError(f"{names[0][:40]!r} is no command of history; write {meant}")
    records, named = line(["history", *ids]), line(["history", *names])
    what = f"{ids[0]} is the number of a record"
    if _ALL in ids or _LAST in ids:
        what = f"{ids[0]} stands for {'every' if _ALL in ids else 'the newest'} record"
        named += " --limit 1" * (_LAST in ids)
    raise click.UsageError(f"{what}, and {names[0][:40]} is a word that chooses some; write {records}, or {named}")


def _meant_line(words: Sequence[str]) -> str:
    """The line in which a word is the option that it names; "" if none names one."""
    from .mistakes import with_option  # imported here: only mistakes need it

    return with_option(words, history)


@click.command(cls=GroupedCommand)
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@click.option("--model", metavar="MODEL", help="Folder with the config.json of a model that has no public name.")
@click.option(
    "-o",
    "--output",
    "file",
    type=OutputFile("measured.json"),
    metavar="FILE",
    help="Write the JSON object to this file; - is stdout.",
)
@FORCE
@output_options
def contribute(ids: Sequence[str], model: str | None, file: Path | None, force: bool, output: Output) -> int:
    """Show measured runs in the form of the published runs, to compare predictions with them.

    ID is the number of a probe or a training in `ds-advise history`; by default the newest that ran on GPUs and ended,
    or ran out of memory. A row has the model, the machine's class, the versions, the configuration, and the measured
    and predicted figures. It has no path, no name of a host or a user, and no text of a script. Nothing is sent.

    \b
    ds-advise contribute 12 13
    ds-advise contribute 12 --model ./my-model -o measured.json

    Exit code: 0, or 2 if a record is not such a run.
    """
    from ...ds_configs.files import write_text
    from ...probes.store import Store
    from ...validate.lint.installed_facts import load_facts
    from ..render.contribution import contribution_document, contribution_json
    from ..render.deliver import show_document
    from ..verification.contribution import Contribution, contributed_run

    on_stdout = file == Path("-")
    if on_stdout and output.mode == "json":
        raise click.UsageError("--json and -o - both write to stdout; leave one out")
    store = Store()
    if ids:
        numbers = _numbers(ids, store)
        records = sorted(_records(store, numbers), key=lambda record: numbers.index(record.id or 0))
    else:
        measured = (each for each in store.find() if each.kind in ("probe", "training") and each.ran_on_gpus)
        ended = (None, "out_of_memory")
        records = [each for each in measured if (each.result.get("failure") or {}).get("kind") in ended][:1]
    if not records:
        raise DsAdviseError("nothing was measured on GPUs yet", fix="use ds-advise probe, launch or train")
    facts = load_facts()
    found = Contribution(runs=tuple(contributed_run(record, facts, model) for record in records))
    if on_stdout:
        print(contribution_json(found), end="")
        return 0
    if file is not None:
        write_text(contribution_json(found), file, force=force)
    show_document(lambda: contribution_document(found, file="" if file is None else str(file)), output)
    return 0


def _records(store: Store, numbers: Sequence[int]) -> list[Record]:
    """The records with these numbers. Raises DsAdviseError if one does not exist."""
    found = store.find(ids=numbers)
    if missing := sorted(set(numbers) - {record.id for record in found}):
        others, fix = _ids(store), "`ds-advise history` lists them"
        if others[1:]:
            kept = f"the records are {min(others)} to {max(others)}"
        elif others:
            kept = f"the only record is {others[0]}"
        else:
            kept, fix = "no record is stored", "use ds-advise bench, or ds-advise probe"
        if removed := [number for number in missing if 0 < number <= store.newest_number()]:
            were = "were removed" if removed[1:] else "was removed"
            named = ("they" if removed[1:] else "it") if removed == missing else ", ".join(map(str, removed))
            fix = fix if others else ""  # whoever emptied the store wants no measurement
            kept = f"{named} {were}" + (f", and {kept}" if removed != missing else "")
        raise DsAdviseError(f"there is no record {', '.join(map(str, missing))}", why=kept, fix=fix)
    return found


def _ids(store: Store) -> list[int]:
    """The numbers of all records."""
    return [record.id for record in store.find() if record.id is not None]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


_NEWEST = "9" * 18
"""The end of a range without one, which is no smaller than any number."""


def _range(text: str) -> tuple[int, int] | None:
    """The first and the last number of a range such as 3-5, or 3- to the newest; None for another text."""
    first, dash, last = text.partition("-")
    last = last or _NEWEST if dash else ""
    return (int(first), int(last)) if _is_number(first) and _is_number(last) else None


def _is_id(text: str) -> bool:
    return text == _LAST or _is_number(text) or _range(text) is not None


def _numbers(texts: Sequence[str], store: Store) -> list[int]:
    """The numbers of records, once each; of a range those that exist. Raises DsAdviseError for another text, and for a
    range without any."""
    found = list[int]()
    known = _ids(store) if any(text == _LAST or _range(text) for text in texts) else []
    for text in texts:
        if text == _LAST and known:
            found.append(max(known))
            continue
        if (ends := _range(text)) is None:
            found.append(_number(text))
            continue
        there = [number for number in known if ends[0] <= number <= ends[1]]
        if not there:
            to = "" if text.endswith("-") else f" to {ends[1]}"
            why = "they were removed" if ends[1] <= store.newest_number() else ""
            raise DsAdviseError(f"there is no record from {ends[0]}{to}", why=why, fix="`ds-advise history` lists them")
        found += there
    return [*dict.fromkeys(found)]


def _number(text: str) -> int:
    if text == _LAST:
        raise DsAdviseError("no record is stored", fix="use ds-advise bench, or ds-advise probe")
    if not _is_number(text):
        raise DsAdviseError(f"{text[:40]!r} is not the number of a record", fix="`ds-advise history` lists them")
    return int(text)
