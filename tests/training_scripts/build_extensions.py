"""Compile the DeepSpeed extensions named on the command line, in the folder $TORCH_EXTENSIONS_DIR."""

from __future__ import annotations

import sys

from deepspeed.accelerator import get_accelerator

for builder in sys.argv[1:]:
    get_accelerator().create_op_builder(builder).load()
