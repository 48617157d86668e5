"""Samples as text in parts, by the tokenizer's chat template: what the model is shown, and what it learns to answer."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import commonprefix
from typing import Any

from .errors import DataError
from .shapes import Chat, Message, RowSample, TextPart

DEFAULT_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '### ' + message['role'][0] | upper + message['role'][1:] + ':\\n' + message['content'] -}}
{%- if message['role'] == 'assistant' -%}{{- eos_token -}}{%- endif -%}
{{- '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Assistant:\\n' -}}{%- endif -%}
"""
"""For tokenizers without a template of their own: `### User:`, a line with the text, an empty line, `### Assistant:`,
the answer and the end-of-text token. It is saved with the trained tokenizer, so that the model is asked as it was
trained."""


class Renderer:
    """Renders samples with one tokenizer, which gets `DEFAULT_CHAT_TEMPLATE` where it has none.

    system: a system message for chats that bring none.
    untrained_turns: earlier answers that were left out of the loss, because the template renders them differently once
    the conversation goes on (as those do that drop a model's thoughts), so that no part of the text equals them.
    """

    def __init__(self, tokenizer: Any, *, system: str | None = None) -> None:
        if tokenizer.eos_token is None:
            raise DataError(
                "the tokenizer has no end-of-text token",
                why="a model that never sees one does not stop",
                fix="set eos_token in its tokenizer_config.json",
            )
        self._tokenizer, self._system = tokenizer, system
        self.has_own_template = bool(tokenizer.chat_template)
        if not self.has_own_template:
            tokenizer.chat_template = DEFAULT_CHAT_TEMPLATE
        # Templates write the beginning-of-text token themselves; plain text gets it as the tokenizer would put it.
        bos = tokenizer.bos_token_id
        self._bos = tokenizer.bos_token if bos is not None and tokenizer("")["input_ids"][:1] == [bos] else ""
        self.untrained_turns = 0

    def parts(self, sample: RowSample, place: str) -> list[TextPart]:
        """The text in parts; together they are exactly what the model sees, its last answer ends with end-of-text.

        Raises DataError, naming `place`, where the template refuses the messages or leaves no answer in the text.
        """
        if isinstance(sample, Chat):
            return _merged(self._chat(sample, place))
        end = "" if sample.goes_on else self._tokenizer.eos_token
        return _merged([TextPart(self._bos, False), *sample.parts, TextPart(end, sample.parts[-1].is_trained)])

    def _chat(self, chat: Chat, place: str) -> Iterator[TextPart]:
        messages = list(chat.messages)
        if self._system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system})
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        # What follows the last answer would only be read, and nothing is learned from it.
        messages = messages[: answers[-1] + 1]
        whole = self._render(messages, chat.tools, place)
        done = 0
        for number in answers:
            start, end = self._span(messages, number, whole, chat.tools, place)
            if start is None:
                self.untrained_turns += 1
                continue
            yield TextPart(whole[done:start], False)
            answer = whole[start:end].rstrip()
            if number == answers[-1] and not answer.endswith(self._tokenizer.eos_token):
                # Behind the template's own end of a turn: what generation stops at must have been learned.
                answer += self._tokenizer.eos_token
            yield TextPart(answer, True)
            done = start + len(whole[start:end].rstrip())
        # White space behind the last answer is dropped: the model has ended there.
        assert not whole[done:].strip(), "the last answer is the end of the text"

    def _span(self, messages: list[Message], number: int, whole: str, tools: Any, place: str) -> tuple[int | None, int]:
        """Where answer `number` begins and ends in the whole text; the beginning is None where it is not in there as
        such.

        It begins where the text of a question that waits for this answer ends. A template that opens an answer in a way
        that it later leaves out (`<think>`) shares a shorter beginning with the whole.
        """
        is_last = number == len(messages) - 1
        until = whole if is_last else self._render(messages[: number + 1], tools, place)
        question = self._render(messages[:number], tools, place, generation=True)
        start = len(commonprefix([question, until]))  # noqa: RUF071  of characters, as is wanted
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

    def _render(self, messages: list[Message], tools: Any, place: str, *, generation: bool = False) -> str:
        if not messages:
            return ""
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generation
            )
        except Exception as problem:  # templates are programs: they raise whatever they like about what they are given
            raise DataError(
                f"{place}: the tokenizer's chat template refuses it ({str(problem)[:150]})",
                why="the model was made for other conversations",
                fix="repair or remove the row",
            ) from problem
        return str(text)


def _merged(parts: Iterator[TextPart] | list[TextPart]) -> list[TextPart]:
    """Neighbours of one kind as one part: the tokenizer then splits them as it would in one text."""
    merged: list[TextPart] = []
    for part in parts:
        if merged and merged[-1].is_trained == part.is_trained:
            merged[-1] = TextPart(merged[-1].text + part.text, part.is_trained)
        elif part.text:
            merged.append(part)
    return merged
