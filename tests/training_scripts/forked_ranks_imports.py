"""What training scripts and dry runs import, at once or later, for the process that `forked_ranks` forks."""

# ruff: noqa: F401 (nothing here uses them; the forks do)

import os

os.environ |= {  # as in every fork
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_JIT": "0",
    "TRANSFORMERS_VERBOSITY": "error",
}

import accelerate
import cpuinfo  # of `quick`, which forks would not find
import deepspeed
import deepspeed.compile.backend
import deepspeed.runtime.superoffload.superoffload_stage3
import deepspeed.runtime.zero.muon.original_muon
import peft.utils.transformers_weight_conversion
import torch.testing._internal.distributed.fake_pg
import transformers.integrations.deepspeed
from ds_advise.probes.command import worker
from ds_advise.probes.model_recorder import process
from transformers import (
    AutoModelForCausalLM,
    HfArgumentParser,
    LlamaForCausalLM,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
)
