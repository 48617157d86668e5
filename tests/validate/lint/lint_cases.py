"""What the tests of lint share: a configuration judged in one call."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.probes.installed_packages import installed_version, source_folder
from ds_advise.validate.lint import DeepSpeedFacts, LintReport, lint, read_deepspeed, read_document
from ds_advise.validate.lint.rule import Rule

_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
_CPU = {"offload_optimizer": {"device": "cpu"}}
COMBINATIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (_ADAM, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, "ratio is 0.5 at stage 2"),
    ({}, {"stage": 1, "legacy_stage1": True}, "legacy_stage1 is on above stage 0"),
    ({"gradient_allreduce_op": "sum"}, {"stage": 3}, "summed at stage 3"),
    ({"gradient_allreduce_op": "SUM", **_ADAM}, {**_CPU, "zenflow": {}}, "summed with zenflow"),
    ({"gradient_allreduce_op": "sum", "compile": {"deepcompile": True}}, {}, "summed with DeepCompile"),
    ({}, {"compute_grad_norm": False}, "gradients are clipped"),
    ({**_ADAM, "gradient_clipping": 0}, {**_CPU, "compute_grad_norm": False}, "the optimizer is offloaded"),
    (
        {"data_types": {"grad_accum_dtype": "fp32"}, "gradient_clipping": 0},
        {"stage": 1, "compute_grad_norm": False},
        "bf16 gradients are accumulated in fp32",
    ),
    (_ADAM, {"zenflow": {}}, "no offloaded optimizer"),
    (_ADAM, {**_CPU, "zenflow": {"select_interval": 4}}, 'and select_strategy is "auto"'),
    (_ADAM, {**_CPU, "zenflow": {"select_strategy": "epoch"}}, "select_interval is missing"),
    (
        _ADAM,
        {**_CPU, "zenflow": {"select_strategy": "step", "select_interval": 1, "update_interval": 4}},
        "select_interval 1 is below update_interval 4",
    ),
    (_ADAM, {**_CPU, "zenflow": {"offload": True}}, "without overlap_comm"),
    ({"managed_gradient_accumulation": False}, {"stage": 1, "overlap_comm": True}, "with overlap_comm at stage 1"),
    ({"managed_gradient_accumulation": False, "compile": {"deepcompile": True}}, {}, "off with DeepCompile"),
    (
        {"bf16": {"enabled": False}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
        {"stage": 3, "zero_quantized_weights": True},
        "under torch_autocast",
    ),
    ({"data_types": {"param_dtype": "fp16"}}, {}, 'param_dtype is "fp16", but the weights are bf16'),
    (
        {
            "bf16": {"enabled": False},
            "fp16": {"enabled": True, "loss_scale": 128},
            "optimizer": {"type": "Lamb", "params": {"lr": 1e-5}},
            "zero_allow_untested_optimizer": True,
        },
        {},
        "the optimizer is LAMB",
    ),
    ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "amsgrad": True}}}, {}, "amsgrad is on"),
    ({}, {"allgather_bucket_size": 99999999}, "which is odd"),
    ({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}}, {"stage": 1}, "tp_size is 4, but autotp_size is 2"),
]
"""(keys, keys of zero_optimization at stage 2, words of the finding): what DeepSpeed refuses beside another key."""

MORE_BAD: list[tuple[str, dict[str, Any], str]] = [
    ("DS020", {"bf16": True, "zero_optimization": {"stage": 2}}, "bf16 is true, which is not an object"),
    ("DS020", {"train_micro_batch_size_per_gpu": 0, "zero_optimization": {"stage": 2}}, "must be above 0"),
    ("DS020", {"steps_per_print": 0, "zero_optimization": {"stage": 2}}, "must be other than 0"),
    ("DS020", {"communication_data_type": "float16", "zero_optimization": {"stage": 2}}, 'one of "fp32"'),
    ("DS020", {"data_types": {"grad_accum_dtype": "fp8"}, "zero_optimization": {"stage": 2}}, 'is "fp8"'),
    (
        "DS020",
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}, "zero_optimization": {"stage": 2}},
        "warmup_num_steps is 0, but must be above 0",
    ),
    *(
        (
            "DS020",
            {"optimizer": {"type": kind, "params": params}, "zero_optimization": zero, **more},
            what,
        )
        for kind, params, zero, more, what in (
            ("AdamW", {"lr": 1e-5, "betas": [0.9]}, {"stage": 2}, {}, "betas is [0.9], which is not a list of 2"),
            ("Lion", {"lr": 1e-5, "betas": [0.9]}, {"stage": 2}, {}, "betas is [0.9], which is not a list of 2"),
            ("AdamW", {"lr": "1e-5"}, {"stage": 2}, {"scheduler": {"type": "WarmupLR", "params": {}}}, 'lr is "1e-5"'),
            ("AdamW", {"lr": None, "torch_adam": True}, {"stage": 2}, {}, "lr is null, which is not a number"),
            ("AdamW", {"eps": None, "torch_adam": True}, {"stage": 2}, {}, "eps is null, which is not a number"),
            (
                "AdamW",
                {"weight_decay": None, "torch_adam": True},
                {"stage": 2},
                {},
                "weight_decay is null, which is not a number",
            ),
            ("SGD", {"lr": None}, {"stage": 0}, {}, "lr is null, which is not a number"),
        )
    ),
    ("DS015", {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 9, "stage3_prefetch_bucket_size": 9}}, "same"),
    ("DS106", {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}}, "3 does not divide 4 GPUs"),
    ("DS213", {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}, "fp32"),
    ("DS312", {"gradient_predivide_factor": 2, "zero_optimization": {"stage": 2}}, "pre-divided by 2 at stage 2"),
    *(("DS360", {**keys, "zero_optimization": {"stage": 2, **zero}}, what) for keys, zero, what in COMBINATIONS),
    ("DS505", {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}}}, "needs total_num_steps"),
    (
        "DS805",
        {"activation_checkpointing": {"contiguous_memory_optimization": True, "partition_activations": True}},
        "number_checkpoints",
    ),
]
"""(code, keys that replace those of the rule's bad example, words of the finding): further ways to violate a rule."""


@functools.cache
def facts() -> DeepSpeedFacts:
    """The installed DeepSpeed's."""
    folder, version = source_folder("deepspeed"), installed_version("deepspeed")
    assert folder is not None
    return read_deepspeed.read_facts(folder, version, source_folder("torch"))


def facts_for(rule: Rule) -> DeepSpeedFacts:
    """The installed DeepSpeed's, with the version for which an old rule holds."""
    return facts() if rule.holds_for(facts()) else replace(facts(), version=rule.since)


def judged(config: Mapping[str, Any] | str, known: DeepSpeedFacts | None = None, **options: Any) -> LintReport:
    """The report on a configuration, given as a dict or as the file's text, with the command's options."""
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    document = read_document(text.encode(), name="ds_config.json", as_meant=True)
    given = {"framework": None, "model": None, "gpus": None, "ram": None, "seq_len": None, "offline": True, **options}
    return lint(document, facts=known or facts(), **lint_settings(document.value, **given))


def codes(report: LintReport, *severities: str) -> set[str]:
    """The codes that were found, of all severities or of some."""
    return {finding.code for finding in report.findings if not severities or finding.severity in severities}
