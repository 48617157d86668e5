"""Models of types without a row, recorded from the code of the installed transformers and cached on disk.

The model is built from its configuration on the meta device, without weights. Code in a model's folder is never run.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...ds_configs.files import replace_file
from ...estimators.errors import ModelConfigError
from ...estimators.json_form import Form, from_json, to_json
from ...estimators.models.config_fields import MAX_LAYERS
from ...estimators.models.model_shape import ModelShape, UserModule
from ..installed_packages import installed_version
from ..run import absolute_factory
from ..store_path import store_path
from .process import answer

FORMAT = 13
"""Increases when earlier recordings can no longer be read or are wrong."""

REFUSES = "cannot be built from this configuration"

_UNLIMITED = 1 << 20
"""A window that no recorded length reaches: the estimators add the masks of windows themselves."""


def recorded_model(config: Mapping[str, Any], *, name: str, source: str, with_image: bool = False) -> ModelShape:
    """The shape of the model that transformers builds from a `config.json`, recorded or read from the cache.

    with_image: each sample has an image, if the class takes one; otherwise only if it requires one.

    Raises ModelConfigError if transformers has no class for it, or if its code cannot be recorded.
    """
    known = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    file = cached_file([known, "with an image"] if with_image else known)
    shape = cached(file, ModelShape)
    if shape is None:
        shape = _record(config, name, with_image)
        keep(file, shape)
    recorder = f"recorded from the code of transformers {installed_version('transformers')}"
    return replace(shape, name=name, source=f"{source}; {recorder}")


def cached_file(subject: Any) -> Path:
    """The file of a recording for the installed versions. subject: a JSON value."""
    versions = [installed_version("transformers"), installed_version("torch")]
    text = json.dumps([FORMAT, versions, subject], sort_keys=True)
    return store_path().parent / "models" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def cached(file: Path, kind: type[Form]) -> Form | None:
    """The cached recording; None if there is none or it cannot be read."""
    try:
        return from_json(kind, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def keep(file: Path, recording: Any) -> None:
    """Write the recording to the cache. If this fails, it is recorded again next time."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(to_json(recording), separators=(",", ":")))


def _record(config: Mapping[str, Any], name: str, with_image: bool) -> ModelShape:
    if not installed_version("transformers") or not installed_version("torch"):
        engine = 'pip install "ds-advise[engine]" (about 3 GB with CUDA, unless torch is there)'
        raise _unknown_model_error(name, "torch and transformers are not installed", engine)
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        known = {key: value for key, value in config.items() if key not in _IGNORED}
        return _record_quietly(known, name, with_image)
    finally:
        logging.set_verbosity(verbosity)


def transformers_config(description: Mapping[str, Any]) -> Any:
    """The transformers configuration object of a `config.json`. Raises UnusableModelError if the installed transformers
    has no class for the model type."""
    from transformers import CONFIG_MAPPING

    from ..default_script.engine import UnusableModelError

    values = {key: _decoded(value) for key, value in description.items() if key not in ("dtype", "torch_dtype")}
    kind = values.pop("model_type", "")
    if kind not in CONFIG_MAPPING:
        import transformers

        raise UnusableModelError(
            f"transformers {transformers.__version__} has no model type {kind!r}, and the code of a model folder is "
            "not run",
            fix="give FILE.py:FUNCTION with a function that builds the model",
        )
    config = CONFIG_MAPPING[kind].from_dict(values)
    config.use_cache = False
    for name in _SPECIAL_TOKENS:
        if getattr(config, name, 0) is None:
            setattr(config, name, 0)
    if getattr(config, "default_language", "") is None:
        config.default_language = config.languages[0]  # adapters of one language compute (xmod)
    return config


_SPECIAL_TOKENS = ("image_token_index", "video_token_index")
"""Ids that published configurations state and default ones lack. Any number gives the same operations."""


def _decoded(value: Any) -> Any:
    """A value of a `config.json` with the floats that transformers 5 writes as `{"__float__": "Infinity"}`
    (configuration_utils.py `_encode_special_floats`)."""
    if isinstance(value, Mapping):
        tagged = value.get("__float__")
        return float(tagged) if tagged in _TAGGED else {key: _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list) else value


_TAGGED = ("Infinity", "-Infinity", "NaN")


def _record_quietly(config: Mapping[str, Any], name: str, with_image: bool) -> ModelShape:
    import torch

    from ..default_script.engine import UnusableModelError
    from ..default_script.trainer import model_class
    from ..simulated_gpu.weights import no_init_weights
    from .structure import recorded_shape
    from .trace import UnrecordableError

    try:
        built = transformers_config(config)
    except UnusableModelError as error:
        raise _unknown_model_error(name, str(error)) from None
    except Exception as error:  # validators of configurations raise errors of their own
        raise _unknown_model_error(name, f"transformers refuses the configuration: {_first_line(error)}") from error
    try:
        chosen, text = model_class(built), built.get_text_config()
    except ValueError as error:
        raise _unknown_model_error(name, str(error)) from None
    inputs = {"input_ids", "decoder_input_ids"} & inspect.signature(chosen.forward).parameters.keys()
    if not inputs and chosen.main_input_name != "pixel_values":
        raise _unknown_model_error(name, f"{chosen.__name__} takes other inputs than tokens or an image")
    if (layers := getattr(text, "num_hidden_layers", 0)) > MAX_LAYERS:
        raise _unknown_model_error(name, f"it has {layers:,} layers")
    print(f"ds-advise: recording the layers of {name} from transformers' code, once", file=sys.stderr)
    fields = [name for name in ("sliding_window", "attention_chunk_size") if isinstance(getattr(text, name, None), int)]
    window = getattr(text, fields[-1]) if fields else None
    for field in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if getattr(built, field, 0):
            setattr(built, field, 0.0)  # a step that drops no layer at random needs the most memory

    def build() -> Any:
        with torch.device("meta"), no_init_weights():
            model = chosen._from_config(copy.deepcopy(built), dtype=torch.bfloat16)
            model.tie_weights()
            head = model.get_output_embeddings()
            if config.get("tie_word_embeddings") is False and head is not None:
                # Some classes tie it nevertheless (mt5); loading published weights unties it (`tie_weights`).
                head.weight = torch.nn.Parameter(torch.empty_like(head.weight))
        return model.train()

    try:
        model = build()
        if fields:
            limited, sizes = model, [getattr(text, field) for field in fields]
            for field in fields:
                setattr(text, field, _UNLIMITED)
            model = build()
            # A class with a parameter for each position of the window is recorded with it (inkling2).
            if model.num_parameters() != limited.num_parameters():
                model = limited
                for field, size in zip(fields, sizes, strict=True):
                    setattr(text, field, size)
    except Exception as error:  # a model's code may raise any error
        raise _unknown_model_error(name, f"{chosen.__name__} {REFUSES}: {_first_line(error)}") from error
    windows, why = _windows(text, window), ""
    choices = input_choices(chosen)
    seeing = [names for names in choices if "pixel_values" in names]
    for others in (with_image and seeing) or choices:
        try:
            batch = partial(make_batch, built, others)
            return recorded_shape(model, batch, name=name, source="", windows=windows, rebuild=build)
        except Exception as error:  # a model's code may raise any error
            is_ours = isinstance(error, UnrecordableError)
            reason = str(error) if is_ours else f"does not run without data: {_first_line(error)}"
            # Only an error about an absent input gives way to that of a choice with it.
            if not why or any(absent in why for absent in _IMAGE_INPUTS):
                why = f"{chosen.__name__}{': ' if is_ours else ' '}{reason}"
    raise _unknown_model_error(name, why)


def input_choices(chosen: Any) -> list[tuple[str, ...]]:
    """Candidate sets of inputs for a class: tokens; required or first named inputs; tokens with their descriptions; all
    that can be made; and the latter with a list of images."""
    parameters = inspect.signature(chosen.forward).parameters
    tokens = [name for name in ("input_ids", "decoder_input_ids") if name in parameters]
    required = [each.name for each in parameters.values() if each.default is each.empty and each.kind in _BY_NAME]
    first = [name for name in (*tokens, *required, chosen.main_input_name) if name != "self"]
    described = [*tokens, *(name for name in _TOKEN_INPUTS if name in parameters)]
    images = [*first, *described, *(name for name in _IMAGE_INPUTS if name in parameters)]
    listed = [IMAGE_LIST if name == "pixel_values" else name for name in images]
    return list(
        dict.fromkeys(tuple(dict.fromkeys(each)) for each in (tokens, first, described, images, listed) if each)
    )


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_TOKEN_INPUTS = ("mm_token_type_ids", "bbox")
_IMAGE_INPUTS = ("pixel_values", "image_attention_mask", "image_embeds_position_mask", "input_features")
"""Inputs that some classes need although `forward` has defaults for them."""

IMAGE_LIST = "pixel_values of several images"
_INSTRUCTION_TOKENS = 32
"""The length of `qformer_input_ids`."""


_IGNORED = ("attn_implementation", "_attn_implementation", "auto_map", "quantization_config")
"""Fields that name external code or kernels, or change the types of weights, which `--method` determines."""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def make_batch(
    config: Any, names: Sequence[str], batch: int, length: int, *, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """Samples of text, or of an image and text, by input name. dtype: type of the image."""
    import torch

    is_decoder = config.is_encoder_decoder
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", config)
    size = getattr(vision, "image_size", 224)
    image = (getattr(vision, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size)))
    floats = {
        "pixel_values": image,
        "input_features": _spectrogram(config, length),
        IMAGE_LIST: (1, *image),
        "bbox": (length, 4),
        # Two positions and the pixels of each patch (transformers 5.23 pix2struct/image_processing_pix2struct.py).
        "flattened_patches": (getattr(vision, "seq_len", 0), 2 + getattr(vision, "patch_embed_hidden_size", 0)),
    }
    whole = {
        "image_attention_mask": (length, 1),
        "image_embeds_position_mask": (length,),
        "qformer_input_ids": (_INSTRUCTION_TOKENS,),
    }
    inputs = {}
    for name in names:
        if name in floats:
            kind, shape = getattr(torch, dtype), floats[name]
        elif name in whole or name.endswith("_ids"):
            kind, shape = torch.long, whole.get(name, (length,))
        else:
            continue
        if name != "decoder_input_ids" or is_decoder:
            inputs["pixel_values" if name == IMAGE_LIST else name] = torch.zeros(
                (batch, *shape), dtype=kind, device="meta"
            )
    return inputs


def _spectrogram(config: Any, length: int) -> tuple[int, int]:
    """Mel bins and frames of a sample: a fixed number, or so many for each token of the text."""
    if frames := getattr(config, "audio_length_per_tok", 0):  # transformers 5.24 voxtral_realtime
        return config.audio_config.num_mel_bins, frames * length
    # A convolution with stride 2 halves the frames (transformers 5.23 whisper/modeling_whisper.py).
    return getattr(config, "num_mel_bins", 0), 2 * getattr(config, "max_source_positions", 0)


def _windows(text: Any, window: object) -> dict[int, int]:
    if not isinstance(window, int) or getattr(text, "use_sliding_window", True) is False:
        return {}
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return {index: window for index, kind in enumerate(kinds) if kind in ("sliding_attention", "chunked_attention")}


def _unknown_model_error(name: str, why: str, fix: str = "") -> ModelConfigError:
    return ModelConfigError(
        f"{name}: this type of model is not known here, and could not be recorded",
        why=why,
        fix=fix
        or "use a model of a known type, or write a function `build_model` that returns it to a file, and run in a "
        "terminal: ds-advise dry-run CONFIG.json --model FILE.py:build_model",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRecording:
    """The shape of a module, and the files that determine it."""

    shape: ModelShape
    files: Mapping[str, str]
    """Path -> digest."""

    @property
    def is_current(self) -> bool:
        return all(_digest(path) == digest for path, digest in self.files.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRequest:
    module: UserModule
    seq_len: int
    """The second argument of the file's `make_batch`."""

    def answer(self) -> ModuleRecording:
        """The recording. Raises UnusableModelError, UnrecordableError, and any error of the module's code."""
        from .module import recorded_file

        file = self.module.factory.rpartition(":")[0]
        opened, folder = {file}, str(Path(file).parent)

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder):
                opened.add(arguments[0])

        sys.addaudithook(note)  # for the rest of the process
        shape = recorded_file(self.module, self.seq_len)
        libraries = tuple(sysconfig.get_paths().values())
        imported = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
        read = opened.union(path for path in imported if not path.startswith(libraries))
        return ModuleRecording(shape=shape, files={path: _digest(path) for path in read if not path.endswith(".pyc")})


def _digest(path: str) -> str:
    """The digest of a file; "" if it does not exist."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""


def record_module(module: UserModule, seq_len: int) -> ModelShape:
    """The shape of the module in a file. The module runs in a subprocess if it has changed since the last time, or a
    file that it imported or read from its folder has. Raises DryRunError if it cannot be recorded."""
    request = ModuleRequest(module=module._replace(factory=absolute_factory(module.factory)), seq_len=seq_len)
    file = cached_file(to_json(request))
    known = cached(file, ModuleRecording)
    if known is not None and known.is_current:
        return known.shape
    recorded = answer(request, timeout_s=600.0)
    keep(file, recorded)
    return from_json(ModuleRecording, recorded).shape
