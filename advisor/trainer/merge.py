"""`--merge`: adapters and the model that they were trained on, as one model."""

from __future__ import annotations

from pathlib import Path


def merge(base: Path, adapter: Path, destination: Path, *, dtype: str) -> None:
    """Save the base model with the adapters' products added to its weights, and the adapter's tokenizer beside it.

    On the CPU, in this process, once the ranks have gone: it takes the base model's weights in RAM. A base that was trained on
    in 4 bits is merged in `dtype`, so that nothing is quantized twice.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        str(base), dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True)
    PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().save_pretrained(str(destination))
    AutoTokenizer.from_pretrained(str(adapter), trust_remote_code=False).save_pretrained(str(destination))
