"""What training scripts and dry runs import, at once or later, for the process that `forked_ranks` forks."""

# ruff: noqa: F401 (nothing here uses them; the forks do)

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}  # as in every fork

import cpuinfo  # of `quick`, which forks would not find
import deepspeed
import deepspeed.compile.backend
import deepspeed.runtime.superoffload.superoffload_stage3
import deepspeed.runtime.zero.muon.original_muon
import peft.utils.transformers_weight_conversion
import torch.testing._internal.distributed.fake_pg
import transformers.integrations.deepspeed
from ds_advise.probes.dry_run import training, worker
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM, Trainer, TrainingArguments
