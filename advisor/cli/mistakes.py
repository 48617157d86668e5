"""What to type in place of a usual mistake: options of other tools, values in another form, words without a place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

import click

from ...estimators.errors import DsAdviseError
from ...estimators.plan import PLANS
from ..question.gpu_text import meant_gpus, with_counts
from ..question.options import OPTIONS
from ..question.other_names import (
    FSDP_PLAN,
    OF_STRATEGIES,
    advice_for,
    filled_advice,
    meant_choice,
    meant_strategy,
    other_name,
    plan_of_stage,
)
from ..text.units import alternatives
from .commands import COMMANDS, GROUPS, command_named
from .mistaken_files import is_there
from .model_argument import is_model, positional_places
from .options import COUNT, Whole
from .typed_line import (
    GPUS,
    STARTERS,
    choices_of,
    divided_words,
    line,
    named_options,
    options_of,
    question_for,
    value_of,
    without,
)

_OF_RECORDS = ("history", "contribute")
"""Commands whose words are numbers of records."""


def instead_of(option: str, args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of an unknown option; "" if nobody knows."""
    if re.fullmatch(r"-\d+", option):
        takes = command.name in _OF_RECORDS
        return f"write ds-advise {command.name} {option[1:]}" if takes else ""  # the line ends with the help
    known = named_options(command)
    name, value = _plain(option), value_of(option, args)
    own = f"--{name}".replace("_", "-") if option[2:] else option
    if own in known:
        return f"write {own} {value or _switched(known[own], 'on')}".rstrip()
    positive = own.replace("--no-", "--", 1)
    if positive != own and positive not in known:
        positive = other_name(_plain(positive)).partition(" ")[0]
    if positive != own and positive in known:
        off = _switched(known[positive], "off")
        return f"write {positive} {off}" if off else f"leave {positive} out"
    short = {**_SHORT_HELP, **(_ALONE if [*args] == [own] else {})}
    if help_option := own if own in _HELP else short.get(own, ""):
        return f"write {_help_line(help_option, command)}"
    written = other_name(name)
    target = written.partition(" ")[0]
    own_names = {name, _plain(target)}
    if advice := next((each for each, names in _of_command(command.name or "").items() if own_names & {*names}), ""):
        if "{GPUS}" in advice:
            advice = advice.replace("{GPUS}", _described_gpus(args).partition(", which ")[0])
        return (
            f"write {_filled(advice, value, ())}" if advice.startswith("--") else _with_question(advice, args, command)
        )
    if name in _names_of(command) and (not value or is_model(value) or is_there(Path(value))):
        return f"write {line([word.removeprefix(f'{option}=') for word in args if word != option])}"
    needed = needed_method(target, args, known)
    if "--sharding" in (own, target) and "--strategy" in known and "--sharding" not in known:
        return "leave it out" if value == "zero" else f"write --strategy {FSDP_PLAN}"
    if target == "--gpus" and target in known:
        return f"write {_described_gpus(args)}"
    if (target in known and _is_meant(known[target], written)) or (target == "--model" and "--gpus" in known):
        if "{N}" in written and value and not accepts(known[target], value):
            value = _number(known[target], value)
        if "{TIME}" in written and value.isdigit():
            value = f"{value}h" if "hour" in name else ""
        choices = choices_of(known[target]) if target in known else ()
        return f"write {_filled(written, value, choices)}{needed}"
    near = _nearest(own, value, known)
    is_plan = bool(plan_of_stage(name)) or name.replace("_", "-") in PLANS
    advised = "strategy" if is_plan else name
    advice = advice_for(advised)
    if "{FILE}" in advice and "--config" in known:
        return f"write --config {shlex.quote(value[:80]) or 'FILE'}"
    if advice and not (_is_misspelled(own, near) and accepts(known[near], value)):
        given = {_plain(word): value_of(word.partition("=")[0], args) for word in args if word.startswith("-")}
        strategy = meant_strategy({name: value, **given})
        if "{STRATEGY}" in advice and "--strategy" in known:
            if file := config_file(args, command):
                return f"leave it out: {file} has its own strategy"
            is_given = value_of("--strategy", args) == strategy
            return f"leave it out: --strategy {strategy} has it" if is_given else f"write --strategy {strategy}"
        if advice in OF_STRATEGIES and not _compares(command):
            file = config_file(args, command) or "the configuration"
            return f"leave it out: {file} has the strategy, which ds-advise {command.name} does not change"
        return _with_question(filled_advice(advised, value, strategy), args, command)
    numbers = [flag for flag, each in known.items() if isinstance(each.type, type(COUNT)) and not each.is_flag]
    if target not in known and len(numbers) == 1 and value.isdigit() and name in _OF_A_NUMBER:
        return f"write {numbers[0]} {value}"
    of_questions = {"--model", *(each.flag for each in OPTIONS.values())}
    if any(each.name == "words" for each in command.params):
        rest = without((option,), args, command)
        if value and not value.isdigit():
            return f"write {line([*rest, value])}"
        if not value and (word := own.lstrip("-")) in _RECORD_WORDS:
            return f"write {line([*rest, word])}"
    if command.name in GROUPS["This machine"] and {own, target} & of_questions:
        return f"leave it out: ds-advise {command.name} is about this machine"
    if own not in _FILES and (owners_of(own) or owners_of(target)) and not _takes_model(command):
        return f"write {_own_line(option, args, command)}"
    if owners := owners_of(own):
        # Another command with the same form of the answer would answer another question.
        return "" if own in (*_FILES, *_MORE) else _line_of(owners, args, command)
    if target and target not in known and (owners := owners_of(target)):
        renamed = [*without((option,), args, command), *_filled(written, value, ()).split()]
        if found := _line_of(owners, renamed, command):
            return found
    named = [flag for flag, words in options_of(command).items() if own.lstrip("-") in words]
    if len(named) == 1:
        return f"write {named[0]} {own.lstrip('-')}"
    if near in known and not known[near].is_flag and accepts(known[near], value):
        choices = choices_of(known[near])
        if value := meant_choice(value, choices) if choices else value:
            return f"write {near} {value}{needed_method(near, args, known)}"
    if near in _HELP:
        return f"write {_help_line(near, command)}"
    if near and known[near].is_flag and not value:
        return f"write {near}"
    return f"did you mean {near}?" if near else _as_argument(option, value, args, command)


_OF_COMMANDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "why": {
        "leave it out: LOG may have all ranks, and the one that failed first is shown; for one rank name its own log": (
            *("rank", "ranks", "local_rank", "node", "nodes", "node_rank"),
        )
    },
    "rent": {
        "--prices FILE: a CSV table of machines with their prices": ("price", "cost", "hourly_price"),
        "leave it out: ds-advise rent compares the machines of a price table, the built-in one or --prices FILE; "
        "ds-advise advise MODEL {GPUS} answers for these GPUs": ("gpus",),
    },
    "history": {"--force": ("yes", "y")},
    "bench": {"leave it out: there is one benchmark, of about a minute on an idle machine": ("quick", "fast", "short")},
    "checkpoint": {"--to-hf {OUT}": ("export", "convert", "output", "output_dir", "out", "save")},
}
"""Command -> what `_of_command` returns, for those but `train`."""
_ELSEWHERE = "another value needs ds-advise launch with a script of yours"


def _of_command(name: str) -> Mapping[str, Sequence[str]]:
    """Return what to do in place of options that mean something else with other commands than this one, or what to
    write as in `OTHER_NAMES`, each with the names of the options."""
    if name != "train":
        return _OF_COMMANDS.get(name, {})
    from ..train.settings import FIXED_ARGUMENTS, WARMUP  # imported here: they are slow

    further = {"max_grad_norm": ("gradient_clipping", "clip_grad")}
    fixed = {
        f"leave it out: train has {argument} {str(value).lower()}; {_ELSEWHERE}": (argument, *further.get(argument, ()))
        for argument, value in FIXED_ARGUMENTS.items()
    }
    warmup = f"leave it out: train warms up for {WARMUP * 100:g} % of the steps; {_ELSEWHERE}"
    return {
        "--learning-rate {RATE}": ("lr", "peak_lr"),
        "--max-steps {N}": ("steps", "num_steps"),
        "--save-steps {N}: train evaluates when it saves": ("eval_steps",),
        warmup: ("warmup_ratio", "warmup_steps"),
        **fixed,
    }


def config_file(args: Sequence[str], command: click.Command) -> str:
    """Return the first word of a line that is a configuration file; "" without one."""
    from ..question.file_question import is_ds_config  # imported here: names need none of it

    return next((args[at] for at in positional_places(command, args) if is_ds_config(Path(args[at]))), "")


def needed_method(flag: str, args: Sequence[str], known: Mapping[str, click.Option]) -> str:
    """Return the method without which an option has no effect, as words behind it; "" if the line has one, and for an
    option that has an effect with every method."""
    methods = next((each.methods for each in OPTIONS.values() if each.flag == flag), ())
    if not methods or value_of("--method", args) in methods or "--method" not in known:
        return ""
    taken = [method for method in methods if method in choices_of(known["--method"])]
    return f" --method {taken[0]}" if taken else ""


def _switched(option: click.Option, word: str) -> str:
    """Return "on" or "off" if it is a choice of an option, which other tools have as a switch; else ""."""
    return word if word in choices_of(option) else ""


_OF_A_NUMBER = ("n", "num", "number", "count", "max", "last", "head", "tail", "top")
"""Names that other tools have for the only number of a command."""


def _compares(command: click.Command) -> bool:
    """Return whether a command answers for a model, for which it compares the strategies."""
    return any(each.name == "model" and isinstance(each, click.Argument) for each in command.params)


_FILE = ("f", "file", "i", "input", "path")
"""Names that other tools have for an option with a file."""


def _as_argument(option: str, value: str, args: Sequence[str], command: click.Command) -> str:
    """Return the line with the value of an option as the argument that it names; "" if it names none."""
    name = option.lstrip("-").lower()
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    named = [(each.name or "").removesuffix("s") for each in arguments]
    if not value or not (name in named or (name in _FILE and {*named} & {"log", "file", "config_file", "source"})):
        return ""
    return f"write {line([*without((option,), args, command), value])}"


def typed_option(option: str, args: Sequence[str]) -> str:
    """Return an unknown option as it was typed: `-help`, in which Click finds `-e`."""
    words = (word.partition("=")[0] for word in args if re.match("-[A-Za-z]{2}", word) and option[1:] in word)
    return option if option[2:] else next(words, option)


def owners_of(option: str) -> list[str]:
    """Return the commands that have an option."""
    return [name for name in COMMANDS if option in named_options(command_named(name))]


def of_others(option: str, owners: Sequence[str], args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of an option that only other commands have. One of the form of the answer is left
    out, or is a file of JSON."""
    value = value_of(option, args)
    if option in _FILES and value and "--json" in named_options(command):
        written = line([*without((option,), args, command), "--json"])
        return f"write {written} > {shlex.quote(str(Path(value).with_suffix('.json')))}"
    return "leave it out" if option in (*_FILES, *_MORE) else f"see ds-advise {owners[0]} --help-all"


_FILES, _MORE = ("--output", "--html", "--plot"), ("--verbose", "--details", "--explain")
"""Options for the answer as a file, and for more of it."""


def _line_of(owners: Sequence[str], args: Sequence[str], command: click.Command) -> str:
    """Return the line for the first owner of an option that answers for a model; "" if none does, or none is typed."""
    arguments = {name: [each.name for each in command_named(name).params] for name in owners}
    owner = next((name for name in owners if arguments[name][:1] == ["model"]), "")
    if not owner or not any(map(is_model, args)):
        return ""
    name = [] if owner == "advise" else [owner]
    asked = question_for(command_named(owner), args, command)
    # A command that has no --gpus is not about this machine, which may have none.
    has_gpus = value_of("--gpus", args) or "--gpus" in named_options(command)
    gpus = [] if has_gpus or "--gpus" not in named_options(command_named(owner)) else ["--gpus", GPUS]
    return f"write {line([*name, *asked, *gpus])}"


def _takes_model(command: click.Command) -> bool:
    """Return whether a command answers a question about a model."""
    return any(each.name == "model" for each in command.params)


def _own_line(option: str, args: Sequence[str], command: click.Command) -> str:
    """Return the line of a command without the options that only others have, and their values, which `option` is one
    of or another name for one."""
    known, rest = named_options(command), [*args]
    for name in (word.partition("=")[0] for word in args if word.startswith("--")):
        owners = [] if name in known else owners_of(name)
        if owners or name == option:
            rest = without((name,), rest, command_named(owners[0]) if owners else command)
    return line(rest)


_RECORD_WORDS = ("last", "failed", "stopped", "probe", "bench", "training", "dry-run")
"""Words of `history` that choose records, which other tools have as options."""

_HELP = ("--help", "--help-all", "--version")
_SHORT_HELP = {"-V": "--version", "-?": "--help"}
_ALONE = {"-v": "--version"}
"""Short options that mean something else if nothing else is typed."""


def _help_line(option: str, command: click.Command) -> str:
    """Return the line that shows a help of a command, or the version, which is no option of a command."""
    is_of_program = command.name == "advise" or option == "--version"
    return line([option] if is_of_program else [str(command.name), option])


def _is_meant(option: click.Option, written: str) -> bool:
    """Return whether an option takes what stands in its place in `OTHER_NAMES`: the budget of a probe is a time."""
    place = re.search(r"\{(.+)\}", written)
    return place is None or option.metavar is None or place[1] == option.metavar


def _nearest(own: str, value: str, known: Mapping[str, click.Option]) -> str:
    """Return the option with the most similar name, first of those that accept the value; "" without one."""
    names = {name.lstrip("-"): name for name in (*known, *_HELP)}
    near = [names[each] for each in get_close_matches(own.lstrip("-"), names, cutoff=0.75)]
    longer = [name for name in known if name.startswith(own)] if len(own) >= len("--to") else []
    near += longer if len(longer) == 1 else []
    return next((each for each in near if each in known and accepts(known[each], value)), next(iter(near), ""))


_MISSPELLED = 0.9
"""Share of equal characters from which an option is taken for a misspelled one though its name has an advice."""


def _is_misspelled(own: str, near: str) -> bool:
    return bool(near) and SequenceMatcher(None, own.lstrip("-"), near.lstrip("-")).ratio() >= _MISSPELLED


def accepts(option: click.Option, value: str) -> bool:
    """Return whether an option takes a value, as far as its type tells."""
    if not value or isinstance(option.type, click.Choice):
        return True
    if option.is_flag:
        return not value.isdigit()
    if "--gpus" in option.opts:
        return bool(meant_gpus(value))
    try:
        (COUNT if option.metavar == "N" else option.type).convert(value, option, None)
    except (click.UsageError, DsAdviseError):
        return False
    return True


def _with_question(advice: str, args: Sequence[str], command: click.Command) -> str:
    """Return the advice with the typed model and options in the command that it names."""

    def filled(found: re.Match[str]) -> str:
        own = shlex.split(found[2])
        rest = without([word for word in own if word.startswith("-")], args, command)
        return line([found[1], *question_for(command_named(found[1]), rest, command), *own])

    return re.sub(r"ds-advise (\S+) MODEL((?: --\S+ \S+)*)", filled, advice)


def _described_gpus(args: Sequence[str]) -> str:
    """Return --gpus with what the options say by which other tools describe GPUs: their number, nodes and kind."""
    own = value_of("--gpus", args)
    given = {"GPUS" if own.isdigit() else "SPEC": own}
    for word in args:
        if word.startswith("-") and (place := re.fullmatch(r"--gpus \{(\w+)\}", other_name(_plain(word)))):
            given[place[1]] = value_of(word.partition("=")[0], args) or given.get(place[1], "")
    nodes, per_node, ranks = (
        number if re.fullmatch(r"[1-9]\d{0,5}", number := given.get(place, "")) else ""
        for place in ("NODES", "GPUS", "RANKS")
    )
    if ranks:
        per_node = str(max(1, int(ranks) // int(nodes or 1)))
    spec = given.get("SPEC", "")
    if not (nodes or per_node):
        return f"--gpus {spec[:60] or 'SPEC'}"
    if nodes and not spec:
        per_node = per_node or "8"
    form = "nodes x GPUs x memory or kind" if nodes else "GPUs x memory or kind"
    return f"--gpus {with_counts(spec, nodes, per_node)}" + (f", which is {form}" if not spec else "")


def _plain(word: str) -> str:
    """Return the name of an option as `OTHER_NAMES` has it."""
    name = re.sub(r"[-.]", "_", word.partition("=")[0].lstrip("-")).lower()
    return name.removeprefix("zero_optimization_")


def _filled(written: str, value: str, choices: Sequence[str]) -> str:
    """Return the option with the given value, if it has one: `--micro-batch {N}` as `--micro-batch 4`; of an option
    with choices with the choice that is meant."""
    if choices and not (value := meant_choice(value, choices)):
        value = alternatives(choices)
    return re.sub(r"\{([^{}]+)\}", lambda found: value[:60] or found[1], written)


COMMANDS_OF_OTHERS: Mapping[str, str] = {
    "": "estimate estimate-memory recommend predict fit plan memory mem ask",
    "--probe": "tune tuner autotune autotuner autotuning search optimize optimise sweep",
    "--html report.html": "report html",
    "--plot memory.svg": "plot chart",
    "launch": f"run start {' '.join(STARTERS)}",
    "train": "finetune sft pretrain",
    "lint": "validate verify",
    "why": "debug diagnose log logs fix analyze analyse",
    "doctor": "ds_report env status info nvidia-smi",
    "checkpoint": "ckpt zero_to_fp32 zero_to_fp32.py merge export",
    "bench": "benchmark perf",
    "page": "serve ui web gui",
    "explain": "show describe formula",
    "history": "list ls records measurements",
    "compare": "diff",
    "from": "import convert",
    "rent": "cost price cloud",
}
"""Command -> names of other tools' commands; "" for `advise`, and an option for `advise` with it."""

_CHECKPOINT = re.compile(r"checkpoint|global_step", re.IGNORECASE)
"""In the names of the folders that the Trainer and DeepSpeed write."""

_REASONS = {"--probe": "every answer is a search, and --probe measures its best candidates on this machine; "}
"""What an option of `COMMANDS_OF_OTHERS` does, where the line does not say it."""


def _names_of(command: click.Command) -> Sequence[str]:
    """Return the names that other tools have for a command."""
    return COMMANDS_OF_OTHERS.get(command.name or "", "").split()


def with_option(words: Sequence[str], command: click.Command) -> str:
    """Return the line in which the first word that names an option without dashes is that option, `--forget 5` for
    `rm 5`, or one that names the command is left out; "" without such a word."""
    known = named_options(command)
    for word in words:
        rest = [each for each in words if each != word]
        name = word.lower()
        if name in _names_of(command):
            return line([str(command.name), *rest])
        flag, _, value = (f"--{name}" if f"--{name}" in known else other_name(name)).partition(" ")
        if flag in known:
            return line([str(command.name), flag, *(rest or re.sub("[{}]", "", value).split())])
    return ""


def other_tools_command(args: Sequence[str]) -> str:
    """Return what to write for a command of another tool; "" if it is a model or a file."""
    word = args[0]
    name = next((name for name, words in COMMANDS_OF_OTHERS.items() if word.lower() in words.split()), None)
    if name is None or is_model(word) or is_there(Path(word)):
        return ""
    rest = [*args[word not in STARTERS :]]
    rest = divided_words(rest) if name == "launch" else rest
    if name == "from" and len(rest) == 1 and _CHECKPOINT.search(rest[0]):
        return f"write {line(['checkpoint', *rest, '--to-hf', 'OUT'])}"
    if name and not name.startswith("-"):
        return f"write {line([name, *rest])}"
    rest = [word for word in rest if word not in ("--help", "-h")]
    model = [] if any(is_model(each) for each in rest) else ["MODEL"]
    gpus = [] if "--gpus" in rest else ["--gpus", GPUS]
    option = "" if name in rest else name
    return _REASONS.get(name, "") + " ".join(filter(None, ("write ds-advise", *model, *rest, *gpus, option)))


def example_of(command: click.Command) -> str:
    """Return the first command line in the help of a command; "" without one."""
    lines = (line.strip() for line in (command.help or "").splitlines())
    return next((line.partition("  #")[0] for line in lines if line.startswith("ds-advise ")), "")


def no_option_value(name: str, command: click.Command) -> str:
    """Return how an option without its value is written: `write --gpus SPEC (GPUs: 2x32GB, 8xA100-80GB, ...)`."""
    for option in command.params:
        if isinstance(option, click.Option) and name in option.opts:
            if option.is_flag:
                return f"write {name}"
            own = option.type.name  # of a count with words N|max
            words = choices_of(option) or own.split("|")
            metavar = option.metavar or (alternatives(words) if words[1:] else own.upper())
            text = (option.help or "").partition("  [")[0].rstrip(".")
            return f"write {name} {metavar}" + (f" ({text})" if text else "")
    return ""


def with_lacking(name: str, args: Sequence[str], command: click.Command) -> str:
    """Return the line with an option that it lacks: `write ds-advise compare a.json b.json --model MODEL`."""
    option = named_options(command).get(name)
    end = args.index("--") if "--" in args else len(args)
    value = [option.metavar or option.type.name.upper()] if option is not None and not option.is_flag else []
    return f"write {line([*args[:end], name, *value, *args[end:]])}"


def near_choice(error: click.BadParameter, args: Sequence[str], command: click.Command) -> str:
    """Return how a value is written that an option does not take: the choice that is meant, or an example."""
    found = re.search(r"'(.{1,40})' is not", error.message)
    option = error.param
    if found is None or not isinstance(option, click.Option):
        return ""
    name, value, choices = option.opts[0], found[1].lower(), choices_of(option)
    if value == "auto":
        return f"leave {name} out for the recommended value"
    if near := meant_choice(value, choices):
        return f"write {name} {near}{needed_method(name, args, named_options(command))}"
    others = [flag for flag, words in options_of(command).items() if value in words and flag != "--quantization"]
    if others:
        return f"write {others[0]} {value}"
    if written := other_name(value):
        return f"write {_filled(written, '', ())}"
    if name in (advice := advice_for(value)):
        return advice
    if choices:
        return f"write {name} {alternatives(choices)}"
    number = _number(option, value)
    if value in _NO_NUMBER and accepts(option, "1"):
        number = _default(option) or "1"
    return f"write {name} {number}" if number else no_option_value(name, command)


_NO_NUMBER = ("0", "-1")
"""Values by which other tools mean none, all, or their own choice."""

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_POWER = re.compile(r"(\d{1,2})(?:\^|\*\*)(\d{1,2})", re.ASCII)
_PRODUCT = re.compile(r"(\d{1,6})[x*](\d{1,6})", re.ASCII)
_NUMBER = re.compile(
    r"[^\d.-]*(\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?)(?![,_]\d)\s*(?:([kmbt])b?(?![a-z]))?\D*", re.IGNORECASE | re.ASCII
)
"""A number among words: `$500`, `500USD`, `1k`."""


def _number(option: click.Option, value: str) -> str:
    """Return the number that a value means, if the option takes it; else the option's default, "" without one."""
    if value.lower() in _WORDS:
        value = str(1 + _WORDS.index(value.lower()))
    if power := _POWER.fullmatch(value):
        value = str(int(power[1]) ** int(power[2]))
    if re.fullmatch(r"\d{1,2}(\.\d+)?%", value):
        value = f"{float(value[:-1]) / 100:g}"
    if product := _PRODUCT.fullmatch(value):
        value = str(int(product[1]) * int(product[2]))
    if isinstance(option.type, click.types.StringParamType) and option.metavar != "N":
        return ""
    if found := _NUMBER.fullmatch(value):
        if found[2] and accepts(option, text := f"{found[1]}{found[2]}"):  # of a length 1k is 1024
            return text
        number = float(re.sub("[,_]", "", found[1])) * 1000 ** " kmbt".index((found[2] or " ").lower())
        texts = (f"{number:.12g}", f"{int(number)}")  # of a count the whole samples or tokens
        if text := next((each for each in texts if float(each) and accepts(option, each)), ""):
            return text
        if isinstance(option.type, Whole) and option.type.most is not None:
            return str(option.type.least if number < option.type.least else option.type.most)
    # A default would take the place of the typed number.
    return "" if re.search(r"\d", value) else _default(option)


def _default(option: click.Option) -> str:
    """Return the number that an option has by default; "" without one."""
    found = re.search(
        r"\[default: (?:about )?(\d[\d.]*(?:e-?\d+)?)", f"{getattr(option, 'help', '')} [default: {option.default}]"
    )
    return found[1] if found else ""
