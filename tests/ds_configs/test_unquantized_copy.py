"""The copy of a quantized checkpoint in bf16, made by the printed lines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ds_advise.ds_configs.training_script import model_lines, packages
from ds_advise.ds_configs.unquantized_copy import (
    copy_lines,
    has_copy,
    loaded_checkpoint,
    loads_checkpoint,
    quantized_remark,
)
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

_SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 128}
_SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


def _mxfp4(folder: Path) -> dict[str, torch.Tensor]:
    config = transformers.GptOssConfig(**_SIZES, num_local_experts=2, num_experts_per_tok=1)
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    stored = dict[str, torch.Tensor]()
    for name, value in load_file(folder / "model.safetensors").items():
        stored[name] = value
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = stored.pop(name).shape
            stored[f"{name}_blocks"] = torch.randint(0, 255, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            stored[f"{name}_scales"] = torch.full((experts, outputs, inputs // 32), 120, dtype=torch.uint8)
    return stored


def _fp8(folder: Path) -> dict[str, torch.Tensor]:
    config = transformers.Qwen3Config(**_SIZES)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    stored = dict[str, torch.Tensor]()
    for name, value in load_file(folder / "model.safetensors").items():
        stored[name] = value
        if "_proj." in name:
            stored[name] = value.to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = torch.ones(1, 1)
    return stored


@pytest.mark.parametrize(
    ("method", "store", "architecture"), [("mxfp4", _mxfp4, "GptOssForCausalLM"), ("fp8", _fp8, "Qwen3ForCausalLM")]
)
def test_the_printed_lines_make_a_copy_that_can_be_quantized_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, store: Any, architecture: str
) -> None:
    """And transformers refuses bitsandbytes for the checkpoint itself."""
    folder = tmp_path / "model"
    save_file(store(folder), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    quantization = {"quant_method": method, "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    shape = replace(find("gpt-oss-20b"), name=str(folder), architecture=architecture, quantized=method)
    with pytest.raises(ValueError, match="you are passing a BitsAndBytesConfig"):
        transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=transformers.BitsAndBytesConfig(load_in_4bit=True)
        )
    monkeypatch.chdir(tmp_path)
    exec("\n".join(copy_lines(shape)), {})
    copy = tmp_path / "model-bf16"
    assert "quantization_config" not in json.loads((copy / "config.json").read_text())
    assert {value.dtype for value in load_file(copy / "model.safetensors").values()} == {torch.bfloat16}
    transformers.AutoModelForCausalLM.from_pretrained(copy)


def test_a_checkpoint_is_loaded_as_it_is_if_the_workload_trains_it_so() -> None:
    unquantized = find("Qwen2.5-0.5B")
    nf4 = Workload(method="qlora", quantization="nf4")
    assert loads_checkpoint(unquantized, nf4)
    assert loads_checkpoint(replace(unquantized, quantized="bitsandbytes"), nf4)
    gptq = replace(unquantized, quantized="gptq")
    assert loads_checkpoint(gptq, replace(nf4, quantization="gptq"))
    assert not loads_checkpoint(gptq, nf4)
    assert not loads_checkpoint(unquantized, replace(nf4, quantization="gptq"))
    assert not has_copy(gptq)
    mxfp4 = find("gpt-oss-120b")
    assert has_copy(mxfp4)
    assert not any(loads_checkpoint(mxfp4, Workload(method=method)) for method in ("full", "lora", "qlora"))


@pytest.mark.parametrize(
    ("quantized", "method", "quantization", "loaded"),
    [
        ("", "qlora", "nf4", ""),
        ("", "qlora", "gptq", "GPTQ_CHECKPOINT"),
        ("gptq", "qlora", "gptq", "own"),
        ("gptq", "qlora", "nf4", "UNQUANTIZED_CHECKPOINT"),
        ("awq", "qlora", "nf4", "UNQUANTIZED_CHECKPOINT"),
        ("awq", "qlora", "gptq", "GPTQ_CHECKPOINT"),
        ("awq", "lora", "nf4", "UNQUANTIZED_CHECKPOINT"),
        ("compressed-tensors", "full", "nf4", "UNQUANTIZED_CHECKPOINT"),
        ("bitsandbytes", "qlora", "int8", ""),
        ("fp8", "qlora", "nf4", "own-bf16"),
        ("mxfp4", "full", "nf4", "own-bf16"),
        ("mxfp4", "qlora", "gptq", "GPTQ_CHECKPOINT"),
    ],
)
def test_the_script_loads_a_checkpoint_that_the_plan_is_for(
    quantized: str, method: str, quantization: str, loaded: str
) -> None:
    """transformers refuses to quantize a quantized one, and the Trainer one without adapters."""
    model = replace(find("Qwen2.5-0.5B"), name="own", quantized=quantized)
    workload = Workload(method=method, quantization=quantization)
    assert loaded_checkpoint(model, workload) == loaded
    lines = "\n".join(model_lines(model, workload, Plan(zero_stage=1, micro_batch_size=1)))
    assert ("BitsAndBytesConfig" in lines) == (method == "qlora" and quantization != "gptq")
    if loaded:
        assert f'from_pretrained("{loaded}"' in lines
    names = {"gptqmodel", "optimum"} if quantization == "gptq" else set()
    assert names == {"gptqmodel", "optimum"} & set(packages(workload))


@pytest.mark.parametrize(
    ("quantized", "method", "advice"),
    [
        ("gptq", "lora", "write --method qlora --quantization gptq for adapters"),
        ("bitsandbytes", "lora", "write --method qlora --quantization nf4 or int8 for adapters"),
        ("gptq", "qlora", "write --quantization gptq, or name an unquantized checkpoint"),
        ("awq", "full", "the Trainer trains those at most with adapters: the prediction is for an unquantized"),
        ("awq", "lora", "are quantized (awq): the prediction is for an unquantized checkpoint"),
    ],
)
def test_the_remark_says_what_to_write(quantized: str, method: str, advice: str) -> None:
    model = replace(find("Qwen2.5-0.5B"), quantized=quantized)
    assert advice in quantized_remark(model, Workload(method=method))
