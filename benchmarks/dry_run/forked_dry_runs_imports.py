"""Everything that a dry run imports, at once or later, for the process that `forked_dry_runs` forks."""

# ruff: noqa: F401 (nothing here uses them; the forks do)

import accelerate
import deepspeed.compile.backend
import deepspeed.runtime.engine
import peft.utils.transformers_weight_conversion
import torch.testing._internal.distributed.fake_pg
import transformers.integrations.deepspeed
from ds_advise.probes.command import worker
from ds_advise.probes.recording import ledger
from ds_advise.probes.simulated_gpu import attention, kernels
from ds_advise.probes.simulated_gpu import patches as unknown_values
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaForCausalLM, Qwen2ForCausalLM, Trainer
