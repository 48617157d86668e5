"""What a dry run of a command observes of a training, for tests of what follows from it."""

from __future__ import annotations

from ds_advise.probes.command.observed import Observed, ObservedArguments, ObservedEngine, ObservedTraining

GIB = 1 << 30
ENGINE = ObservedEngine(
    model="LlamaForCausalLM",
    parameters=8_030_000_000,
    trainable_parameters=8_030_000_000,
    trainable_dtypes={"bfloat16": 8_030_000_000},
    optimizer="AdamW",
    implementation="fused",
    zero_stage=3,
    micro_batch_size=1,
    gradient_accumulation_steps=4,
    recorded_micro_batches=4,
    data_parallel_size=8,
    checkpointing=True,
    config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
)
OBSERVED = Observed(
    engines=(ENGINE,),
    ended="repeated",
    steps=3,
    batch_shapes={"input_ids": (1, 2048), "attention_mask": (1, 2048), "weight": (1,), "pixels": (4, 3, 1024, 1024)},
    batch_lengths=(2048, 2048),
    searched_batches=0,
    rows={},
    rows_read=2000,
    logits_bytes=0,
    recomputes=True,
    in_training_mode=True,
    attention=("flash",),
    evaluation_cut=False,
    invented=(),
    unknown_masks=0,
)
TRAINING = ObservedTraining(
    model={},
    name="model",
    recorded=None,
    not_recorded="",
    method="full",
    quantization="",
    lora_rank=0,
    lora_targets=(),
    modules_to_save=(),
    lora_dropout=0.0,
    dora=False,
    frozen=(),
    seq_len=2048,
    rows=2,
    framework="hf",
    trainer="",
    uses_liger=False,
    attention="sdpa",
    has_padding_mask=False,
    varying_lengths=False,
    reentrant=False,
    versions={},
)
ARGUMENTS = ObservedArguments(options=(), fields={}, trainer={}, trainer_class="", calls={}, ds_config="")
