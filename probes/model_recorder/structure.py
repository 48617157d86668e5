"""The shape of a model from its module on the meta device: tensors, repeated layers, and their programs."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map_only

from ...estimators.models.families import PEFT_EXPERTS
from ...estimators.models.model_shape import Attention, Block, FeedForward, ModelShape, Role, Tensor, build_attention
from ...estimators.models.program import Instruction, OuterPrograms, Program
from .program import LAST, LONG_STEP, STEPS, Part, Shapes, program, step_shapes, usual_step
from .trace import MAX_OPERATIONS, TooManyOperationsError, Trace, UnrecordableError, tensors_in, tracing

Batch = Callable[[int, int], Mapping[str, Any]]
"""Returns the inputs of a forward pass for a number of samples and tokens."""


LAYER_OPERATIONS = 1_500
"""Maximum number of operations of a layer without a loop over the sequence. More than 4 operations per token and kind
of layer are a loop over tokens."""

Kind = tuple[str, int | None, tuple[Any, ...]]
"""The list of a layer, its window, and its fingerprint."""


@dataclass(frozen=True)
class _Call:
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def hidden(self) -> torch.Tensor:
        found: torch.Tensor = self.args[0] if self.args else self.kwargs["hidden_states"]
        return found


@dataclass(frozen=True)
class _Run:
    """One forward pass: the operations around the layers, and the inputs of each layer."""

    trace: Trace
    calls: Mapping[str, _Call]
    sources: Mapping[int, int]
    """Identity of a layer's input -> its number in the trace."""
    layer_results: frozenset[int]
    """Tensors of the trace that are computed from outputs of layers, such as an encoder's output."""
    embedded: Sequence[int]
    """Outputs of the input embedding."""
    output: int


def recorded_shape(
    model: Any,
    make_batch: Batch,
    *,
    name: str,
    source: str,
    windows: Mapping[int, int],
    rebuild: Callable[[], Any] | None = None,
) -> ModelShape:
    """The shape of a transformers model.

    windows: index of a layer in its list -> its window, if it has one. rebuild: builds the model again, for longer
    sequences: its code may have changed it for short ones.

    Raises UnrecordableError, and any error of the model's code on tensors without data.
    """
    usual, longest = usual_step(_max_positions(model.config)), _max_positions(model.config)
    at = partial(_shape_at, make_batch, name, source, windows)
    try:
        return at(model, usual)
    except TooManyOperationsError:
        return at(model, STEPS[-1])
    except UnrecordableError:
        if rebuild is None or 0 < longest < LAST * LONG_STEP:
            raise
        return at(rebuild(), LONG_STEP)


def _shape_at(
    make_batch: Batch, name: str, source: str, windows: Mapping[int, int], model: Any, step: int
) -> ModelShape:
    """The shape of the model, from lengths that are multiples of a step."""
    config = model.config
    text = config.get_text_config()
    every_layer = dict(_layers(model))
    kinds: dict[str, Kind] = {}
    for path, layer in every_layer.items():
        prefix, _, place = path.rpartition(".")
        window = windows.get(int(place)) if place.isdigit() else None
        kinds[path] = prefix, window, _fingerprint(layer)
    shapes = step_shapes(step)
    count, runs = len(set(kinds.values())), list[_Run]()
    # The first pass fills the caches of the model's code. Short sequences come last: code may switch to another kernel
    # permanently when it sees one.
    for batch, length in (shapes[-1], *reversed(shapes)):
        loops = count * (LAYER_OPERATIONS + 4 * length)
        max_operations = loops if step > STEPS[-1] else MAX_OPERATIONS
        runs.append(_run(model, make_batch(batch, length), every_layer, kinds, max_operations))
    runs = runs[:0:-1]
    layers = {path: layer for path, layer in every_layer.items() if path in runs[0].calls}
    members: dict[Kind, list[str]] = {}
    for path in layers:
        members.setdefault(kinds[path], []).append(path)
    blocks = tuple(
        _block(
            prefix,
            layers[paths[0]],
            len(paths),
            program([_layer_part(model, run, paths[0]) for run in runs], shapes)._replace(
                flash=getattr(model, "_supports_flash_attn", True), softmax_fp32=_softmax_fp32(layers[paths[0]])
            ),
            window,
            model,
            [run.calls[paths[0]].hidden.shape for run in runs],
        )
        for (prefix, window, _), paths in members.items()
    )
    head, embedding = model.get_output_embeddings(), _input_embedding(model)
    modules = dict(model.named_modules())
    inside = tuple(f"{path}." for path in layers)
    of_head = [path for path, parameter in model.named_parameters() if head is not None and parameter is head.weight]
    outside = tuple(
        _tensor(modules, path, parameter, head=head, embedding=embedding, is_idle=path not in runs[0].trace.used)
        for path, parameter in model.named_parameters()
        if not path.startswith(inside)
    )
    shape = ModelShape(
        name=name,
        model_type=config.model_type,
        architecture=type(model).__name__,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size if head is not None else 0,
        num_labels=text.num_labels if head is None and "For" in type(model).__name__ else 0,
        blocks=blocks,
        outside=outside,
        # The layers of a tower without checkpointing (timm's) are not found as layers.
        idle_tower=len(layers) < len(every_layer) or any(_is_of_tower(tensor) for tensor in outside),
        tied=head is not None and embedding is not None and head.weight is embedding.weight,
        max_positions=_max_positions(config) or None,
        encoder_len_fixed=next((each.tokens for each in blocks if each.tokens and not each.hidden_size), None),
        logit_softcap=bool(getattr(text, "final_logit_softcapping", None)),
        source=source,
        peft_experts=tuple(_peft_experts(config.model_type, blocks)),
        pair_router=any(path.endswith(("router", "gate")) and _returns_several(modules[path]) for path in modules),
        outer_programs=_around(runs, shapes, of_head[0].removesuffix(".weight") if of_head else ""),
    )
    if shape.parameters != model.num_parameters():
        raise UnrecordableError("layers share parameters, which a recording would count once for each of them")
    return shape


def _input_embedding(model: Any) -> torch.nn.Module | None:
    try:
        return model.get_input_embeddings()  # type: ignore[no-any-return]
    except NotImplementedError:  # a class that has not named it
        return None


def _softmax_fp32(layer: torch.nn.Module) -> bool:
    """Whether the code of eager attention computes the softmax in fp32. Some classes have it in a method."""
    module = sys.modules[type(layer).__module__]
    # The traced attention is one operation, which hides the softmax of the eager one.
    code = inspect.getsource(getattr(module, "eager_attention_forward", module))
    return re.search(r"softmax\(.*float32", code) is not None


def _returns_several(layer: torch.nn.Module) -> bool:
    """Whether a layer is of a subclass of Linear that returns more than a tensor, so that peft cannot add an
    adapter."""
    if not isinstance(layer, torch.nn.Linear) or type(layer).forward is torch.nn.Linear.forward:
        return False
    row = torch.zeros((1, layer.in_features), dtype=layer.weight.dtype, device=layer.weight.device)
    return not isinstance(layer(row), torch.Tensor)


def _peft_experts(model_type: str, blocks: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """(name in peft, tensor) of the experts' tensors that peft adapts under earlier names."""
    from transformers import conversion_mapping

    schemes: Mapping[str, str] = getattr(conversion_mapping, "_MODEL_TO_CONVERSION_PATTERN", {})
    tensors = PEFT_EXPERTS.get(schemes.get(model_type, ""), {})
    names = dict.fromkeys(
        tensor.name for block in blocks for tensor in block.tensors if tensor.role in ("expert", "router")
    )
    for target, tensor in tensors.items():
        end = tensor.removeprefix("mlp").removeprefix(".experts")  # other types use another name for the mixture
        yield from ((target, name) for name in names if name.endswith(end))


def _max_positions(config: Any) -> int:
    """Maximum sequence length; 0 if unlimited."""
    text = config.get_text_config()
    found = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None)
    return found if isinstance(found, int) else 0


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The outermost layers that transformers can checkpoint; for classes without any, the members of module lists."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    modules = dict(model.named_modules())
    found = [path for path, module in modules.items() if isinstance(module, GradientCheckpointingLayer)] or [
        f"{path}.{index}"
        for path, module in modules.items()
        if isinstance(module, torch.nn.ModuleList) and len({type(each) for each in module}) == 1
        for index in range(len(module))
    ]
    outermost = [path for path in found if not any(path.startswith(f"{other}.") for other in found)]
    return ((path, modules[path]) for path in outermost)


def _run(
    model: Any,
    batch: Mapping[str, Any],
    layers: Mapping[str, torch.nn.Module],
    kinds: Mapping[str, Kind],
    max_operations: int,
) -> _Run:
    """Run a forward pass. One layer of each kind runs, unrecorded; the others return empty tensors of the same
    shapes."""
    trace = Trace(model)
    calls: dict[str, _Call] = {}
    sources: dict[int, int] = {}
    results: dict[Kind, Any] = {}
    embedded: list[int] = []
    forwards = {path: layer.forward for path, layer in layers.items()}
    for tensor in (*batch.values(), *model.buffers()):
        trace.number(tensor)

    def skip(path: str, *args: Any, **kwargs: Any) -> Any:
        calls[path] = call = _Call(args, kwargs)
        for tensor in tensors_in((args, kwargs)):
            sources[id(tensor)] = trace.number(tensor)
            trace.keep(tensor)
        if kinds[path] not in results:
            results[kinds[path]] = unseen(forwards[path], *args, **kwargs)
        result = unseen(tree_map_only, torch.Tensor, torch.empty_like, results[kinds[path]])
        trace.step("layer", path, call.hidden, result)
        return result

    table = getattr(_input_embedding(model), "weight", None)
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.weight is table:
                note = module.register_forward_hook(lambda _, __, result: embedded.append(trace.number(result)))
                stack.enter_context(note)
        for path, layer in layers.items():
            # Instead of hooks, which cannot skip a layer.
            stack.enter_context(patch.object(layer, "forward", partial(skip, path)))
        unseen = stack.enter_context(tracing(trace, max_operations, all_nonzero=True))
        output = model(**batch, use_cache=False)
    return _Run(trace, calls, sources, _layer_results(trace), embedded, trace.keep(tensors_in(output)[0]))


def _layer_results(trace: Trace) -> frozenset[int]:
    found: set[int] = set()
    for step in trace.steps:
        if step.kind == "layer" or found.intersection(step.inputs):
            found.update(step.outputs)
    return frozenset(found)


def _layer_part(model: Any, run: _Run, path: str) -> Part:
    """The part of one layer, with its inputs in the model."""
    layer, call = model.get_submodule(path), run.calls[path]
    trace = Trace(layer)
    first_input = trace.number(call.hidden)
    for buffer in layer.buffers():
        trace.number(buffer)
    for tensor in tensors_in((call.args, call.kwargs)):
        number = run.sources[id(tensor)]
        trace.number(tensor, number + 1, needs_grad=number in run.layer_results)
    with tracing(trace, all_nonzero=True):
        result = layer(*call.args, **call.kwargs)
    return Part(trace, trace.steps, first_input, trace.keep(tensors_in(result)[0]))


def _around(runs: list[_Run], shapes: Shapes, head: str) -> OuterPrograms:
    """The programs before the first layer of each stack, and from the last layer to the head."""
    parts = [_parts_around(run, head) for run in runs]
    *prologue, epilogue = (program(each, shapes) for each in zip(*parts, strict=True))
    return OuterPrograms(tuple(prologue), epilogue)


def _parts_around(run: _Run, head: str) -> list[Part]:
    steps, parts = run.trace.steps, list[Part]()
    begin, first_input, stacks = 0, None, set[str]()
    for place, step in enumerate(steps):
        if step.kind != "layer":
            continue
        if (own := step.name.rpartition(".")[0]) not in stacks:
            made = {number for each in steps[begin:place] for number in each.outputs}
            embedding = next((number for number in run.embedded if number in made), None)
            parts.append(Part(run.trace, steps[begin:place], first_input, step.inputs[0], embedding))
            stacks.add(own)
        begin, first_input = place + 1, step.outputs[0]
    epilogue = steps[begin:]
    place, output = next(
        ((place, step.inputs[0]) for place, step in enumerate(epilogue) if step.kind == "linear" and step.name == head),
        (len(epilogue), run.output),
    )
    return [*parts, Part(run.trace, epilogue[:place], first_input, output)]


def _fingerprint(layer: torch.nn.Module) -> tuple[Any, ...]:
    """Key of a layer, equal for layers that run the same operations on tensors of the same shapes."""
    attributes = tuple(
        (path, type(module).__name__, key, value)
        for path, module in layer.named_modules()
        for key, value in sorted(vars(module).items())
        if isinstance(value, bool | int | float | str) and not key.endswith(_PLACES)
    )
    return attributes, tuple((path, tuple(parameter.shape)) for path, parameter in layer.named_parameters())


_PLACES = ("idx", "index", "layer_id", "layer_num", "layer_number", "seed")
"""Suffixes of names of attributes that hold a layer's index in its stack, or a value drawn for it."""


def _block(
    prefix: str,
    layer: torch.nn.Module,
    count: int,
    made: Program,
    window: int | None,
    model: Any,
    inputs: Sequence[Sequence[int]],
) -> Block:
    """A block of equal layers. inputs: shapes of its hidden states in each run."""
    config = model.config.get_text_config()
    width, lengths = inputs[0][-1], {shape[1] for shape in inputs}
    tokens = lengths.pop() if len(lengths) == 1 and len(inputs[0]) == 3 else 0
    is_encoder = tokens or (model.config.is_encoder_decoder and "encoder" in prefix.split("."))
    attentions = [each for each in made.instructions if each.kind == "attention"]
    modules = dict(layer.named_modules())
    tensors = tuple(_tensor(modules, path, parameter) for path, parameter in layer.named_parameters())
    experts = max((tensor.shape[0] for tensor in tensors if tensor.role == "expert"), default=0)
    norms = [tensor for tensor in tensors if tensor.role == "norm" and tensor.shape == (width,)]
    biases = [tensor for tensor in norms if tensor.name.endswith(".bias")]
    widths = [tensor.out_features for tensor in tensors if tensor.linear and tensor.role == "feed_forward"]
    return Block(
        prefix=prefix,
        count=count,
        tensors=tensors,
        attention=_attention(made, attentions[:1], window, config),
        cross_attention=build_attention(attentions[1].details)._replace(cross=True) if attentions[1:] else None,
        stack="encoder" if is_encoder else "decoder",
        hidden_size=width if tokens and width != config.hidden_size else 0,
        tokens=tokens,
        feed_forward=FeedForward(
            hidden=max(widths, default=0),
            gated=False,
            activation=str(getattr(config, "hidden_act", "")),
            experts=experts,
            experts_per_token=_experts_per_token(made, tensors, config) if experts else 0,
        ),
        norm="layer" if biases else "rms",
        norm_count=len(norms) - len(biases),
        program=made,
    )


def _experts_per_token(made: Program, tensors: Sequence[Tensor], config: Any) -> int:
    """The experts per token, from the FLOPs of products with experts (Llama 4 gives every token to all of them). If
    torch does not count them (grouped products), the number is that of the configuration."""
    shapes = {tensor.name: tensor.shape for tensor in tensors if tensor.role == "expert" and len(tensor.shape) == 3}
    reading = [each for each in made.instructions if shapes.keys() & each.reads_weights]
    if flops := sum(each.flops.at(LONG_STEP).per_sample for each in reading):
        return round(flops / (2 * LONG_STEP * sum(one * other for _, one, other in shapes.values())))
    for name in ("num_experts_per_tok", "moe_top_k", "num_experts_per_token", "moe_k", "top_k_experts", "top_k"):
        if isinstance(value := getattr(config, name, None), int):
            return value
    return 1


def _attention(made: Program, attentions: Sequence[Instruction], window: int | None, config: Any) -> Attention:
    """The dimensions of the first attention of a layer. If the model's own code computes the scores, the
    configuration's dimensions; no heads if there is no attention."""
    if attentions:
        return build_attention(attentions[0].details, window)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    if not heads or not any(instruction.name in ("bmm", "baddbmm") for instruction in made.instructions):
        return Attention(heads=0, kv_heads=0, head_dim=0, v_head_dim=0, causal=False, rotary=False)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Attention(heads=heads, kv_heads=heads, head_dim=width, v_head_dim=width, rotary=False, window=window)


def _is_of_tower(tensor: Tensor) -> bool:
    return tensor.role == "tower" and "tower" in tensor.name


def _tensor(
    modules: Mapping[str, torch.nn.Module],
    path: str,
    parameter: torch.nn.Parameter,
    *,
    head: torch.nn.Module | None = None,
    embedding: torch.nn.Module | None = None,
    is_idle: bool = False,
) -> Tensor:
    module = modules[path.rpartition(".")[0]]
    is_conv = type(module).__name__ == "Conv1D"
    linear = path.endswith(".weight") and (is_conv or isinstance(module, torch.nn.Linear))
    # `use_experts_implementation` (transformers 5.23 integrations/moe.py) specifies how fused experts are stored.
    stored = getattr(module, "is_transposed", False) and parameter.dim() == 3
    return Tensor(
        name=path,
        shape=tuple(parameter.shape),
        role="tower" if is_idle else _role(module, path, parameter, head, embedding),
        linear=linear,
        transposed=(linear and is_conv) or stored,
    )


def _role(
    module: torch.nn.Module,
    path: str,
    parameter: torch.nn.Parameter,
    head: torch.nn.Module | None,
    embedding: torch.nn.Module | None,
) -> Role:
    kind, words = type(module).__name__.lower(), path.lower().split(".")
    if module is head:
        return "head"
    if isinstance(module, torch.nn.Embedding):
        return "embedding" if module is embedding else "position"
    if "norm" in kind:
        return "norm"
    if parameter.dim() == 3 and "conv" not in kind:
        return "expert"
    if "router" in kind or words[-2:-1] in (["gate"], ["router"]):
        return "router"
    if any("att" in word or "mixer" in word for word in words):
        return "attention"
    return "feed_forward"
