"""Usual mistakes: each is answered with what to type."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from ds_advise.advisor.cli.advise import advise
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.typed_line import options_of
from ds_advise.advisor.importers.answer import detect_format
from ds_advise.advisor.question.other_names import ADVICE, OTHER_NAMES
from ds_advise.advisor.text.lines import wrapped

QUESTION = "gpt2 --gpus 24GB --offline --no-write"
MISTAKES = {
    "--dtype torch.bfloat16": "write --precision bf16",
    "--fp16": "write --precision fp16",
    "--bf16": "write --precision bf16",
    "--precision float16": "write --precision fp16",
    "--batch-size 4": "write --micro-batch 4 (samples per GPU), or --global-batch 4 (per step)",
    "--per_device_train_batch_size=4": "write --micro-batch 4",
    "--train-batch-size 64": "write --global-batch 64",
    "--gradient-accumulation-steps 4": "write --global-batch N: micro batch x accumulation x GPUs",
    "--max-seq-length 4096": "write --seq-len 4096",
    "--seq_len 4096": "write --seq-len 4096",
    "--seq 8k": "write --seq-len 8k",
    "--nvme /nvme": "--nvme /nvme is not PATH:SIZE; write --nvme /nvme:2TB",
    "--lora-r 16": "write --lora-rank 16",
    "--lora": "write --method lora",
    "--load-in-4bit": "write --method qlora",
    "--method qlora4": "write --method qlora",
    "--attn-implementation flash_attention_2": "write --attention flash",
    "--zero-stage 3": "is compared; ds-advise explain gpt2 --gpus 24GB --offline --strategy zero3 shows one",
    "--strategy zero3": "compared; ds-advise explain gpt2 --gpus 24GB --offline --strategy zero3 shows one\n",
    "--zero-stage 2 --cpu-offload": "ds-advise explain gpt2 --gpus 24GB --offline --strategy zero2-offload shows one",
    "--offload cpu": "are compared too; ds-advise explain gpt2 --gpus 24GB --offline --strategy "
    "zero3-offload shows one\n",
    "--offload_optimizer cpu": "--strategy zero2-offload shows one\n",
    "--offload-param nvme": "--strategy zero3-nvme shows one\n",
    "--zero-infinity": "--strategy zero3-nvme shows one\n",
    "--gradient_checkpointing": "write --gradient-checkpointing on\n",
    "--no-gradient-checkpointing": "write --gradient-checkpointing off\n",
    "--no-packing": "leave --packing out\n",
    "--auto": "see ds-advise --help-all\n",
    "--dpo": "write --objective dpo\n",
    "--sft": "write --objective next-token\n",
    "--zero++": "write --zeropp\n",
    "--json=out.json": "does not take a value; write --json\n",
    "--fsdp": "write --sharding fsdp\n",
    "--output_dir out": "leave it out: it changes neither memory nor speed\n",
    "-help": "no such option -help; write ds-advise --help\n",
    "-V": "write ds-advise --version\n",
    "-output f.json": "write --output f.json\n",
    "--zero 2": "ds-advise explain gpt2 --gpus 24GB --offline --strategy zero2 shows one",
    "--zero2-offload": "ds-advise explain gpt2 --gpus 24GB --offline --strategy zero2-offload shows one",
    "--tp 4": "ds-advise explain gpt2 --gpus 24GB --offline --strategy zero1 --set autotp_size=4 splits them",
    "-g 2x48GB": "write --gpus 2x48GB",
    "-q": "write --quiet",
    "--versoin": "write ds-advise --version\n",
    "--detail": "write --details\n",
    "--jsn": "write --json\n",
    "--precision fp8": "fp8 is not predicted; --precision bf16 is the nearest\n",
    "--precision int3": "'int3' is not possible; write --precision auto, bf16, fp16 or fp32\n",
    "--precision int8": "write --method qlora --quantization int8",
    "--method dpo": "write --objective dpo",
    "--objective sft": "write --objective next-token",
    "--gradient-checkpointing true": "write --gradient-checkpointing on",
    "--seq-len abc": "write --seq-len 2048",
    "--epochs three": "write --epochs 3",
    "--packing yes": "write --packing without yes",
    "--learning-rate 1e-5": "it changes neither memory nor speed",
    "--num-gpus 8": "write --gpus 8x24GB\n",
    "--nodes 2": "write --gpus 2x1x24GB\n",
    "--deepspeed ds.json": "ds-advise lint ds.json, compare ds.json FILE or explain ds.json",
    "--micro-batch auto": "leave --micro-batch out",
    "--optim adamw_torch": "write --optimizer adamw_torch",
    "--methd LoRA": "write --method lora\n",
    "--methd 1": "did you mean --method?",
    "--global-batch fastest": "write no-accumulation for one micro batch per GPU, whichever is fastest; a larger batch",
    "--report x.html": "write --html x.html\n",
    "--epoch 3": "write --epochs 3\n",
    "--seq-len": "write --seq-len N or max",
    "2x24GB": "write --gpus 2x24GB",
    "--batch-size 0": "write --micro-batch N (samples per GPU), or --global-batch N (per step)\n",
    "--batch-size -4": "write --micro-batch N (samples per GPU), or --global-batch N (per step)\n",
    "--mode lora": "write --method lora\n",
    "--finetuning-type full": "write --method full\n",
    "--simulate": "write ds-advise dry-run gpt2 --gpus 24GB --offline\n",
    "--optimizer AdmW": "pass adamw\n",
    "--optimizer adam8bit": "pass adamw_8bit\n",
    "--optimizer adam8": "pass adamw_8bit\n",
    "--optimizer 8bit-adam": "pass adamw_8bit\n",
    "--optimizer FusedAdam": "pass adamw\n",
    "--optimizer nonsense": "pass one of adafactor, adagrad",
    "--token hf_abc": "set HF_TOKEN",
    "--token 1B": "write --tokens 1B\n",
    "--max-price 500": "see ds-advise --help-all\n",
    "qwen2.5-7b": "write one model: gpt2 or qwen2.5-7b\n",
    "explain time": "write ds-advise explain gpt2 --gpus 24GB --offline time\n",
    "--max-length 1.5": "write --seq-len 1\n",
    "--seq-len 4096.5": "write --seq-len 4096\n",
    "--seq-len -4096": "write --seq-len N or max",
    "--output --details": "--output needs its value; write --output FILE",
    "--deadline 24h": "write ds-advise rent gpt2 --offline --deadline 24h\n",
    "--nvme 2TB:/mnt": "write --nvme /mnt:2TB\n",
}
LINES = {
    "gpt2 --gpus": "write --gpus SPEC (GPUs: 2x32GB",
    "gpt2 --gpus --offline": "--gpus needs its value; write --gpus SPEC (GPUs: 2x32GB",
    "gpt2 --gpus 1,8x80GB": "write --gpus 1x8x80GB\n",
    "gpt2 --gpus 2,4x80GB": "write --gpus 2x4x80GB\n",
    "gpt2 --gpus 0,5xH100": "write --gpus 1xH100\n",
    "gpt2 --gpus -1": "write --gpus auto for those of this machine\n",
    "gpt2 --gpus 1": "write --gpus 1x24GB for 1 GPU of 24 GB",
    "gpt2 --gpus 4x24MB": "write --gpus 4x24GB\n",
    "launch --nproc_per_node 4 train.py": "write ds-advise launch -- torchrun --nproc_per_node 4 train.py\n",
    "launch --num-gpus=4 train.py --lr 1": "write ds-advise launch -- deepspeed --num_gpus 4 train.py --lr 1\n",
    "launch --num_processes 4 accelerate launch train.py": "-- accelerate launch --num_processes 4 train.py\n",
    "launch -- trochrun train.py": "there is no trochrun: it is no command on PATH; write torchrun\n",
    "why run.log --zero 3": "leave it out: the configuration has the strategy, which ds-advise why does not change\n",
    "lint ds.json --zero 3": "leave it out: ds.json has the strategy, which ds-advise lint does not change\n",
    "why run.log torchrun train.py": "write ds-advise why run.log -- torchrun train.py\n",
    "launch --nproc_per_node 4 bash run.sh train.py": "write ds-advise launch -- bash run.sh train.py\n",
    "train --lr 1e-4": "write --learning-rate 1e-4\n",
    "train --steps 30": "write --max-steps 30\n",
    "train --eval-steps 20": "write --save-steps 20: train evaluates when it saves\n",
    "train --weight-decay 0.1": "train has weight_decay 0.0; another value needs ds-advise launch with a script of",
    "train --gradient_clipping 0.5": "train has max_grad_norm 1.0; another value needs ds-advise launch with a script",
    "train --warmup-ratio 0.1": "train warms up for 3 % of the steps; another value needs ds-advise launch",
    "train --learning-rate abc": "write --learning-rate 2e-5\n",
    "history -n 3": "write --limit 3\n",
    "dry-run nope.py": "no such file; write ds-advise dry-run --gpus 2x24GB -- torchrun --nproc_per_node 2 nope.py\n",
    "Mistrall-7B": "write Mistral-7B-v0.1, or name another",
    "configure --help": "no command or model 'configure'; write ds-advise --help\n",
    "gpt2 --gpus 24GB,24GB": "write --gpus 2x24GB",
    "gpt2 --gpus 2xA100": "write --gpus 2xA100-PCIe-40GB, 2xA100-SXM4-40GB,",
    "gpt2 --gpus A100x2": "write --gpus 2xA100-SXM4-80GB",
    "gpt2 --gpus 2 x A100": "write --gpus 2xA100-SXM4-80GB",
    "gpt2 --gpus 8 H100-SXM5": "write --gpus 8xH100-SXM5",
    "gpt2 --gpus 8H100": "write --gpus 8xH100\n",
    "gpt2 --gpus 64xH100": "write --gpus 8x8xH100, which is nodes x GPUs x kind",
    "gpt2 --gpus 2": "write --gpus 2x24GB for 2 GPUs of 24 GB",
    "gpt2 --gpus 80": "write --gpus 80GB for memory",
    "gpt2 --gpus 2x81920": "write --gpus 2x80GB\n",
    "gpt2 --gpus 2x46068": "write --gpus 2x48GB\n",
    "gpt2 --gpus 4x8188": "write --gpus 4x8GB\n",
    "gpt2 --gpus 2x5091": "write --gpus 2xRTX-5090, or",
    "gpt2 --gpus 2xH100,2xA100-80GB": "the slowest how long a step takes; write --gpus 4xA100-80GB\n",
    "gpt2 --gpus 2x8xH100+2x8xA100-40GB": "write --gpus 4x8xA100-40GB\n",
    "gpt2 --gpus 2x24GB,1x24GB": "write --gpus 3x24GB\n",
    "gpt2 --num-gpus 8": "write --gpus 8x24GB, which is GPUs x memory or kind\n",
    "gpt2 --nodes 2": "write --gpus 2x8x24GB, which is nodes x GPUs x memory or kind\n",
    "gpt2 --gpus 8xH100 --nodes 2": "write --gpus 2x8xH100\n",
    "gpt2 --gpus 8 --gpu-type H100": "write --gpus 8xH100\n",
    "gpt2 --gpu A100-80GB --num-gpus 8": "write --gpus 8xA100-80GB\n",
    "gpt2 --num_machines 2 --num_processes 16 --gpu-type H100": "write --gpus 2x8xH100\n",
    "gpt2 -gpus 8xH100": "no such option -gpus; write --gpus 8xH100\n",
    "bench --gpus 8xH100": "leave it out: ds-advise bench is about this machine\n",
    "doctor --num-gpus 2": "leave it out: ds-advise doctor is about this machine\n",
    "mcp --gpus 4": "no such option --gpus; write ds-advise mcp\n",
    "page --model gpt2 --gpus 8xH100 --port 8000": "no such option --model; write ds-advise page --port 8000\n",
    "page --gpu H100": "no such option --gpu; write ds-advise page\n",
    "schema --json advise": "no such option --json; write ds-advise schema advise\n",
    "checkpoint folder --export out": "write --to-hf out\n",
    "checkpoint folder --html x.html": "write ds-advise checkpoint folder --json > x.json\n",
    "bench --quick": "leave it out: there is one benchmark, of about a minute on an idle machine\n",
    "from nope.toml": "pass a file of accelerate, axolotl, LLaMA-Factory, ms-swift or TRL, or TrainingArguments as",
    "train gpt2 --data train.py": "train.py is a Python script, not data; name the file with the rows (.jsonl, ",
    "gpt2 --gpus 24GB --data axolotl.yaml": "axolotl.yaml is a configuration, not data; name the file with the rows",
    "gpt2 --gpus 24GB -o nofolder/x.json": "there is no folder nofolder; write --output x.json, or create it\n",
    "gpt2 --gpus 24GB --script nofolder/x.py": "there is no folder nofolder; write --script x.py, or create it\n",
    "history --last": "write ds-advise history last\n",
    "history --failed": "write ds-advise history failed\n",
    "-v": "write ds-advise --version\n",
    "gpt2 -v": "write --details\n",
    "why tail -f run.log": "no such option -f; write tail -f run.log | ds-advise why -\n",
    "why tail -n 9 run.log --gpus 2x24GB": "write tail -n 9 run.log | ds-advise why - --gpus 2x24GB\n",
    "why cat nope.log": "write cat nope.log | ds-advise why -\n",
    "why --config run.log": "--config took run.log, and no LOG is left; write ds-advise why run.log\n",
    "explain gpt2 --strategy zero3 --zero-stage 3": "leave it out: --strategy zero3 has it\n",
    "explain gpt2 --gpus 24GB --html r.html": "write ds-advise explain gpt2 --gpus 24GB --json > r.json\n",
    "explain gpt2 --zero-stage 3": "write --strategy zero3\n",
    "explain gpt2 --strategy stage3": "write zero3\n",
    "explain gpt2 --strategy ds_z3_offload_config.json": "write zero3-offload\n",
    "explain gpt2 --strategy deepspeed_zero3": "write zero3\n",
    "compare ds.json stage2": "write zero2\n",
    "whi run.log": "write ds-advise why run.log\n",
    "exlain gpt2 --gpus 24GB": "write ds-advise explain gpt2 --gpus 24GB\n",
    "train.log": "train.log: no such file;",
    "explain gpt2 --model qwen2.5-7b": "two models: gpt2 and --model qwen2.5-7b; leave one out\n",
    "explain foo/bar --model gpt2": "two models: foo/bar and --model gpt2; leave one out\n",
    "explain time gpt2 --gpus 24GB": "write ds-advise explain gpt2 --gpus 24GB time\n",
    "explain optimizer-states --gpus 24GB --model gpt2": "write ds-advise explain gpt2 --gpus 24GB optimizer-states\n",
    "gpt2 --gpus 24GB --ram 256GBs": "write it as --ram 256GB\n",
    "gpt2 --gpus 24GB --ram 1MB": "write it as --ram 1GB\n",
    "gpt2 --gpus 24GB --ram 256MB": "write it as --ram 256GB\n",
    "gpt2 --gpus 24GB --micro-batch 0": "write --micro-batch 1\n",
    "gpt2 --gpus 24GB --global-batch -1": "write --global-batch 32\n",
    "history --limit 0": "write --limit 20\n",
    "why Qwen2.5-7B": "why reads a log, and Qwen2.5-7B is a model; write ds-advise why train.log --model Qwen2.5-7B\n",
    "check Qwen2.5-7B --seq-len 4k": "write ds-advise check ds_config.json --model Qwen2.5-7B --seq-len 4k\n",
    "compare gpt2 Qwen2.5-7B": "gpt2 and Qwen2.5-7B are models; write ds-advise gpt2, and ds-advise Qwen2.5-7B\n",
    "compare zero3 gpt2": "gpt2 is a model; write ds-advise compare zero3 zero2 --model gpt2\n",
    "check gpt2 Qwen2.5-7B": "gpt2 and Qwen2.5-7B are models; write ds-advise gpt2, and ds-advise Qwen2.5-7B\n",
    "compare ds.json zero3 --gpus 24GB": "; write ds-advise compare ds.json zero3 --gpus 24GB --model MODEL\n",
    "page --pyodide x": "--pyodide needs --build; write ds-advise page --pyodide x --build DIR\n",
    "train gpt2 rows.jsonl": "data, not a configuration; write ds-advise train --model gpt2 --data rows.jsonl\n",
    "train gpt2 row.jsonl --method lora": "write ds-advise train --model gpt2 --data rows.jsonl --method lora\n",
    "train rows.jsonl": "write ds-advise train --model MODEL --data rows.jsonl\n",
    "train gpt2 --data rows.jsonl more.csv": "more.csv: no such file; leave more.csv out\n",
    "meta-lama/Llama-3.1-8B --gpus 24GB --offline": "forbids the network; write meta-llama/Llama-3.1-8B\n",
    "lint Qwen2.5-7B": "Qwen2.5-7B is a model; write ds-advise lint ds_config.json --model Qwen2.5-7B\n",
    "--gpus 8xH100 Qwen2.5-7B lint": "write ds-advise lint ds_config.json --model Qwen2.5-7B --gpus 8xH100\n",
    "llama-8b --gpus 24GB": "nearest names: meta-llama/Meta-Llama-3-8B, meta-llama/Llama-3.1-8B, huggyllama/llama-7b",
    "gpt2 --gpus 8xH100 --global-batch 12 --micro-batch 8": "pass --global-batch 64\n",
    "gpt2 --gpus 8xH100 --global-batch 96 --micro-batch 8": "pass --micro-batch 6, or --global-batch 128 or 64\n",
    "checkpoint ds.json": "write ds-advise lint ds.json\n",
    "checkpoint floder": "floder is not a folder; write folder\n",
    "checkpoint none": "name the folder of a checkpoint, such as output/checkpoint-500\n",
    "schema explian": "there is no schema of 'explian'; write ds-advise schema explain\n",
    "explain gpt2 --gpus 24GB --set stage=3": "--set has no setting 'stage'; pass --strategy zero3\n",
    "explain gpt2 --gpus 24GB --set offload=nvme": "pass --strategy zero3-nvme\n",
    "explain gpt2 --gpus 24GB --set offload_optimizer.device=cpu": "pass --strategy zero2-offload\n",
    "explain gpt2 --gpus 24GB --set micro_batch_size=4": "pass --micro-batch 4\n",
    "explain gpt2 --gpus 24GB --set bf16=yes": "pass --precision bf16\n",
    "explain gpt2 --gpus 24GB --set grad_accum_dtype=bf16": "--set grad_accum_dtype is 'bf16'; pass fp32\n",
    "explain gpt2 --gpus 24GB --set communication_data_type=fp": "pass one of bf16, fp16, fp32\n",
    "explain gpt2 --gpus 24GB --set offload_optimizer=yes": "pass one of none, cpu, nvme\n",
    "gpt2 \u2014gpus 24GB": "write ds-advise gpt2 --gpus 24GB\n",
    "gpt2 \u2013-gpus 24GB": "write ds-advise gpt2 --gpus 24GB\n",
    "gpt2 --gpus \u201c24GB\u201d": "write ds-advise gpt2 --gpus 24GB\n",
    "gpt2 --gpus=\u201c24GB\u201d": "write ds-advise gpt2 --gpus=24GB\n",
    "gpt2 --gpus: 24GB": "write ds-advise gpt2 --gpus 24GB\n",
    "gpt2 --gpus 24GB, --seq-len 512": "write ds-advise gpt2 --gpus 24GB --seq-len 512\n",
    "gpt2 --gpus=2 x 32GB": "write --gpus 2x32GB\n",
    "$ ds-advise gpt2": "write ds-advise gpt2\n",
    "ds-advise explain gpt2": "write ds-advise explain gpt2\n",
    "EXPLAIN gpt2": "write ds-advise explain gpt2\n",
    "--model gpt2 explain --gpus 24GB": "write ds-advise explain --model gpt2 --gpus 24GB\n",
    "gpt2 --gpus 0,1,2,3": "write --gpus 4x24GB for 4 GPUs of 24 GB, or --gpus auto for those of this machine\n",
    "gpt2 --gpus 24GB --zero_optimization.stage 2": "explain gpt2 --gpus 24GB --strategy zero2 shows one\n",
    "gpt2 --gpus 24GB ds.json": "write ds-advise explain ds.json --model gpt2 --gpus 24GB\n",
    "ds.json gpt2 --gpus 24GB": "write ds-advise explain ds.json --model gpt2 --gpus 24GB\n",
    "gpt2 --gpus 24GB -- train.py": "the command behind -- has its own model; leave gpt2 out\n",
    "why --log run.log": "write ds-advise why run.log\n",
    "why -f run.log": "write ds-advise why run.log\n",
    "compare a.json b.json c.json": "write ds-advise check a.json b.json c.json, which takes more than two\n",
    "compare zero2 vs zero3 gpt2": "write ds-advise compare zero2 zero3 gpt2\n",
    "explain gpt2 --part time": "write ds-advise explain gpt2 time\n",
    "explain ZeRO-3 --gpus 24GB": "write ds-advise explain MODEL --gpus 24GB --strategy zero3\n",
    "gpt2 gpus 24GB": "write ds-advise gpt2 --gpus 24GB\n",
    "gpt2 gpus=24GB seq-len=4k": "write ds-advise gpt2 --gpus=24GB --seq-len=4k\n",
    "gpt2 optimizer states": "unexpected extra arguments (optimizer states); see ds-advise --help-all\n",
    "zero2 gpt2 --gpus 24GB": "write ds-advise explain gpt2 --gpus 24GB --strategy zero2\n",
    "gpt2 --gpus 2x24GB --train-batch-size fastest": "write --global-batch 32\n",
    "explain gpt2 --gpus 2x24GB --set dora": "pass --dora\n",
    "explain gpt2 --gpus 2x24GB --set num_gpus=4": "pass --gpus 4x24GB\n",
    "explain gpt2 --gpus 2x24GB --set dtype=torch.bfloat16": "pass --precision bf16\n",
    "explain memory gpt2": "write ds-advise explain gpt2 memory\n",
    "8xh1oo": "write ds-advise MODEL --gpus 8xH100-SXM5\n",
    "explain gpt2 8xh1oo": "write --gpus 8xH100-SXM5, 8xH100-NVL, 8xH800-SXM5\n",
    "Qwen2.5-8B --gpus 24GB": "write Qwen2.5-7B,",
    "Llama-3.1-80B --gpus 24GB": "write Llama-3.1-70B,",
    "gpt2 --gpus 4xH10": "write --gpus 4xH100-SXM5,",
    "gpt2 --gpus 2x": "write --gpus 2x24GB or 2xA100-80GB\n",
    "gpt2 --gpus 0x24GB": "write --gpus 1x24GB\n",
    "gpt2 --gpus 1.5x24GB": "write --gpus 2x24GB\n",
    "gpt2 --gpus 8 x A100 80GB": "write --gpus 8xA100-80GB\n",
    "mixtrl-8x7 --gpus 24GB": "nearest names: mistralai/Mixtral-8x7B-v0.1",
    "gpt2 --gpus all": "write --gpus auto",
    "--gpus gpt2 2x24GB": "write ds-advise gpt2 --gpus 2x24GB\n",
    "lama3.1-8b --gpus 24GB": "write Llama-3.1-8B",
    "qwen 2.5 14b --gpus 24GB": "write qwen-2.5-14b",
    "folder --gpus 24GB": "the folder folder has no config.json",
    "https://huggingface.co/Qwen/Qwen2.5-14B": "write Qwen/Qwen2.5-14B",
    "run train.py --lr 1": "write ds-advise launch -- train.py --lr 1",
    "finetune --model gpt2": "write ds-advise train --model gpt2",
    "recommend --gpus 24GB": "write ds-advise MODEL --gpus 24GB",
    "tune": "every answer is a search, and --probe measures its best candidates on this machine; write ds-advise MODEL",
    "search gpt2": "write ds-advise gpt2 --gpus 2x24GB --probe\n",
    "doctor -- torchrun train.py": "write ds-advise launch --dry -- torchrun train.py, which checks a training\n",
    "doctor train.py": "write ds-advise launch --dry -- train.py",
    "bench ds.json": "write ds-advise lint ds.json, which checks a configuration\n",
    "launch ds.json": "write ds-advise launch ds.json -- train.py",
    "gpt2 --gpus 24GB --data folder": "folder is a folder; name a data file in it",
    "torchrun --nproc_per_node 2 train.py": "write ds-advise launch -- torchrun --nproc_per_node 2 train.py\n",
    "python train.py": "write ds-advise launch -- python train.py\n",
    "8xH100 gpt2 --offline": "write ds-advise gpt2 --offline --gpus 8xH100\n",
    "foo gpt2 --gpus 8xH100": "write ds-advise gpt2 --gpus 8xH100\n",
    "--gpus 8xH100 explain gpt2": "write ds-advise explain --gpus 8xH100 gpt2\n",
    "explain 8xH100": "write ds-advise explain MODEL --gpus 8xH100\n",
    "explain 8xH100 gpt2": "write ds-advise explain gpt2 --gpus 8xH100\n",
    "explain gpt2 8xH100": "write --gpus 8xH100\n",
    "explain gpt2 8 H100": "write --gpus 8xH100\n",
    "rent gpt2 --gpus 8xH100 --seq-len 8k": "leave it out: ds-advise rent compares the machines of a price table, the "
    "built-in one or --prices FILE; ds-advise advise gpt2 --seq-len 8k --gpus 8xH100 answers for these GPUs\n",
    "rent --num-gpus 8 --gpu H100": "ds-advise advise MODEL --gpus 8xH100 answers for these GPUs\n",
    "rent 8xH100": "write ds-advise rent MODEL, or, for these GPUs, ds-advise MODEL --gpus 8xH100\n",
    "rent 8xH100 gpt2": "write ds-advise rent gpt2, or, for these GPUs, ds-advise gpt2 --gpus 8xH100\n",
    "rent gpt2 --price 2.5": "write --prices FILE: a CSV table of machines with their prices\n",
    "rent gpt2 --cost 2": "write --prices FILE: a CSV table of machines with their prices\n",
    "lint --validate ds.json": "no such option --validate; write ds-advise lint ds.json\n",
    "lint --validate=ds.json": "no such option --validate; write ds-advise lint ds.json\n",
    "lint --versoin": "no such option --versoin; write ds-advise --version\n",
    "rent gpt2 --token 1B": "write --tokens 1B\n",
    "lint ds.json --deadline 3h": "it is one of ds-advise rent; see ds-advise rent --help-all\n",
    "explain nope gpt2": "'nope' is neither a model nor a key of a configuration",
    "gpt4": "no model named 'gpt4' in the catalogue: nearest names: openai-community/gpt2, ",
    "rent gpt2 qwen2.5-7b": "write one model: gpt2 or qwen2.5-7b\n",
    "rent gpt2 --max-price 500": "write --budget 500\n",
    "rent gpt2 --budget lots": "an amount above 0 is needed; write --budget 500\n",
    "rent gpt2 --deadline 12": "write it as --deadline 12h, 12m or 12d\n",
    "rent gpt2 --deadline 12weeks": "a number and a unit are needed",
    "rent gpt2 --deadline 0h": "it must be above 0; write it as --deadline 24h",
    "explain gpt2 --strategy zero4": "zero3-nvme, fsdp, fsdp2, torch\n",
    "explain gpt2 --gpus 24GB --strategy zero2 --set reduce_bucket=2e8": "did you mean reduce_bucket_size?",
    "lint DS151": "write ds-advise lint --explain DS151\n",
    "lint dss.json": "write ds.json\n",
    "train --model gpt2 --data row.jsonl": "write rows.jsonl\n",
    "launch -- torchrun trian.py": "there is no file trian.py; write train.py\n",
    "dss.json": "dss.json: no such file; write ds.json\n",
    "history --forget all 3": "write it alone",
    "empty.json": "empty.json: not JSON: the file is empty;",
    "lint model.json": "model.json is a model's config.json, not a DeepSpeed configuration: it has model_type;",
    "other.json --gpus 24GB": "other.json: model_type is missing",
    "ds.json --gpus 8xH100": "write ds-advise lint ds.json\n",
    "train.py --gpus 8xH100": "write ds-advise --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py\n",
    "why missing.log": "pipe it: COMMAND 2>&1 | ds-advise why -",
    "page --port 99999999": "from 0 to 65535",
    "train --model gpt2 --data rows.jsonl --learning-rate 1e30": "it must be above 0 and below 100",
    "gpt3.5": "no model named 'gpt3.5'",
    "rent help": "write ds-advise rent --help\n",
    "estimate gpt2": "write ds-advise gpt2 --gpus 2x24GB",
    "ds.json": "write ds-advise lint ds.json\n",
    "train.py --gpus 2x8xH100": "--gpus 2x8xH100 -- torchrun --nnodes 2 --nproc_per_node 8 train.py\n",
    "train.py --gpus H100": "write ds-advise --gpus H100 -- train.py\n",
    "train.py": "write ds-advise --gpus 2x24GB -- torchrun --nproc_per_node 2 train.py",
    "axolotl.yaml --gpus 24GB": "write ds-advise from axolotl.yaml",
    "run.log": "write ds-advise why run.log",
    "lint": "for example: ds-advise lint ds_config.json",
    "lint axolotl.yaml": "write ds-advise from axolotl.yaml",
    "compare axolotl.yaml ds.json": "write ds-advise from axolotl.yaml",
    "missing.py": "write ds-advise --gpus 2x24GB -- torchrun --nproc_per_node 2 missing.py",
    "explain ds201": "write ds-advise lint --explain DS201",
    "page --port abc": "'abc' is not a whole number",
    "dry-run train.py": "write ds-advise dry-run --gpus 2x24GB -- torchrun --nproc_per_node 2 train.py",
    "probe train.py": "write ds-advise probe -- train.py\n",
    "report": "write ds-advise MODEL --gpus 2x24GB --html report.html",
    "report --help": "write ds-advise MODEL --gpus 2x24GB --html report.html",
    "missing.json --gpus 24GB": "missing.json: no such file",
    "recorded.json": "write ds-advise explain recorded.json\n",
    "compare ds.json zero9": "no strategy or file 'zero9'; write one of ddp, zero1, zero2,",
    "compare ds.json zero2-ofload": "write zero2-offload\n",
    "launch -- missing.py": "there is no file missing.py",
    "launch ds.json train.py --lr 1": "write ds-advise launch ds.json -- train.py --lr 1",
    "gpt2 --gpus H100 80GB": "write --gpus H100-80GB",
    "gpt2 --gpus 4090x2": "write --gpus 2x4090",
    "gpt2 --gpus 4*48GB": "write --gpus 4x48GB",
    "gpt2 --gpus 4xA100-48GB": " or 4xA100-SXM4-80GB, or the memory alone: --gpus 4x48GB\n",
    "gpt2 --gpus 4x8xA100-60GB": " or 4x8xA100-SXM4-80GB, or the memory alone: --gpus 4x8x60GB\n",
    "gpt2 --gpus 2xA100-4000GB": "2xA100-PCIe-80GB or 2xA100-SXM4-80GB\n",
    "gpt2 --gpus 8xh1oo": "write --gpus 8xH100-SXM5,",
    "gpt2 --gpus 2xrtx409O": "write --gpus 2xRTX-4090,",
    "train gpt2": "--data is missing; for example: ds-advise train",
    "explain": "for example: ds-advise explain Qwen2.5-14B --gpus 2x32GB",
    "explain overlap_comm 24GB": "write --gpus 24GB",
    "check ds.json --dtype bf16": "write --precision bf16",
    "bench --device gpu": "write --device cuda\n",
    "explain zero_optimization.nope": "name a key of the configuration",
    "llama-3.8b --gpus 8xH100": "write Meta-Llama-3-8B,",
    "phi-3.8b --gpus 8xH100": "pythia-6.9b; name a model such as",
    "gpt2 --gpus 8xH100x2": "write --gpus 2x8xH100\n",
    "gpt2 --gpus 2nodes8xH100": "write --gpus 2x8xH100\n",
    "gpt2 --gpus 2 nodes of 8 H100": "write --gpus 2x8xH100\n",
    "gpt2 --gpus 8xA100x40": "write --gpus 8xA100-40GB\n",
    "gpt2 --gpus 24GB --quantization int4": "write --quantization nf4 --method qlora\n",
    "gpt2 --gpus 24GB --method qlora --quantization 8bit": "write --quantization int8\n",
    "gpt2 --gpus 24GB --lora-r 16": "write --lora-rank 16 --method lora\n",
    "gpt2 --gpus 24GB --lora-targets q_proj v_proj": "write --lora-targets q_proj,v_proj --method lora\n",
    "explain gpt2 --gpus 24GB --set overlap_comm=no reduce_bucket_size=2e8": "write --set overlap_comm=no,reduce_buc",
    "gpt2 --gpus 24GB --nvme /mnt 2TB": "write --nvme /mnt:2TB\n",
    "gpt2 --gpus 24GB --ram 256 GB": "write --ram 256GB\n",
    "rent gpt2 --deadline 3 days": "write --deadline 3d\n",
    "gpt2 lora --gpus 24GB": "write --method lora\n",
    "gpt2 zero3 --gpus 24GB": "ds-advise explain gpt2 --gpus 24GB --strategy zero3 shows one\n",
    "gpt2 --gpus 24GB --micro-batch four": "write --micro-batch 4\n",
    "gpt2 --gpus 24GB --micro-batch some": "write --micro-batch N or max (Samples per GPU",
    "gpt2 --gpus 24GB --seq-len 2^12": "write --seq-len 4096\n",
    "rent gpt2 --hours 3": "write --deadline 3h\n",
    "rent gpt2 --gpu H100": "ds-advise advise gpt2 --gpus H100 answers for these GPUs\n",
    "history --delete 3": "write --forget 3\n",
    "history --clear": "write --forget all\n",
    "history --model Qwen2.5": "write ds-advise history Qwen2.5\n",
    "history --kind probe": "write ds-advise history probe\n",
    "why run.log --rank 2": "leave it out: LOG may have all ranks",
    "why -3": "no such option -3; see ds-advise why --help-all\n",
    "why run.log --ds_config ds.json": "write --config ds.json\n",
    "why --help-al": "write ds-advise why --help-all\n",
    "why run.log --verbose": "it is one of ds-advise launch, train; leave it out\n",
    "why run.log --html x.html": "write ds-advise why run.log --json > x.json\n",
    "convert checkpoint-500": "write ds-advise checkpoint checkpoint-500 --to-hf OUT\n",
    "log run.log": "write ds-advise why run.log\n",
    "gpt2 --gpus 8xTPUv4": "TPUs are not predicted, only GPUs of NVIDIA and AMD; name one of them",
    "gpt2 --gpus m3max": "GPUs of Apple are not predicted",
    "gpt2 --gpus 8xH100,4xA100": "write --gpus 12xA100-PCIe-40GB, 12xA100-SXM4-40GB, 12xA100-PCIe-80GB or 12xA100-SXM4",
    "gpt2 --gpus macbook": "GPUs of Apple are not predicted",
    "gpt2 --gpus machine": "no GPU called 'machine' is known: its memory and speed are not known; name one, such as",
    "list": "write ds-advise history\n",
    "explain ds.json --stage 3": "leave it out: ds.json has its own strategy\n",
    "why runn.log": "write run.log\n",
    "explain gpt2 gpt2 --gpus 24GB": "ds-advise explain gpt2 --gpus 24GB lists the parts\n",
    "gpt2 --gpus 24GB --tokens 2 billion": "write --tokens 2B\n",
    "gpt2 --gpus 24GB --seq-len 4096 tokens": "leave tokens out\n",
    "gpt2 --gpus 24GB --seq-len 128kb": "write --seq-len 128k\n",
    "gpt2 --gpus 24GB --seq-len 4x1024": "write --seq-len 4096\n",
    "gpt2 --gpus 24GB --micro-batch 2,4": "write --micro-batch N or max",
    "gpt2 --gpus 24GB --host 64 cores": "write --host 64cores\n",
    "gpt2 --gpus 24GB --global-batch 2 x 16": "extra arguments (x 16); see ds-advise --help-all\n",
    "gpt2 --gpus 24GB --optimiser lion": "write --optimizer lion\n",
    "gpt2 --gpus 24GB --lora-dropout 5%": "write --lora-dropout 0.05\n",
    "gpt2 --gpus 24GB --quant int4": "write --quantization nf4 --method qlora\n",
    "gpt2 --gpus 24GB --emit k8s": "write --emit KIND,... (Also write job files",
    "gpt2 --gpus 24GB --no-checkpointing": "write --gradient-checkpointing off\n",
    "gpt2 with lora on 8xH100": "write ds-advise gpt2 --method lora --gpus 8xH100\n",
    "gpt2 --gpus 8 H100s": "write --gpus 8xH100\n",
    "gpt2 --gpus 8GPUs": "write --gpus 8x24GB for 8 GPUs of 24 GB",
    "qwen-7b-2.5 --gpus 24GB": "write Qwen2.5-7B,",
    "deepseek-r1-70b --gpus 24GB": "; name a model such as Qwen2.5-14B",
    "dry-run train.py --gpus 8xH100": "write ds-advise dry-run --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py\n",
    "launch gpt2": "write ds-advise launch -- train.py\n",
    "probe gpt2 --step 5": "write --steps 5\n",
    "probe gpt2 --steps 3": "write --steps 4\n",
    "probe gpt2 --steps 2000": "write --steps 1000\n",
    "checkpoint folder --to hf": "write --to-hf hf\n",
    # The machine without a GPU is looked for when the words are known to be right.
    "-- python train.py --gpus 8xH100": "write ds-advise --gpus 8xH100 -- python train.py\n",
    "-- python train.py --gpus 24GB --size 24GB": "write ds-advise --gpus 24GB -- python train.py --size 24GB\n",
    "-- torchrun trian.py": "there is no file trian.py; write train.py\n",
    "dry-run -- torchrun trian.py": "there is no file trian.py; write train.py\n",
    "gpt2 --data row.jsonl": "row.jsonl",
    "gpt2 --nvme 5": "--nvme '5' is not a size",
    "gpt2 --host 5": "--host '5' is not a part of a host",
    "gpt2 --software nope": "--software has no",
}


@pytest.mark.parametrize("line", [*(f"{QUESTION} {words}" for words in MISTAKES), *LINES])
def test_a_mistake_is_answered_with_what_to_type(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one line, before the machine is looked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    Path("recorded.json").write_text('{"zero_optimization": {"stage": 2}, "ds_advise": {}}')
    Path("model.json").write_text('{"model_type": "llama"}')
    Path("other.json").write_text('{"other": 1}')
    Path("empty.json").touch()
    Path("folder").mkdir()
    for name in ("train.py", "axolotl.yaml", "run.log", "rows.jsonl"):
        Path(name).write_text("x: 1\n")
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert (LINES.get(line) or MISTAKES[line.removeprefix(f"{QUESTION} ")]) in error
    assert error.count("\n") == 1 and len(error) < 400


@pytest.mark.parametrize("line", ["gpt2 --gpus 24GB --seq 8", "gpt2\xa0--gpus\xa024GB\xa0--seq\xa08"])
def test_a_line_in_one_word_is_divided(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of quotes around all of it, or spaces that no shell divides."""
    assert run([line]) == 2
    assert capsys.readouterr().err.endswith("write ds-advise gpt2 --gpus 24GB --seq 8\n")


def test_a_word_with_spaces_is_one_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpt2", "two words", "--gpus", "24GB"]) == 2
    assert capsys.readouterr().err.startswith("ds-advise: got unexpected extra argument (two words)")


def test_settings_change_the_recommended_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no strategy is named."""
    question = ["explain", "gpt2", "--gpus", "2x24GB", "--offline", "--json", "--set", "overlap_comm=no"]
    assert run(question) == 0
    shown = capsys.readouterr().out
    assert run([*question, "--strategy", "ddp"]) == 0
    assert capsys.readouterr().out == shown


def test_every_name_of_another_tool_leads_to_an_option_once() -> None:
    """The options exist, none of the names is an option itself, and none has two answers."""
    known = options_of(advise)
    names = [name for names in (*OTHER_NAMES.values(), *ADVICE.values()) for name in names.split()]
    assert len(names) == len(set(names)) > 120
    assert not {f"--{name.replace('_', '-')}" for name in names} & set(known)
    assert {written.split(" ")[0] for written in OTHER_NAMES} <= {*known, "--model", "--deadline", "--forget"}


def test_a_model_after_a_key_is_the_keys_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "overlap_comm", "gpt2", "--gpus", "24GB", "--offline"]) == 0
    assert "\n openai-community/gpt2, ddp" in capsys.readouterr().out


def test_an_error_on_a_terminal_has_its_fix_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In colours; elsewhere it is one line, however long."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(["gpt2", "--per-device-train-batch-size", "4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert run(["gpt2", "--per-device-train-batch-size", "4"]) == 2
    error = capsys.readouterr().err
    assert "\x1b[1;31mds-advise:" in error
    plain = re.sub(r"\x1b\[[\d;]*m", "", error)
    assert plain == "ds-advise: no such option\n  --per-device-train-batch-size\n  write --micro-batch 4\n"


@pytest.mark.parametrize("columns", [40, 64, 80])
def test_a_command_in_an_error_stays_on_one_line(columns: int) -> None:
    """It can be copied from a terminal of any width."""
    for command in (
        "ds-advise explain ds.json --model MODEL --gpus 2x24GB",
        "ds-advise --gpus 2x24GB -- torchrun train.py",
        "ds-advise compare old.json new.json",
        "ds-advise explain gpt2 --strategy zero2",
        'pip install "ds-advise[engine]"',
    ):
        lines = wrapped(f"ds-advise: this is not what the command can read; write {command}; or leave it out", columns)
        assert any(command in line for line in lines.splitlines())
        assert all(len(line) <= columns or command in line for line in lines.splitlines())
        assert re.sub(r"\n  ", " ", lines).endswith("leave it out")


def test_a_word_with_a_space_stays_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "my train.py"]) == 2
    assert "write ds-advise launch -- 'my train.py'\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["lint", "explain", "check", "from", ""])
def test_a_deepspeed_configuration_in_yaml_is_converted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No command reads one, so none is named: the message has the line that writes JSON."""
    Path("ds.yaml").write_text("train_micro_batch_size_per_gpu: 1\nzero_optimization:\n  stage: 2\n")
    assert run([*filter(None, [command]), "ds.yaml", *["--gpus", "2x24GB"] * (command in ("", "check"))]) == 2
    said = capsys.readouterr().err
    assert "ds.yaml is a DeepSpeed configuration in YAML, and DeepSpeed reads JSON; convert it: python -c" in said
    assert said.endswith(" < ds.yaml > ds.json\n")
    converted = said.partition("convert it: ")[2].strip().replace("python", sys.executable, 1)
    subprocess.run(["sh", "-c", converted], check=True)
    assert run(["lint", "ds.json"]) == 0


@pytest.mark.parametrize(("command", "kind"), [("lint", "a DeepSpeed configuration"), ("explain", "a model")])
def test_a_file_of_another_tool_is_named(
    command: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once."""
    reads = Mock(side_effect=detect_format)
    monkeypatch.setattr("ds_advise.advisor.importers.answer.detect_format", reads)
    Path("run.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 4\n")
    assert run([command, "run.yaml"]) == 2
    said = capsys.readouterr().err
    assert f"run.yaml is an accelerate configuration, not {kind}; write ds-advise from run.yaml" in said
    assert reads.call_count == 1


def test_a_script_given_to_lint_may_print_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    Path("make.py").write_text("print({})\n")
    assert run(["lint", "make.py"]) == 2
    assert "if it prints the configuration, python make.py | ds-advise lint -" in capsys.readouterr().err


def test_no_name_is_proposed_that_stands_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A file compared with itself answers nothing."""
    Path("ds_z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert run(["compare", "ds_z3.json", "ds_z4.json"]) == 2
    error = capsys.readouterr().err
    assert "ds_z4.json: no such file" in error and "ds_z3.json" not in error
    assert run(["lint", "ds_z4.json"]) == 2
    assert "write ds_z3.json" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_in_front_of_a_command_is_that_of_the_command(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([option, "why"]) == 0
    assert "Usage: ds-advise why " in capsys.readouterr().out
