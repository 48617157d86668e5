"""The explanation of a key of a ds_config, as blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ...estimators.optimizers import OPTIMIZERS
from ...validate.lint.rules_types import MICRO
from ...validate.lint.values import json_text
from ..answer.explained_key import AUTO, NOT_LISTED, KeyExplanation
from ..answer.key_costs import KeyCost, may_cost
from ..document.blocks import Block, Cell, Figure, Gap, Row, Sentence, Snippet, Table
from ..search.choice import SAME_SPEED
from ..text.labels import phase_title
from ..text.units import capitalised, ended, gib, percent, rate, times
from .explanation import assumed_line

_MOST_RULES = 4


def _stages(key: KeyExplanation) -> str:
    if not key.path.startswith("zero_optimization"):
        return ""
    return "every stage" if {*key.stages} == {0, 1, 2, 3} else ", ".join(map(str, key.stages)) or "none"


def key_blocks(key: KeyExplanation) -> Iterator[Block]:
    """Yield what a key decides, its type, default and place, a value to copy, and the predicted figures by value."""
    yield Sentence(key.path, "bold")
    if key.meaning:
        yield Sentence(ended(capitalised(key.meaning)))
    if key.description:
        yield Sentence(f'DeepSpeed: "{key.description}"', "dim")
    value = key.recommended or ({} if key.plan or key.file else key.example)
    whose = _whose(key) if key.file or key.plan else "example"
    facts = {
        "type": key.type,
        "default": re.sub(r"\b\d{4,}\b", lambda found: f"{int(found[0]):,}", key.default_in_words),
        "ZeRO stage": _stages(key),
        "condition": " ".join(each for each in key.acts if not each.startswith(AUTO) and each != NOT_LISTED),
        "keys": NOT_LISTED.removeprefix("Its keys are ") * (NOT_LISTED in key.acts),
        AUTO.rstrip(": "): " ".join(capitalised(each.removeprefix(AUTO)) for each in key.acts if each.startswith(AUTO)),
        "lint": "; ".join(key.rules[:_MOST_RULES]),
        whose: json.dumps(value) if value else _without_value(key),
    }
    rows = [Row([Snippet(name), Snippet(text)]) for name, text in facts.items() if text]
    if rows:
        yield from (Gap(), Table(["", ""], rows))
    if key.keys:
        old = key.deprecated()
        live = {name: words for name, words in key.keys.items() if name not in old}
        rows = [Row([Snippet(name), capitalised(_first_sentence(words))]) for name, words in live.items()]
        yield from (Gap(), Table(["", ""], rows))
        if old:
            names = (f"{name} (now {now})" for name, now in old.items())
            yield from (Gap(), Sentence(f"Deprecated: {', '.join(names)}.", "dim"))
    yield Gap()
    if key.plan:
        flag = f"--{key.option.replace('_', '-')}"
        same = _same_figures(key)
        by = flag if key.option else "value"
        figures = f"the same predicted figures for every {by}" if same else f"predicted figures by {by}"
        figures += ", which sets it" * bool(key.option)
        keeps_batch = key.path == MICRO and len({cost.samples_per_step for cost in key.costs}) == 1
        figures += ", each with the accumulation that keeps the global batch" * keeps_batch
        plan = f"{key.file}: {key.plan}" if key.file else key.plan
        title = f"{plan}: {key.no_cost or figures}"
        yield Sentence(ended(title) if key.no_cost else title, "bold")
        if same:
            yield Sentence(same)
        elif len(key.costs) > 1:
            yield _costs(key)
            yield from _equal_speeds(key)
        for each in key.costs:
            for remark in each.lint:
                yield Sentence(ended(f"With {_value(each, key)}, lint has {remark}"), "unsure")
        if len({(gib(cost.device_bytes_per_gpu), cost.peak) for cost in key.costs}) == 1:
            yield Sentence(f"GPU memory peaks at {phase_title(key.costs[0].peak)}, whatever the value is.", "dim")
        if key.assumed:
            yield Sentence(assumed_line(key.assumed), "dim")
    else:
        cost = "; a key's cost is shown for the key alone" if key.keys else ", and what it costs" * may_cost(key.path)
        yield Sentence(f"--model MODEL --gpus SPEC adds the value for a training{cost}.", "dim")
    yield Sentence(f"Read in the sources of DeepSpeed {key.deepspeed}.", "dim")


def _whose(key: KeyExplanation) -> str:
    return "in the file" if key.file else key.origin


def _without_value(key: KeyExplanation) -> str:
    return "not written" if key.file else "leave it out" if key.plan else ""


def _first_sentence(text: str) -> str:
    """Return the start of a description of DeepSpeed's, which may have paragraphs."""
    return _SENTENCE_END.split(" ".join(text.split()), maxsplit=1)[0]


_SENTENCE_END = re.compile(r"(?<=[^.])\.(?: |$)")


def _equal_speeds(key: KeyExplanation) -> Iterator[Block]:
    """Yield why a value is the plan's although the predicted speed of another is a little higher."""
    own = next((cost for cost in key.costs if cost.is_the_plans), None)
    most = 0.0 if own is None else own.tokens_per_second * (1 + SAME_SPEED)
    faster = [cost for cost in key.costs if own is not None and own.tokens_per_second < cost.tokens_per_second <= most]
    if own is None or not faster or key.file:
        return
    more = all(cost.device_bytes_per_gpu > own.device_bytes_per_gpu for cost in faster)
    memory = "; the faster values take more GPU memory" if more else ""
    yield Sentence(f"Speeds within {percent(SAME_SPEED)} are not told apart{memory}.", "dim")


def _same_figures(key: KeyExplanation) -> str:
    """Return the figures as a sentence if they are those of every value; "" otherwise."""
    found = {
        (gib(cost.device_bytes_per_gpu), gib(cost.host_bytes_per_node), rate(cost.tokens_per_second), cost.reason)
        for cost in key.costs
    }
    differ = any(cost.left_out for cost in key.costs) or len({cost.samples_per_step for cost in key.costs}) > 1
    if len(key.costs) < 2 or len(found) != 1 or differ:
        return ""
    ((device, host, speed, reason),) = found
    values = "; ".join(_value(cost, key) for cost in key.costs)
    figures = f"{device} GiB per GPU, {host} GiB of RAM per node and {speed} tokens/s"
    return f"{figures} ({reason}) for {values}."


def _value(cost: KeyCost, key: KeyExplanation) -> str:
    if cost.value == "":
        return f"unset ({key.gradient_type})" if key.gradient_type else "unset"
    if type(cost.value) is int:
        return f"{cost.value:,}"
    written = OPTIMIZERS[cost.value].block_type if key.path == "optimizer.type" else ""
    if written and written.lower() != cost.value:
        return f"{cost.value} ({written})"
    return str(cost.value) if key.option else json_text(cost.value)


def _costs(key: KeyExplanation) -> Table:
    """Return the figures by value; speeds are compared with the plan's, unless all are the same."""
    own = next((cost.tokens_per_second for cost in key.costs if cost.is_the_plans), None)
    others = [cost for cost in key.costs if not cost.is_the_plans]
    differ = own and any(times(cost.tokens_per_second / own) != times(1.0) for cost in others)
    rows, batches = [], len({cost.samples_per_step for cost in key.costs}) > 1 and key.option != "global_batch"
    for cost in key.costs:
        value = _value(cost, key)
        sizes = (Figure(gib(size)) for size in (cost.device_bytes_per_gpu, cost.host_bytes_per_node))
        ratio = times(cost.tokens_per_second / own) if own and differ else ""
        if cost.is_the_plans:
            ratio = key.origin
        without = f"without {' and '.join(cost.left_out)}" if cost.left_out else ""
        marked = [remark.partition(":")[0] for remark in cost.lint]
        words = ", ".join(filter(None, (ratio, "" if cost.fits else cost.reason, without, *marked)))
        samples = [Figure(f"{cost.samples_per_step:,}")] * batches
        cells: list[Cell] = [value, *samples, *sizes, Figure(rate(cost.tokens_per_second)), words]
        rows.append(Row(cells, "chosen" if cost.is_the_plans else ""))
    title = f"--{key.option.replace('_', '-')}" if key.option else "value"
    return Table([title, *["global batch"] * batches, "GPU GiB", "RAM GiB", "tokens/s", ""], rows)
