"""What was asked: the model, its training and the machines."""

from __future__ import annotations

from dataclasses import fields

from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import Phrase, listed, named, phrase
from ...estimators.software import DEFAULT, Software
from ...estimators.workload import Workload
from ..answer.recommendation import Recommendation
from ..question.question import Question
from ..text.labels import cluster_title, method_title
from ..text.units import count


def subject(answer: Recommendation) -> tuple[Phrase, ...]:
    """What was asked: the model with its training, and the machines."""
    model, training = training_subject(answer.question)
    machines = cluster_title(answer.question.cluster, speed=False)
    return model, phrase("{training} · {machines}", training=training, machines=machines)


def training_subject(question: Question) -> tuple[Phrase, Phrase]:
    """The model, and its training whatever the machines."""
    model, workload = question.model, question.workload
    size = phrase("{count} parameters", count=count(model.parameters))
    if question.trainable_parameters != model.parameters:
        size = phrase("{size}, {count} trained", size=size, count=count(question.trainable_parameters))
    return (
        phrase("{model} · {size} · {method}", model=model.name, size=size, method=method_title(workload)),
        listed(
            [
                phrase(
                    "{precision} · {optimizer} · sequence {length}",
                    precision=workload.precision,
                    optimizer=workload.optimizer,
                    length=_length(model, workload),
                ),
                *_unusual(workload),
            ]
        ),
    )


def _length(model: ModelShape, workload: Workload) -> str:
    """Tokens of a sequence, and what it is to a model with an encoder and a decoder."""
    if not any(block.cross_attention for block in model.blocks):
        return str(workload.seq_len)
    return phrase(
        "{tokens} (tokens of the target, which are counted; the source has {source})",
        tokens=workload.seq_len,
        source=model.encoder_len(workload.seq_len),
    )


def _unusual(workload: Workload) -> list[Phrase]:
    """What is not usual of the documents, the loss, the kernels and the software."""
    said = []
    if workload.document_len is not None:
        said.append(phrase("documents of {tokens}", tokens=workload.document_len))
    if workload.loss != "standard":
        said.append(phrase("{kind} loss", kind=workload.loss))
    if workload.mlp == "tiled":
        said.append(phrase("tiled feed-forward"))
    if workload.kernels != "torch":
        said.append(phrase("{kind} kernels", kind={"liger": "Liger", "unsloth": "unsloth"}[workload.kernels]))
    return said + [named(words) for words in _differences(workload.software)]


def _differences(software: Software) -> tuple[str, ...]:
    """`transformers 4.45`, `reentrant`: what is not as planned for."""
    names = [field.name for field in fields(Software)]
    values = {name: getattr(software, name) for name in names if getattr(software, name) != getattr(DEFAULT, name)}
    said = {name: ".".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    return tuple(
        name.replace("_", " ")
        if value is True
        else f"no {name.replace('_', ' ')}"
        if value is False
        else f"{name} {value}"
        for name, value in said.items()
    )
