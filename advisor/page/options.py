"""Options of the page: the options of `ds-advise MODEL` as texts, keyed by their names on the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ds_configs.files import parse_json_object
from ...estimators.errors import (
    ClusterError,
    DsAdviseError,
    ModelConfigError,
    NoSuchModelError,
    UnknownModelError,
    WorkloadError,
)
from ...estimators.models import catalogue
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ..advise import build_question
from ..question.effective import effective_objectives, impossible_options, impossible_words, warnings_of_method
from ..question.gpu_text import OR_THIS_MACHINE, counts_in, described_cluster, meant_gpus
from ..question.job import NEED_AMOUNT, check_epochs, has_amount, parse_price
from ..question.model_source import guessed_name, id_in_address, model_shape
from ..question.option import KIBI, Option, parse_count
from ..question.options import GROUPS, CpuOptions, ModuleOptions, names_in
from ..question.options import OPTIONS as QUESTION_OPTIONS
from ..question.question import Question

if TYPE_CHECKING:
    from ...validate.lint.document import Document


class OfTerminalError(DsAdviseError):
    """What a terminal can answer and the page cannot."""


PASTED = "./config.json"
"""Model name of a pasted `config.json`; the same name is the file in the command line."""

_LONGEST_TEXT = 200
"""Largest number of characters of an option."""

_LONGEST_CONFIG = 2**20
"""Largest number of characters of a pasted model configuration."""

_LEFT_OUT = (*names_in(CpuOptions, ModuleOptions), "data", "packing", "offline")
"""Options that need files (`packing` those of `data`) or this machine."""

OPTIONS: Mapping[str, Option] = {
    name.replace("_", "-"): option for name, option in QUESTION_OPTIONS.items() if name not in _LEFT_OUT
}
"""Options by name."""

State = Mapping[str, str]
"""`model`, `config` (a pasted `config.json`, which replaces the model) and options by name; an empty text means
unset."""


_NAMED = re.compile(r"--([a-z][a-z-]*)")
"""The flag of an option in a sentence."""


def _known_words(option: Option) -> tuple[str, ...]:
    """Return the values to choose from; () for an option that takes a text or a number."""
    if option.name == "optimizer":
        return tuple(OPTIMIZERS)
    return {"switch": ("", "yes"), "choice": option.choices}.get(option.kind, ())


def described_options() -> dict[str, Any]:
    """Return what a field of each option needs: its label, help, words to choose from and default, what it means if
    unset, the methods and objectives in which it has an effect, and the words that an objective refuses."""
    return {
        name: {
            "label": option.label,
            "help": _NAMED.sub(_label, option.text),
            "unset": _NAMED.sub(_label, option.default_text),
            "words": _known_words(option),
            "default": _default_text(option),
            "methods": option.methods or OPTIONS["method"].choices,
            "objectives": effective_objectives(option.name),
            "refused": impossible_words(option.name),
        }
        for name, option in OPTIONS.items()
    }


def _label(flag: re.Match[str]) -> str:
    """Return the name of a flag's field; the flag itself if it has none."""
    return f'"{OPTIONS[flag[1]].label}"' if flag[1] in OPTIONS else flag[0]


def grouped_options() -> dict[str, list[str]]:
    """Return the options by the title of their group, as in `--help-all`."""
    names = {option.name: name for name, option in OPTIONS.items()}
    found = {title: [names[each] for each in names_in(group) if each in names] for title, group in GROUPS.items()}
    return {title: group for title, group in found.items() if group}


def _default_text(option: Option) -> str:
    """Return the default as a text; "" for none."""
    return "" if option.default is None or option.default is False else str(option.default)


def state_options(state: State) -> dict[str, Any]:
    """Return the options that have a value other than their default, as `advise()` takes them. Raises DsAdviseError for
    unknown options and values."""
    given = {name: text for name, text in state.items() if name not in ("model", "config") and text}
    if _AUTO.fullmatch(given.get("gpus", "auto").strip()):
        raise OfTerminalError(
            "the page cannot see this machine's GPUs", fix="write --gpus 2x24GB, 8xA100-80GB or 4x8xH100, for example"
        )
    values = {name: _value(name, text) for name, text in given.items()}
    return {name.replace("-", "_"): value for name, value in values.items() if value != OPTIONS[name].default}


_AUTO = re.compile(r"(\d+x)*auto", re.IGNORECASE)
"""This machine's GPUs; the counts before it are those of the page's own fields."""


def without_waiting(state: State) -> tuple[State, list[str]]:
    """Return the state without the options that need an amount of training while none is given, and a warning for each:
    the fields of both are filled one after the other. Raises WorkloadError for values that they cannot have."""
    given = {name: text for name, text in state.items() if text}
    waiting = [] if has_amount(given) else [name for name in given if name.replace("-", "_") in NEED_AMOUNT]
    values = {name: _value(name, given[name]) for name in waiting}
    check_epochs(values.get("epochs"), values.get("eval-split", 0.0))
    if "price" in values:
        parse_price(values["price"])
    left = {name: text for name, text in state.items() if name not in waiting}
    return left, [f"--{name} has no effect yet: time and cost need --samples or --tokens" for name in waiting]


def given_counts(state: State) -> dict[str, str]:
    """Return the counts among the options in plain figures: 8192 for 8k."""
    found: dict[str, str] = {}
    for name, text in state.items():
        if name in OPTIONS and OPTIONS[name].kind.startswith("count") and text:
            with suppress(DsAdviseError):
                found[name] = str(_value(name, text))
    return found


def state_question(state: State, say: Callable[[str], None] = lambda _: None) -> Question:
    """Return the question of the page's options. say: receives what the command line warns of. Raises DsAdviseError for
    unknown, impossible or contradictory options, and for a pasted text that is not a model's configuration."""
    options, model = state_options(state), state_model(state)
    if not state.get("config") and (guess := guessed_name(_model_name(state), model)):
        say(guess)
    question = build_question(model, say=say, **options)
    for warning in warnings_of_method((QUESTION_OPTIONS[name] for name in options), question.workload.method):
        say(warning)
    return question


def idle_options(question: Question) -> list[str]:
    """Return the options that the question's model cannot have."""
    impossible = impossible_options(question.model)
    return [name for name, option in OPTIONS.items() if option.name in impossible]


def file_options(state: State) -> dict[str, Any]:
    """Return the model and the options as a question about a file has them: with the value in place of `max`. Raises
    the errors of `state_question`."""
    state, _ = without_waiting(state)
    options: dict[str, Any] = {"model": state_model(state), **state_options(state)}
    if "max" in (options.get("seq_len"), options.get("micro_batch")):
        question = state_question(state)
        found = {"seq_len": question.workload.seq_len, "micro_batch": question.micro_batch_size}
        options |= {name: value for name, value in found.items() if name in options}
    return options


def _model_name(state: State) -> str:
    name = state.get("model", "").strip()
    return id_in_address(name) or name


def state_model(state: State) -> ModelShape:
    """Return the catalogue's model, or the model of the pasted configuration. Raises DsAdviseError for an unknown
    model, and for a text that is not a model's configuration."""
    if text := state.get("config"):
        return _pasted_model(text)
    name = _model_name(state)
    if not name:
        raise UnknownModelError("no model is given", fix="choose one, or paste its config.json")
    try:
        return catalogue.find(name)
    except NoSuchModelError as error:
        error.fix = f"choose {'one of these' if error.names[1:] else 'another'}, or paste its config.json"
        raise


PASTED_TEXT = "the pasted text"
_PASTED_CONFIG = "the pasted configuration"
"""What a text of the page is called in an error, and one that is an object."""

_WHOLE_FILE = "paste the whole file, including the outer braces"


def _pasted_model(text: str) -> ModelShape:
    if len(text) > _LONGEST_CONFIG:
        raise ModelConfigError(f"{PASTED_TEXT} is longer than any config.json", fix="paste a model's config.json")
    try:
        config = parse_json_object(text, name=PASTED_TEXT, error=ModelConfigError, fix=_WHOLE_FILE)
    except ModelConfigError as error:
        raise _json_error(text) or error from None
    from ..question.file_question import is_of_deepspeed  # imported here: most questions have no pasted text

    if is_of_deepspeed(config):
        raise ModelConfigError(
            f"{_PASTED_CONFIG} is DeepSpeed's, not a model's", fix="paste it below, under Check a ds_config.json"
        )
    try:
        return model_shape(config, name=PASTED, source="the pasted config.json")
    except DsAdviseError as error:
        error.what = error.what.replace(PASTED, _PASTED_CONFIG)
        raise


def _json_error(text: str) -> ModelConfigError | None:
    """Return what is wrong in a text that is not JSON, and where, as lint says it; None if lint could read it."""
    from ...validate.lint.document_reader import NotJsonError  # imported here: most texts are JSON

    try:
        if extensions := read_pasted(text).extensions:
            first = extensions[0]
            raise NotJsonError(PASTED_TEXT, first.mistake or first.kind, first.fix, text=text, offset=first.start)
    except NotJsonError as error:
        return ModelConfigError(error.what, fix=error.fix)
    except DsAdviseError:
        pass
    return None


def read_pasted(text: str) -> Document:
    """Return a pasted text as lint reads a file. Raises the errors of `read_document`."""
    from ...validate.lint.document_reader import read_document  # imported here: most questions have no pasted text

    # Half of a surrogate pair, which a browser can send, has no form in UTF-8.
    return read_document(text.encode(errors="replace"), name=PASTED_TEXT, as_meant=True)


def state_command(state: State) -> str:
    """Return the same question as a command line; "" without a model."""
    model = PASTED if state.get("config") else _model_name(state)
    words = ["ds-advise", model]
    for name, text in state.items():
        if name not in ("model", "config") and text:
            words += [f"--{name}"] if name in OPTIONS and OPTIONS[name].kind == "switch" else [f"--{name}", text]
    return shlex.join(words) if model else ""


def options_in(flags: str) -> dict[str, str]:
    """Return the options of a change such as `--gpus 4x32GB --ram 2TB` as the page stores them; a drive gets a
    placeholder folder. Empty if the page lacks one of them, such as `--sharding`."""
    found: dict[str, str] = {}
    for word in shlex.split(flags):
        if word.startswith("--"):
            name = word.removeprefix("--")
            found[name] = "yes"
        else:
            found[name] = word.replace("PATH:", "/nvme:")
    return found if all(name in OPTIONS for name in found) else {}


_ALTERNATIVE = re.compile(r"--([a-z][a-z-]*) [A-Z][A-Z:,]*(?: or |, )(?=--)")
"""An option with a placeholder, before another that can be given instead: `--data FILE, --samples N`."""


CORRECT = '"Correct them"'
"""The button that does what `--fix` does."""

_FIX = re.compile(r"--fix\b(?!-)")

_PASSED = re.compile(r"\bpass (--([a-z][a-z-]*)(?: [^\s,;.]+)?)")
"""What one does with an option in a terminal; a field is set."""


def page_fix(fix: str) -> str:
    """Return what an error says to do without what the page lacks: the GPUs of this machine, files, `--fix`, and an
    option in a list of several that each suffice."""
    from ...validate.lint.document_reader import FIX  # imported here: most questions have no error
    from ...validate.lint.rules_file import KEEPS_COMMENTS, REMOVES_COMMENTS

    own = {
        FIX: _WHOLE_FILE,
        KEEPS_COMMENTS: "for the Trainer or accelerate remove the comments",
        REMOVES_COMMENTS: f"write plain JSON; {CORRECT} also removes the comments",
    }
    if fix in own:
        return own[fix]
    fix = _PASSED.sub(
        lambda found: f"set {found[1]}" if found[2] in OPTIONS else f"{found[0]} in a terminal", _FIX.sub(CORRECT, fix)
    )
    without = _ALTERNATIVE.sub(lambda found: found[0] if found[1] in OPTIONS else "", fix)
    return without.replace(OR_THIS_MACHINE, "")


def error_options(error: DsAdviseError, state: State) -> list[str]:
    """Return the options that an error names by their flags, else the one that its kind is about."""
    named = [name for name in _NAMED.findall(f"{error.what} {error.fix}") if name in OPTIONS]
    if named:
        return list(dict.fromkeys(named))
    if isinstance(error, ModelConfigError | UnknownModelError):
        return ["config" if state.get("config") else "model"]
    return ["gpus"] if isinstance(error, ClusterError) else []


_WORD = r"[^\s;()]*[^\s,;:().?]"
_GIVEN = re.compile(rf"--([a-z][a-z-]*) ({_WORD})")
_FURTHER = re.compile(rf"(?:,? or |, )({_WORD})")


class Offer(NamedTuple):
    """A value that an error says to write."""

    option: str
    value: str
    text: str
    """The words of the sentence that say it: `--ram 512GB`."""


def error_offers(error: DsAdviseError) -> list[Offer]:
    """Return the values that an error says to write, in the order of its sentence: names of models, and values behind
    flags, with the further ones of a list."""
    found = [Offer("model", name, name) for name in getattr(error, "names", ())]
    for given in _GIVEN.finditer(error.fix):
        option, value, text = *given.groups(), given[0]
        place = given.end()
        while option in OPTIONS and _is_offered(option, value):
            found.append(Offer(option, value, text))
            further = _FURTHER.match(error.fix, place)
            if further is None:
                break
            value = text = further[1]
            place = further.end()
    return found


def _is_offered(name: str, text: str) -> bool:
    """Whether a word of an error is a value of the option, and no placeholder or part of the sentence."""
    if name == "gpus":
        return bool(re.match(r"\d+x", text))
    try:
        value = _value(name, text)
    except WorkloadError:
        return False
    # Of texts, those with a figure: others may be words of the sentence or placeholders, such as RATE.
    return not isinstance(value, str) or value in _known_words(OPTIONS[name]) or bool(re.search(r"\d", value))


def _value(name: str, text: str) -> Any:
    option = OPTIONS.get(name)
    if option is None:
        raise DsAdviseError(f"the page has no option {name[:40]!r}", fix="open the page without the part after the #")
    if len(text) > _LONGEST_TEXT:
        raise WorkloadError(f"--{name} is a text of {len(text):,} characters", fix="shorten it")
    words = _known_words(option)
    if (word := text.strip().casefold()) in (words or option.choices):
        text = word
    if words and text not in words:
        raise WorkloadError(f"{text!r} is not a value of --{name}", fix=f"choose {', '.join(filter(None, words))}")
    if option.kind == "switch":
        return True
    try:
        if option.kind.startswith("count") and text not in option.choices:
            return parse_count(text, kilo=option.kilo)
        return float(text) if option.kind == "number" else text
    except ValueError as error:
        what = f"--{name} {text[:40]!r} is not a number" if option.kind == "number" else str(error)
        raise WorkloadError(what, fix=f"give --{name} a number{_forms(option)}") from None


def _forms(option: Option) -> str:
    """Return what an option takes besides plain figures, as the end of a sentence; "" for nothing."""
    forms = [*(["such as 4k"] if option.kilo == KIBI else []), *(f"or {word}" for word in option.choices)]
    return "".join(f", {form}" for form in forms)


def without_counts(error: ClusterError, gpus: str) -> None:
    """Write only the kind of GPU in an error about it, since the counts before it are those of the page's own
    fields. Counts in the kind, as of `8 H100`, are given in their place."""
    kind = _COUNTS.sub("", gpus)
    try:
        described_cluster(kind)
    except ClusterError as of_kind:
        if counts_in(meant_gpus(kind)) != (None, None):
            error.fix = of_kind.fix
        shown = f" {kind[:40]!r}" if kind else ""
        error.what = error.what.replace(f"--gpus {gpus.strip()[:40]!r}", f"--gpus{shown}")


_COUNTS = re.compile(r"^\s*(\d+\s*x\s*){0,2}", re.IGNORECASE)
