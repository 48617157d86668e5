"""Tokenizing: a model's files on this machine; samples as text by the tokenizer's chat template; text as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models.model_shape import ModelShape
from ..text.units import shown_path
from .formats import Chat, Message, Sample
from .rows import DataError

_WEIGHTS = "*.safetensors"
_DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Files of configuration and tokenizer; never code (*.py) or pickles (*.bin, *.pt)."""


def load_tokenizer(name: str, shape: ModelShape, *, offline: bool) -> Any:
    """The model's tokenizer. Raises ModelConfigError if it has none, or none that can be read without running its
    code."""
    from transformers import AutoTokenizer

    folder = _folder(name, shape, _DESCRIPTIONS, offline=offline)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not tokenizer.is_fast:
            raise ValueError("it does not know the places of its tokens in the text")
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers 5 makes one from config.json alone
            raise ValueError("its vocabulary is empty")
        return tokenizer
    except Exception as problem:  # many kinds: missing and broken files, code that would need to be trusted
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise ModelConfigError(
            f"{name}: no tokenizer that can be read ({lines[0][:150]})",
            why="text must become tokens, and code from the model's folder is not executed",
            fix="put tokenizer.json and tokenizer_config.json next to config.json",
        ) from problem


def weights_folder(name: str, shape: ModelShape, *, offline: bool) -> Path:
    """The folder with configuration and safetensors. Raises ModelConfigError if the model has no safetensors."""
    folder = _folder(name, shape, (*_DESCRIPTIONS, _WEIGHTS), offline=offline)
    if not any(folder.glob(_WEIGHTS)):
        raise ModelConfigError(
            f"no safetensors in {shown_path(folder)}" if is_local(name) else f"{name}: no safetensors on the Hub",
            why="training starts from weights, and pickled ones can run code when read",
            fix="give the folder that holds model.safetensors, or convert: model.save_pretrained(folder)",
        )
    return folder


def is_local(name: str) -> bool:
    """Whether a model is named by its folder, or by a file in it."""
    return Path(name).expanduser().exists()


def _folder(name: str, shape: ModelShape, patterns: tuple[str, ...], *, offline: bool) -> Path:
    """The user's folder, or the folder in the hub's cache, downloaded unless `offline`."""
    if is_local(name):
        path = Path(name).expanduser().resolve()
        return path if path.is_dir() else path.parent
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(shape.name, allow_patterns=list(patterns), local_files_only=offline))
    except Exception as problem:  # errors of the network, the hub, the disk
        raise UnknownModelError(
            f"{shape.name}: cannot be fetched from the hub ({type(problem).__name__})",
            why="training needs its tokenizer and weights",
            fix="give a folder that holds them" if not offline else "leave --offline out, or give a folder",
        ) from problem


DEFAULT_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '### ' + message['role'][0] | upper + message['role'][1:] + ':\\n' + message['content'] -}}
{%- if message['role'] == 'assistant' -%}{{- eos_token -}}{%- endif -%}
{{- '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Assistant:\\n' -}}{%- endif -%}
"""
"""Template for tokenizers without one: `### User:`, a line with the text, an empty line, `### Assistant:`, the answer
and the end-of-text token. It is saved with the trained tokenizer."""


IGNORED = -100
"""The label that transformers' losses ignore."""


class Rendered(NamedTuple):
    """A sample as one text, and the (start, end) of each part that counts in the loss."""

    text: str
    trained: list[tuple[int, int]]


class Renderer:
    """Renders samples with one tokenizer, which is given `DEFAULT_CHAT_TEMPLATE` for chats if it has no template."""

    def __init__(self, tokenizer: Any, *, system: str | None = None) -> None:
        """system: a system message for chats without one."""
        if tokenizer.eos_token is None:
            raise DataError(
                "the tokenizer has no end-of-text token",
                why="a model that never sees one does not stop",
                fix="set eos_token in its tokenizer_config.json",
            )
        self._tokenizer = tokenizer
        self._system = system
        self.has_own_template = bool(tokenizer.chat_template)
        # Templates write the beginning-of-text token themselves; plain text gets it if the tokenizer adds it.
        bos = tokenizer.bos_token_id
        self._bos = tokenizer.bos_token if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else ""
        self.untrained_turns = 0
        """Number of earlier answers left out of the loss, because the template writes them differently once the
        conversation goes on: what is trained must be exactly the model's input."""

    def render(self, sample: Sample, place: str, *, continues: bool = False) -> Rendered:
        """The text of a sample, which ends with end-of-text unless it `continues` in the next one.

        Raises DataError with `place` if the template refuses the messages or leaves no answer in the text.
        """
        if isinstance(sample, Chat):
            return self._chat(sample, place)
        prompt = self._bos + sample.prompt
        text = prompt + sample.completion + ("" if continues else self._tokenizer.eos_token)
        return Rendered(text, [(len(prompt), len(text))])

    def _chat(self, chat: Chat, place: str) -> Rendered:
        messages = list(chat.messages)
        if self._system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system})
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        # Nothing is learned from what follows the last answer.
        messages = messages[: answers[-1] + 1]
        whole = self._text(messages, chat.tools, place)
        trained = []
        for number in answers:
            start, end = self._span(messages, number, whole, chat.tools, place)
            if start is None:
                self.untrained_turns += 1
            else:
                trained.append((start, start + len(whole[start:end].rstrip())))
        # White space after the last answer is dropped: the model has ended there.
        (start, end), eos = trained.pop(), self._tokenizer.eos_token
        text = whole[:end]
        if not text.endswith(eos):
            # After the template's own end of a turn: the token at which generation stops must be learned.
            text += eos
        return Rendered(text, [*trained, (start, len(text))])

    def _span(self, messages: list[Message], number: int, whole: str, tools: Any, place: str) -> tuple[int | None, int]:
        """(start, end) of answer `number` in the whole text; the start is None if the text does not contain the answer
        unchanged. The answer starts at the end of the question's text, rendered for generation. If the template opens
        an answer with a text that it later omits (`<think>`), the start is the end of the common beginning."""
        is_last = number == len(messages) - 1
        until = whole if is_last else self._text(messages[: number + 1], tools, place)
        question = self._text(messages[:number], tools, place, generation=True)
        start = len(commonprefix([question, until]))  # noqa: RUF071  of characters, as intended
        content = messages[number]["content"].strip()
        if whole.startswith(until) and content in until[start:]:
            return start, len(until)
        if is_last:
            raise DataError(
                f"{place}: the chat template leaves out the last answer",
                why="there is nothing to learn from",
                fix="repair the row, or the tokenizer's chat_template",
            )
        return None, 0

    def _text(self, messages: list[Message], tools: Any, place: str, *, generation: bool = False) -> str:
        if not messages:
            return ""
        if not self._tokenizer.chat_template:
            self._tokenizer.chat_template = DEFAULT_CHAT_TEMPLATE
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generation
            )
        except Exception as problem:  # templates are programs, which raise anything
            raise DataError(
                f"{place}: the tokenizer's chat template refuses it ({str(problem)[:150]})",
                why="the model was made for other conversations",
                fix="repair or remove the row",
            ) from problem
        return str(text)


def tokenize(tokenizer: Any, samples: Sequence[Rendered]) -> dict[str, list[list[int]]]:
    """`input_ids`, and `labels` that are `IGNORED` outside the trained parts, without added special tokens, which the
    text already has. A token that lies partly in a trained part is trained, as in TRL."""
    import numpy as np

    if not samples:
        return {"input_ids": [], "labels": []}
    texts = [sample.text for sample in samples]
    # verbose=False: no warning of texts longer than the model, which are cut later.
    made = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    labels = []
    for ids, offsets, sample in zip(made["input_ids"], made["offset_mapping"], samples, strict=True):
        starts, ends = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
        is_trained = np.zeros(len(ids), dtype=np.bool_)
        for start, end in sample.trained:
            is_trained |= (starts < end) & (ends > start)
        labels.append(np.where(is_trained, ids, IGNORED).tolist())
    return {"input_ids": made["input_ids"], "labels": labels}
