"""Known and unknown keys of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_advise.advisor.importers.answer import recognised
from ds_advise.advisor.importers.imported_run import unused_keys

TYPED = {
    "a.yaml": ("base_model: gpt2\nmicro_batch_sise: 2\nlogging_steps: 1\nuse_kernels: true\n", "micro_batch_size"),
    "l.yaml": ("model_name_or_path: gpt2\nstage: sft\neval_stepsss: 2\nbf16: true\n", "eval_steps"),
    "s.yaml": (
        "model: gpt2\ntuner_type: full\ngradient_checkpoint: false\nfreeze_vit: true\n",
        "gradient_checkpointing",
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_typing_error_is_listed_with_the_nearest_key(name: str, tmp_path: Path) -> None:
    """Also where its beginning is that of a key which changes no figure."""
    text, meant = TYPED[name]
    Path(tmp_path, name).write_text(text)
    source, form = recognised(tmp_path / name)
    assert [key.partition("(did you mean ")[2] for key in form.read(source).unknown] == [f"{meant}?)"]


def test_known_keys_without_effect_here_and_unknown_keys_are_apart() -> None:
    """In the order of the file, without what changes no figure."""
    uncounted, unknown = unused_keys("ms-swift", ("freeze_vit", "nonsense", "use_galore", "output_dir"))
    assert uncounted == ("freeze_vit", "use_galore") and unknown == ("nonsense",)
