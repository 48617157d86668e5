"""Compile the DeepSpeed extension named on the command line, in the folder $TORCH_EXTENSIONS_DIR."""

from __future__ import annotations

import sys

from deepspeed.accelerator import get_accelerator

get_accelerator().create_op_builder(sys.argv[1]).load()
