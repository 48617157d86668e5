"""The words of a command and the YAML and JSON files that they name, while they are edited. Files are edited in copies,
which the words then name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...ds_configs.files import differs, numbered
from ...estimators.errors import ConfigFileError
from ...probes.command.observed import ObservedOption
from ...probes.command.words import option_name
from ..importers.accelerate import WITH_FILE, changed_counts, config_named
from ..importers.file_text import edit_json, edit_yaml, read_yaml


class EditedCommand:
    """A command in its folder. options: those of the script's own parsers. files: texts of new files by path."""

    def __init__(self, words: Sequence[str], folder: Path, options: Sequence[ObservedOption]) -> None:
        self.words = list(words)
        self.files: dict[str, str] = {}
        self._folder = folder
        self._options = options
        self._originals: dict[str, str] = {}
        """Paths of the files that were copied, by those of the copies."""

    def set_typed(self, names: Collection[str], new: Any) -> bool:
        """Set an option that was typed, as `--name value`, `--name=value` or `name=value`."""
        for index, word in enumerate(self.words):
            flag, equals, _ = word.partition("=")
            if option_name(flag) not in names or not (equals or flag.startswith("-")):
                continue
            if equals:
                self.words[index] = f"{flag}={_text(new)}"
            elif any(flag in option.flags and option.is_switch for option in self._options):
                self.words[index : index + 1] = [flag] * bool(new)
            elif index + 1 < len(self.words) and not self.words[index + 1].startswith("--"):
                self.words[index + 1] = _text(new)
            else:  # a bare switch of a parser of dataclasses
                self.words[index : index + 1] = [flag, _text(new)]
            return True
        return False

    def add_option(self, names: Collection[str], new: Any) -> bool:
        """Add an option that the script knows."""
        for option in self._options:
            flag = max(option.flags, key=len)
            if option_name(flag) in names and (new or not option.is_switch):
                self.words += [flag] if option.is_switch else [flag, _text(new)]
                return True
        return False

    def set_key(self, names: Collection[str], old: Any, new: Any, fields: Collection[str]) -> bool:
        """Set a key of a file that the words name: one with the old value, or one that the script reads from that file.

        fields: the keys that the script reads from a file.
        """
        for index, path, values, text in self._files():
            key = next((name for name in names if name in values and _same(values[name], old)), None)
            if key is None and len(values.keys() & set(fields)) > 1:
                key = next(iter(sorted({*names} & {*fields})), None)
            if key is not None and self._edit(index, path, text, {key: new}):
                return True
        return False

    def replace_path(self, present: str, new: str) -> bool:
        """Name a new file in place of a present one, in the words or in a file that they name."""
        for index, word in enumerate(self.words):
            flag, equals, value = word.partition("=")
            written = value if equals else word
            if self._is_path(written, present):
                named = f"{self._folder / new}" if Path(written).is_absolute() else new
                self.words[index] = f"{flag}={named}" if equals else named
                return True
        for index, path, values, text in self._files():
            for key, value in values.items():
                inner = value if isinstance(value, Mapping) else {"": value}
                changed = {name: new for name, each in inner.items() if self._is_path(str(each), present)}
                if changed:
                    return self._edit(index, path, text, {key: {**value, **changed} if value is inner else new})
        return False

    def name_to_accelerate(self, new: str, *, stage: int) -> bool:
        """Name DeepSpeed's configuration to `accelerate launch` in place of the settings from which it makes one: those
        in its own configuration file, or typed."""
        if file := self._of_accelerate():
            index, path, values, text = file
            return self._edit(index, path, text, config_named(values, new, stage=stage))
        if "--accelerate_config" in self.words:  # of TRL's commands, which name a file of TRL's own
            place = self.words.index("--accelerate_config")
            del self.words[place : place + 2]
            return False
        options = self._accelerate_options
        if options is None:
            return False
        others, skips = list[str](), False
        for word in self.words[options]:
            flag, equals, _ = word.partition("=")
            is_value, skips = skips and not word.startswith("-"), False
            if word.startswith("--") and option_name(flag) in {*WITH_FILE, "mixed_precision", "zero3_init_flag"}:
                skips = not equals
            elif not is_value and word != "--use_deepspeed":
                others.append(word)
        self.words[options] = ["--use_deepspeed", "--deepspeed_config_file", new, *others]
        return True

    def set_ranks(self, nodes: int, gpus_per_node: int) -> None:
        """Set the numbers of ranks and nodes in accelerate's configuration file, if the words name one."""
        if file := self._of_accelerate():
            index, path, values, text = file
            if counts := changed_counts(values, nodes * gpus_per_node, nodes):
                self._edit(index, path, text, counts)

    def set_for_accelerate(self, name: str, new: str) -> bool:
        """Set an option of `accelerate launch`, which takes it in front of the script; False for another launcher."""
        options = self._accelerate_options
        if options is None:
            return False
        for at in range(options.start, options.stop):
            flag, equals, _ = self.words[at].partition("=")
            if flag.startswith("--") and option_name(flag) == name:
                self.words[at : at + (1 if equals else 2)] = [flag, new]
                return True
        self.words[options.start : options.start] = [f"--{name}", new]
        return True

    @property
    def _accelerate_options(self) -> slice | None:
        """The words between `accelerate launch` and its script or module; None for another command."""
        names = [Path(word).name for word in self.words]
        begin = next((at + 2 for at in range(len(names)) if names[at : at + 2] == ["accelerate", "launch"]), None)
        if begin is None:
            return None
        pairs = enumerate(pairwise(self.words[begin - 1 :]), start=begin)
        return slice(begin, next((at for at, pair in pairs if _begins_program(*pair)), len(self.words)))

    def _files(self) -> Iterator[tuple[int, str, dict[str, Any], str]]:
        """(place in the words, path as written, keys, text) of each file, except DeepSpeed's own configurations."""
        for index, word in enumerate(self.words):
            path = word.partition("=")[2] if "=" in word else word
            if Path(path).suffix not in (".yaml", ".yml", ".json"):
                continue
            with suppress(OSError, ConfigFileError, ValueError):
                text = self.files[path] if path in self.files else (self._folder / path).read_text(encoding="utf-8")
                values = json.loads(text) if path.endswith(".json") else read_yaml(text, path)
                if isinstance(values, dict) and "zero_optimization" not in values:
                    yield index, path, values, text

    def _of_accelerate(self) -> tuple[int, str, dict[str, Any], str] | None:
        """accelerate's own configuration among the files; None without one."""
        return next((file for file in self._files() if "distributed_type" in file[2]), None)

    def _edit(self, index: int, path: str, text: str, changes: Mapping[str, Any]) -> bool:
        """Write the changed copy of a file, and name it in the words."""
        try:
            edited = (edit_json if path.endswith(".json") else edit_yaml)(text, changes)
        except ConfigFileError:
            return False
        original = self._originals.get(path, path)
        self.files.pop(path, None)
        copy = self._free_path(original, edited)
        self.files[copy], self._originals[copy] = edited, original
        self.words[index] = self.words[index].removesuffix(path) + copy
        return True

    def _free_path(self, path: str, text: str) -> str:
        """A path beside `path` at which there is no other text, or in the folder for a file outside of it."""
        file = Path(path if (self._folder / path).is_relative_to(self._folder) else Path(path).name)
        return str(next(each for each in numbered(file) if each != file and not differs(text, self._folder / each)))

    def _is_path(self, text: str, file: str) -> bool:
        with suppress(OSError, ValueError):
            return bool(text) and (self._folder / text).samefile(file)
        return False


def _begins_program(before: str, word: str) -> bool:
    """Whether a word behind `accelerate launch` is its script or module: no option, and no value of the one before."""
    takes_value = before.startswith("-") and "=" not in before and before not in ("-m", "--module")
    return word.endswith(".py") or not (word.startswith("-") or takes_value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(written: Any, value: Any) -> bool:
    return bool(written == value) or str(written).lower() == _text(value)
