"""The keys in which two configurations differ, after `auto` and missing keys have been resolved."""

from __future__ import annotations

from dataclasses import dataclass

from ...ds_configs.config_keys import meaning, rank
from .config_settings import ConfigSettings, Setting


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that differs between the two sides."""

    key: str
    first: Setting
    second: Setting
    meaning: str
    acts: bool
    """Whether a value that is not the default has an effect on at least one side."""


def differences(first: ConfigSettings, second: ConfigSettings) -> tuple[Difference, ...]:
    """Return the keys whose settings differ after `auto` and missing keys have been resolved."""
    found = []
    blocks = first.invalid_blocks | second.invalid_blocks  # each is one difference, without those of its keys
    inside = tuple(f"{block}." for block in blocks)
    for path in sorted((each for each in first.paths() | second.paths() if not each.startswith(inside)), key=rank):
        ours, theirs = (side.get_block(path) if path in blocks else side.get(path) for side in (first, second))
        # The global batch may be derived from the other two batch sizes and the number of GPUs.
        follows = path == "train_batch_size" and any(each.value in (None, "auto") for each in (ours, theirs))
        if not (ours.same_as(theirs) or follows or _only_repeats_the_default(path, first, second)):
            acts = any(
                side.acts(path) and not setting.is_default for side, setting in ((first, ours), (second, theirs))
            )
            found.append(Difference(key=path, first=ours, second=theirs, meaning=meaning(path), acts=acts))
    return tuple(found)


def _only_repeats_the_default(path: str, first: ConfigSettings, second: ConfigSettings) -> bool:
    """Whether only one side enables the key's block, and the key has its default value there."""
    for here, there in ((first, second), (second, first)):
        if here.active(path) and not there.active(path):
            return here.get(path).same_as(here.default(path))
    return False
