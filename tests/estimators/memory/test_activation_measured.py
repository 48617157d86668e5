"""Activation memory against real transformers variant: every byte that stays alive, counted on the meta device.

The model runs forward and backward on tensors without data, in the types and with the kernels that a GPU would use; a
dispatch mode adds up the storages that are alive. Weights are small compared with activations, and their gradients are
dropped at once.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
import transformers as T
from ds_advise.estimators.memory.activations import kernels, saved_tensors
from ds_advise.estimators.memory.activations.activation_memory import (
    ActivationMemory,
    activation_layout,
    activation_memory,
)
from ds_advise.estimators.models.families import FAMILIES, shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.models.vision_parts import apply_images
from ds_advise.estimators.workload import Software, Workload
from ds_advise.probes.model_recorder.recorded_model import recorded_model
from ds_advise.probes.simulated_gpu.attention import aten, efficient, flash
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

pytestmark = pytest.mark.filterwarnings("ignore")

HIDDEN, INNER, HEADS, VOCABULARY, BATCH, SEQUENCE = 256, 704, 8, 64, 8, 512
PLAIN = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
GPT = {"n_embd": HIDDEN, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": 4096}
LATENT = {
    **PLAIN,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
}
T5 = {
    "d_model": HIDDEN,
    "d_kv": 32,
    "d_ff": INNER,
    "num_heads": HEADS,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
DELTA = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "head_dim": 64,
}
ROUTED = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
EXPERTS = ROUTED | {"shared_expert_intermediate_size": 192}
OF_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 2}
SIZES = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY}
MPT = {"d_model": HIDDEN, "n_heads": HEADS, "vocab_size": VOCABULARY, "max_seq_len": 4096}
WHISPER = {
    "d_model": HIDDEN,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_target_positions": 4096,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """A family at small size, and the kernel that its attention must get (sdpa on an A100)."""

    build: Callable[..., Any]
    fields: dict[str, Any]
    kernel: str = "flash"
    depth: tuple[str, ...] = ("num_hidden_layers",)
    each_layer: dict[str, Any] = field(default_factory=dict)
    """Fields that have one value a layer."""
    model: Any = None
    targets: tuple[str, ...] | None = None

    def config(self, layers: int) -> Any:
        lists = {name: [value] * layers for name, value in self.each_layer.items()}
        return self.build(**self.fields, **dict.fromkeys(self.depth, layers), **lists)


def t5(**fields: Any) -> Case:
    return Case(T.T5Config, T5 | fields, "efficient", ("num_layers",), model=T.T5ForConditionalGeneration)


FULL, LINEAR = {"layer_types": "full_attention"}, {"layer_types": "linear_attention"}
WIDE_HEADS = GROUPED | {"head_dim": 64}
CASES = {
    "bert": Case(T.BertConfig, PLAIN, model=T.BertForMaskedLM, targets=("query", "value")),
    "bloom": Case(T.BloomConfig, SIZES | {"n_head": HEADS}, "eager", ("n_layer",)),
    "deepseek_v2": Case(T.DeepseekV2Config, LATENT | {"q_lora_rank": None, "head_dim": 16}, "efficient"),
    "deepseek_v3": Case(T.DeepseekV3Config, LATENT | {"q_lora_rank": 96, "n_group": 4, "topk_group": 2}, "efficient"),
    "ernie4_5": Case(T.Ernie4_5Config, GROUPED | {"head_dim": 32}),
    "falcon": Case(T.FalconConfig, SIZES | {"num_attention_heads": HEADS, "multi_query": True}, "math"),
    "gemma": Case(T.GemmaConfig, WIDE_HEADS),
    "gemma2": Case(T.Gemma2Config, WIDE_HEADS, "eager", each_layer=FULL),
    "gemma3": Case(T.Gemma3TextConfig, WIDE_HEADS, each_layer=FULL),
    "glm4": Case(T.Glm4Config, GROUPED | {"head_dim": 32, "pad_token_id": 0}),
    "gpt2": Case(T.GPT2Config, GPT, depth=("n_layer",)),
    "gpt_bigcode": Case(T.GPTBigCodeConfig, GPT, depth=("n_layer",)),
    "gpt_neox": Case(T.GPTNeoXConfig, PLAIN),
    "gpt_oss": Case(T.GptOssConfig, GROUPED | OF_EIGHT | {"head_dim": 32}, "eager", each_layer=FULL),
    "granite": Case(T.GraniteConfig, GROUPED),
    "llama": Case(T.LlamaConfig, GROUPED),
    "mistral-window": Case(T.MistralConfig, GROUPED | {"sliding_window": 128}, "efficient"),
    "mixtral": Case(T.MixtralConfig, GROUPED | OF_EIGHT | {"sliding_window": None}),
    "mpt": Case(T.MptConfig, MPT, "eager", ("n_layers",)),
    "olmo": Case(T.OlmoConfig, GROUPED),
    "olmo2": Case(T.Olmo2Config, GROUPED),
    "olmoe": Case(T.OlmoeConfig, GROUPED | {"num_experts": 16, "num_experts_per_tok": 4}),
    "phi3": Case(T.Phi3Config, GROUPED | {"pad_token_id": 0}),
    "qwen2_moe": Case(T.Qwen2MoeConfig, GROUPED | EXPERTS | {"shared_expert_intermediate_size": 384}),
    "qwen3": Case(T.Qwen3Config, WIDE_HEADS),
    "qwen3_5": Case(T.Qwen3_5TextConfig, GROUPED | DELTA, each_layer=LINEAR),
    "qwen3_5-full": Case(T.Qwen3_5TextConfig, GROUPED | DELTA, each_layer=FULL),
    "qwen3_next": Case(T.Qwen3NextConfig, GROUPED | DELTA | EXPERTS, each_layer=LINEAR),
    "qwen3_moe": Case(T.Qwen3MoeConfig, WIDE_HEADS | ROUTED),
    "starcoder2": Case(T.Starcoder2Config, GROUPED | {"sliding_window": None}),
    "t5": t5(dropout_rate=0.0),
    "t5-v1.1": t5(feed_forward_proj="gated-gelu"),
    "vit": Case(T.ViTConfig, PLAIN | {"image_size": 352}, model=T.ViTForImageClassification),
    "whisper": Case(
        T.WhisperConfig, WHISPER, depth=("encoder_layers", "decoder_layers"), model=T.WhisperForConditionalGeneration
    ),
}
FAST = ("llama", "gpt2", "gemma2", "qwen3_moe")
ADAPTED = (
    *FAST,
    "bert",
    "deepseek_v3",
    "falcon",
    "gpt_oss",
    "mixtral",
    "phi3",
    "qwen3_5",
    "t5",
)
"""Kinds of linear layers and experts, which peft adapts in their own ways."""


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that are alive, and their peak."""

    def __init__(self, known: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool  # "are all of these equal?": yes, no padding and no packing
        result = op(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor):
                self.track(leaf.untyped_storage())
        return result

    def track(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.release, key)

    def release(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


def attention(kernel: str) -> Callable[..., torch.Tensor]:
    """`scaled_dot_product_attention` as the CUDA dispatcher would run it with this kernel."""

    def run(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
        if kernel == "flash":
            assert attn_mask is None
            return flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == "efficient":
            return efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        inputs = (tensor.float() for tensor in (query, key, value))
        how = {"scale": scale, "enable_gqa": enable_gqa}
        return aten._scaled_dot_product_attention_math(*inputs, attn_mask, dropout_p, is_causal, **how)[0].to(
            query.dtype
        )

    return run


def fused_dropout(value: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: ARG001 (F.dropout's signature)
    return torch.native_dropout(value, p, True)[0] if training and p else value


@contextlib.contextmanager
def gpu_kernels(kernel: str) -> Iterator[None]:
    before = F.scaled_dot_product_attention, F.dropout
    F.scaled_dot_product_attention, F.dropout = attention(kernel), fused_dropout
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout = before


@dataclass(frozen=True)
class Measured:
    saved: int
    peak: int


def measure(
    case: Case,
    layers: int,
    *,
    method: str,
    checkpointing: bool,
    dtype: torch.dtype = torch.bfloat16,
    dropout: float = 0.0,
    adapters_fp32: bool = False,
    **overrides: int,
) -> Measured:
    """One forward and backward pass of the real model: bytes kept for the backward pass, and the peak."""
    config = case.config(layers)
    for name, value in overrides.items():
        setattr(config, name, value)
    build = case.model._from_config if case.model else T.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = build(config, dtype=dtype, attn_implementation="eager" if case.kernel == "eager" else "sdpa")
        if method == "lora":
            from peft import LoraConfig, get_peft_model

            lora = LoraConfig(
                r=8, lora_dropout=dropout, target_modules=list(case.targets) if case.targets else "all-linear"
            )
            model = get_peft_model(model, lora, autocast_adapter_dtype=adapters_fp32)
    model = (model if adapters_fp32 else model.to(dtype)).train()
    model.config.use_cache = False
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        if method == "lora":
            model.enable_input_require_grads()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    batch = make_batch(config, dtype)
    given = (value for value in batch.values() if isinstance(value, torch.Tensor))
    memory = LiveBytes(itertools.chain(model.parameters(), model.buffers(), given))
    with gpu_kernels(case.kernel), memory:
        output = model(**batch)
        loss = output.loss
        del output
        gc.collect()
        saved = memory.live
        loss.backward()
    return Measured(saved, memory.peak)


def make_batch(config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tokens = torch.zeros((BATCH, SEQUENCE), dtype=torch.long, device="meta")
    if config.model_type == "vit":
        return {"pixel_values": torch.zeros((BATCH, 3, 352, 352), dtype=dtype, device="meta"), "labels": tokens[:, 0]}
    if config.model_type == "whisper":
        return {"input_features": torch.zeros((BATCH, 80, 3000), dtype=dtype, device="meta"), "labels": tokens}
    return {"input_ids": tokens, "labels": tokens}


def estimate(
    case: Case,
    layers: int,
    *,
    method: str,
    checkpointing: bool,
    precision: str = "bf16",
    compute_capability: float = 8.0,
    dropout: float = 0.0,
    adapters_fp32: bool = False,
    shape_of: Callable[..., ModelShape] | None = None,
    **overrides: int,
) -> ActivationMemory:
    fields = {**case.config(layers).to_dict(), **overrides}
    if case.model:
        fields["architectures"] = [case.model.__name__]
    workload = Workload(
        method=method,
        lora_rank=8,
        lora_targets=case.targets,
        lora_dropout=dropout,
        software=Software(fp32_adapters=adapters_fp32),
        seq_len=SEQUENCE,
        precision=precision,
        attention="eager" if case.kernel == "eager" else "sdpa",
    )
    if shape_of is None:
        shape_of = shape_from_config if fields["model_type"] in FAMILIES else recorded_model
    shape = shape_of(fields, name="model", source="")
    return activation_memory(shape, workload, BATCH, checkpointing, compute_capability=compute_capability)


def kept(memory: ActivationMemory) -> int:
    """What is alive between forward and backward: of the loss only the log-softmax, the final norm and the head's
    input."""
    return memory.saved_bytes + sum(
        term.size_bytes for term in memory.loss_terms if not term.name.startswith("gradient")
    )


@pytest.fixture(autouse=True)
def as_a_dispatch_mode_sees_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Under a dispatch mode torch never adds gradients in place, and the inside of a kernel is not seen."""
    monkeypatch.setattr(saved_tensors, "IN_PLACE", False)
    monkeypatch.setattr(kernels, "backward_workspace", lambda *_: 0)
    monkeypatch.setattr(kernels, "softmax_workspace", lambda *_: 0)
    # peft turns autocast off around its products; the meta device has none.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    activation_layout.cache_clear()
    gc.freeze()  # what is imported is no garbage, and looking for it in there takes most of a test
    yield
    gc.unfreeze()
    activation_layout.cache_clear()


def modes() -> list[Any]:
    return [
        pytest.param(
            name,
            method,
            checkpointing,
            marks=[] if name in FAST and checkpointing == (method == "lora") else [pytest.mark.slow],
            id=f"{name}-{method}{'-checkpointing' if checkpointing else ''}",
        )
        for name in CASES
        for method in ("full", "lora")
        for checkpointing in (False, True)
        if name in FAST or (checkpointing == (method == "lora") and (method == "full" or name in ADAPTED))
    ]


ROUGH_PEAK = {"gpt_oss": 0.06}
"""Eager code keeps large intermediate results in local variables that the recorded graph does not know of."""

ROUGH_RECORDED = {"qwen3_5": 0.08, "qwen3_next": 0.07, "t5": 0.015, "t5-v1.1": 0.015}
"""Loops over chunks, trained biases of attention."""

ROUGH_RECORDED_PEAK = {
    "bloom": 0.14,
    "deepseek_v2": 0.07,
    "deepseek_v3": 0.07,
    "gpt_neox": 0.06,
    "qwen3_5": 0.08,
    "qwen3_next": 0.07,
    "t5": 0.06,
    "t5-v1.1": 0.06,
}


@pytest.mark.parametrize(("name", "method", "checkpointing"), modes())
def test_layers_save_what_the_real_model_saves(name: str, method: str, checkpointing: bool) -> None:
    """By a row, one more layer adds exactly the bytes that the closed form says; the total is within 3 %, the peak
    within 5 %. Recorded, with or without a row, the total is within 1 %, and the peak within 5 %."""
    case, how = CASES[name], {"method": method, "checkpointing": checkpointing}
    two = measure(case, 2, **how)
    if case.config(2).model_type in FAMILIES:
        three = measure(case, 3, **how)
        small, large = (estimate(case, layers, **how) for layers in (2, 3))
        assert large.saved_bytes - small.saved_bytes == pytest.approx(three.saved - two.saved, rel=0.005)
        assert kept(large) == pytest.approx(three.saved, rel=0.03)
        assert large.peak_bytes == pytest.approx(three.peak, rel=ROUGH_PEAK.get(name, 0.05))
    recorded = estimate(case, 2, shape_of=recorded_model, **how)
    assert kept(recorded) == pytest.approx(two.saved, rel=ROUGH_RECORDED.get(name, 0.012))
    assert recorded.peak_bytes == pytest.approx(two.peak, rel=ROUGH_RECORDED_PEAK.get(name, 0.05))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma", "gemma2", "bert", "t5"])
def test_the_loss_peaks_as_the_real_loss_does(name: str, checkpointing: bool) -> None:
    """With a real vocabulary the loss is the peak: logits, their fp32 copy and the gradients, by the class's own
    variant."""
    how = {"method": "full", "checkpointing": checkpointing, "vocab_size": 50_000}
    assert estimate(CASES[name], 2, **how).peak_bytes == pytest.approx(measure(CASES[name], 2, **how).peak, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "compute_capability", "kernel"),
    [("fp16", 7.0, "math"), ("fp32", 8.0, "math"), ("fp32", 8.0, "eager")],
)
def test_the_math_path_holds_the_scores(precision: str, compute_capability: float, kernel: str) -> None:
    """Grouped heads have no fused kernel on a V100 or in fp32 (torch 2.13); what the composite path keeps is
    counted."""
    case = replace(CASES["llama"], kernel=kernel)
    how = {"method": "full", "checkpointing": False}
    real = measure(case, 2, dtype={"fp16": torch.float16, "fp32": torch.float32}[precision], **how)
    ours = estimate(case, 2, precision=precision, compute_capability=compute_capability, **how)
    assert kept(ours) == pytest.approx(real.saved, rel=0.01)
    assert ours.peak_bytes == pytest.approx(real.peak, rel=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("dropout", "adapters_fp32"), [(0.1, False), (0.0, True), (0.1, True)])
def test_lora_keeps_what_its_dropout_and_its_fp32_adapters_need(
    dropout: float, adapters_fp32: bool, checkpointing: bool
) -> None:
    """A mask and a copy of the input for each adapted layer; an fp32 copy where peft keeps its adapters in fp32."""
    how = {"method": "lora", "checkpointing": checkpointing, "dropout": dropout, "adapters_fp32": adapters_fp32}
    two, three = (measure(CASES["llama"], layers, **how) for layers in (2, 3))
    small, large = (estimate(CASES["llama"], layers, **how) for layers in (2, 3))
    assert large.saved_bytes - small.saved_bytes == pytest.approx(three.saved - two.saved, rel=0.005)
    assert large.peak_bytes == pytest.approx(three.peak, rel=0.05)


TEXT = {**GROUPED, "num_hidden_layers": 1}
PATCHES = {"hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4, "image_size": 112, "patch_size": 14}
QWEN = {"hidden_size": 128, "intermediate_size": 320, "num_heads": 4, "out_hidden_size": HIDDEN}
WINDOWS = {"window_size": 112, "fullatt_block_indexes": [0, 1]}
QWEN_2 = {"embed_dim": 128, "mlp_ratio": 3, "num_heads": 4, "hidden_size": HIDDEN}
SIGLIP, PIXTRAL = {"vision_use_head": False, "model_type": "siglip_vision_model"}, {**PATCHES, "model_type": "pixtral"}
TOWERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "gemma3": (T.Gemma3Config, {"head_dim": 64}, PATCHES | SIGLIP, "vision_tower.encoder.layers"),
    "mistral3": (T.Mistral3Config, {"model_type": "mistral"}, PIXTRAL, "vision_tower.transformer.layers"),
    "qwen2_5_vl": (T.Qwen2_5_VLConfig, {}, QWEN | WINDOWS, "visual.blocks"),
    "qwen2_vl": (T.Qwen2VLConfig, {}, QWEN_2, "visual.blocks"),
    "qwen3_vl": (T.Qwen3VLConfig, {}, QWEN | {"deepstack_visual_indexes": []}, "visual.blocks"),
}
"""Configuration, further fields of the text model, the tower's, and where its layers are."""


def with_tower(name: str, layers: int) -> Any:
    build, text, tower, _ = TOWERS[name]
    depth = "depth" if name.startswith("qwen") else "num_hidden_layers"
    return build(text_config=TEXT | text, vision_config={**tower, depth: layers})


@pytest.mark.parametrize(("name", "inner"), [("qwen2_vl", []), ("qwen3_vl", [0, 1])])
def test_the_mergers_behind_a_tower_save_what_the_real_ones_save(name: str, inner: list[int]) -> None:
    config = with_tower(name, 2)
    config.vision_config.deepstack_visual_indexes = inner
    shape, workload = shape_from_config(config.to_dict(), name=name), Workload(method="full", seq_len=SEQUENCE)
    terms = activation_memory(shape, workload, BATCH, False, compute_capability=8.0).saved_terms
    with torch.device("meta"):
        tower = T.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).model.visual
        patches = torch.zeros((BATCH * shape.encoder_len(SEQUENCE), 128), dtype=torch.bfloat16, requires_grad=True)
    memory = LiveBytes(tower.parameters())
    memory.track(patches.untyped_storage())
    with memory:
        tokens = [merger(patches) for merger in (tower.merger, *getattr(tower, "deepstack_merger_list", ()))]
    saved = next(term.size_bytes for term in terms if term.name == "encoder output")
    assert saved == pytest.approx(memory.live - sum(each.nbytes for each in tokens), rel=0.01)


@pytest.mark.parametrize(("name", "images"), [*((name, 1) for name in TOWERS), ("qwen2_vl", 3)])
def test_a_vision_towers_layers_save_what_the_real_ones_save(name: str, images: int) -> None:
    """At the tower's own width, with its own norms and rotation, over the images of a sample."""
    shapes = [shape_from_config(with_tower(name, n).to_dict(), name=name) for n in (1, 2)]
    if images > 1:
        shapes = [apply_images(shape, images, 112 * 112) for shape in shapes]
    workload = Workload(method="full", seq_len=SEQUENCE)
    one, two = (activation_memory(shape, workload, BATCH, False, compute_capability=8.0) for shape in shapes)
    patches = shapes[0].encoder_len(SEQUENCE)
    with torch.device("meta"):
        model = T.AutoModelForImageTextToText.from_config(with_tower(name, 2), dtype=torch.bfloat16).train()
        packed = name.startswith("qwen")
        value = torch.zeros((BATCH * patches, 128) if packed else (BATCH, patches, 128), dtype=torch.bfloat16)
        turned = torch.zeros((value.shape[-2], 32), dtype=torch.float32 if packed else torch.bfloat16)
        value.requires_grad_()
    given: dict[str, Any] = {"attention_mask": None}
    if name != "gemma3":
        given["position_embeddings"] = (turned, turned)
    if packed:
        starts = torch.arange(images * BATCH + 1) * (patches // images)
        given = {"position_embeddings": (turned, turned), "cu_seqlens": starts}
    memory, saved = LiveBytes(itertools.chain(model.parameters(), (value, turned))), []
    with gpu_kernels("flash"), memory:
        for layer in attrgetter(TOWERS[name][3])(model.model):
            value = layer(value, **given)
            value = value[0] if isinstance(value, tuple) else value
            saved.append(memory.live)
    assert two.saved_bytes - one.saved_bytes == pytest.approx(saved[1] - saved[0], rel=0.005)
