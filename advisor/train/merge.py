"""`--merge`: adapters and the model that they were trained on, as one model."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any


def merge(base: Path, adapter: Path, destination: Path, *, dtype: str) -> None:
    """Save the base model with the adapters' products added to its weights, and the adapter's tokenizer beside it.

    On the CPU, in this process, once the ranks have gone: it takes the base model's weights in RAM. A base that was
    trained on in 4 bits is merged in `dtype`, so that nothing is quantized twice.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, which peft imports, would look for a GPU and say so
    peft: Any = import_module("peft")
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what one library will rename in another
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(base), dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
        )
        peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().save_pretrained(str(destination))
    transformers.AutoTokenizer.from_pretrained(str(adapter), trust_remote_code=False).save_pretrained(str(destination))
