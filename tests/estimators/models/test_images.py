"""Images of a sample: patches of the tower, tokens of the sequence."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.advise import build_question
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.models.vision_parts import apply_images

from tests.estimators.small_models import sizes

VL, GEMMA = "Qwen2.5-VL-7B-Instruct", "gemma-3-4b"
QWEN_TEXT = sizes(512, 1024, 2, 4, 2, 1024)
QWEN_PROCESSORS = {"Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil"}
MISTRAL = shape_from_config(
    {
        "model_type": "mistral3",
        "text_config": sizes(512, 1024, 2, 8, 8, 1024, model_type="mistral"),
        "vision_config": {"model_type": "pixtral"},
    },
    name="mistral3",
)


@pytest.mark.parametrize("side", [560, 1003, 2000])
@pytest.mark.parametrize(("model_type", "patch"), [("qwen2_vl", 14), ("qwen2_5_vl", 14), ("qwen3_vl", 16)])
def test_an_image_has_at_most_the_tokens_of_the_processors_own_rule(model_type: str, patch: int, side: int) -> None:
    processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processors = pytest.importorskip("transformers.models.auto.image_processing_auto")
    assert set(processors.IMAGE_PROCESSOR_MAPPING_NAMES[model_type].values()) <= QWEN_PROCESSORS
    shape = shape_from_config({"model_type": model_type, "text_config": QWEN_TEXT}, name=model_type)
    image = apply_images(shape, 1, 640 * (2 * patch) ** 2).image
    assert image is not None and image.patch == patch
    height, width = processing.smart_resize(side, side, factor=image.unit, max_pixels=image.pixels)
    assert height * width // image.unit**2 <= image.tokens == 640
    assert (height // image.patch) * (width // image.patch) <= image.patches


@pytest.mark.parametrize(
    ("name", "options", "patches", "tokens"),
    [
        (VL, {"max_pixels": 256 * 28 * 28}, 1024, 256),
        (VL, {"max_pixels": 256 * 28 * 28, "images_per_sample": 4}, 4096, 1024),
        (GEMMA, {"images_per_sample": 2}, 8192, 512),
        (MISTRAL, {"images_per_sample": 1, "max_pixels": 28 * 28 * 1000}, 4000, 1000),
    ],
)
def test_images_are_patches_of_the_tower_and_tokens_of_the_sequence(
    name: str | ModelShape, options: dict[str, Any], patches: int, tokens: int
) -> None:
    model = build_question(name, gpus="8xH100", **options).model
    assert model.image is not None
    assert (model.encoder_len(2048), (model.images or 0) * model.image.tokens) == (patches, tokens)
    assert any(f"which take {tokens:,} tokens of the sequence" in each for each in model.assumptions)


def test_an_image_attends_to_itself_alone() -> None:
    for images, windows in ((1, {None, 64}), (4, {1024, 64})):
        options = {"images_per_sample": images, "max_pixels": 256 * 28 * 28}
        blocks = build_question(VL, gpus="8xH100", **options).model.blocks
        assert {block.attention.window for block in blocks if block.hidden_size} == windows


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("Qwen2.5-7B", {"images_per_sample": 1}, "predicted without images"),
        (GEMMA, {"max_pixels": 10**6}, "resizes all images to one size"),
        (VL, {"images_per_sample": 2}, "take 2560 tokens, more than the 2048"),
        (VL, {"images_per_sample": 2}, "--seq-len 3072 or more, or --max-pixels 802816 or less"),
        (VL, {"max_pixels": 100}, "less than one token"),
    ],
)
def test_impossible_images_are_refused_with_a_reason(name: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        build_question(name, gpus="8xH100", **options)
    assert what in f"{caught.value} {caught.value.why} {caught.value.fix}"
