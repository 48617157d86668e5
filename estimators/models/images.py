"""Images of a sample: the patches that a vision tower computes, and the tokens that they take in the sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..errors import WorkloadError
from ..phrase import phrase
from .model_shape import ModelShape


@lru_cache(maxsize=64)
def with_images(model: ModelShape, images: int | None, max_pixels: int | None) -> ModelShape:
    """The model for samples of this many images.

    An image of at most `max_pixels` becomes t = max_pixels / (p m)^2 tokens of the sequence and t m^2 patches of the
    tower, where p is the side of a patch and m^2 patches are merged into a token. Sides are rounded to multiples of
    p m, so t is the most. An image attends to itself alone.

    images, max_pixels: None for the model's own.
    Source: transformers 5.23 qwen2_vl/image_processing_qwen2_vl.py `smart_resize`, pixtral/image_processing_pixtral.py.
    Raises WorkloadError for a model that computes no images here, and for pixels where every image has one size.
    """
    if images is None and max_pixels is None:
        return model
    size = model.image
    if size is None:
        raise WorkloadError(
            phrase("samples of {model} are predicted without images", model=model.name),
            why="its vision tower has no closed form here" if model.idle_tower else "it has no vision tower",
            fix="leave --images-per-sample and --max-pixels out",
        )
    if max_pixels is not None and not size.resized:
        raise WorkloadError(
            phrase("every image of {model} has {pixels} pixels", model=model.name, pixels=size.pixels),
            why="its processor resizes all images to one size",
            fix="leave --max-pixels out",
        )
    count, size = 1 if images is None else images, size._replace(pixels=max_pixels or size.pixels)
    if not size.tokens:
        raise WorkloadError(
            phrase("--max-pixels {max_pixels} is less than one token", max_pixels=max_pixels),
            why=phrase("{unit} x {unit} pixels are one token of {model}", unit=size.unit, model=model.name),
            fix=phrase("pass --max-pixels {pixels} (256 tokens), for instance", pixels=256 * size.unit**2),
        )
    blocks = tuple(
        replace(block, attention=block.attention._replace(window=size.patches, chunked=True))
        if block.hidden_size and count > 1 and block.attention.window is None
        else block
        for block in model.blocks
    )
    return replace(model, blocks=blocks, image=size, images=count, encoder_len_fixed=count * size.patches)


def check_image_tokens(model: ModelShape, seq_len: int) -> None:
    """Raises WorkloadError where images take more tokens than a sample has."""
    if model.image is None or model.images is None or model.images * model.image.tokens <= seq_len:
        return
    tokens = model.images * model.image.tokens
    fix = f"pass --seq-len {-(-tokens // 1024) * 1024} or more"
    if model.image.resized and (fitting := seq_len // model.images):
        fix += f", or --max-pixels {fitting * model.image.unit**2} or less"
    raise WorkloadError(
        f"the images of a sample take {tokens} tokens, more than the {seq_len} of --seq-len",
        why=f"each of them takes {model.image.tokens} tokens of the sequence of {model.name}",
        fix=fix,
    )
