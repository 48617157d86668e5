"""Gradients on the GPU, the buckets they are reduced in, and what leaves them for the host: backward pass and step."""

from ..optimizers import OptimizerSpec
from ..plan import Plan
from .gradient_memory import GradientMemory
from .gradients_stage_0 import StageZero
from .gradients_stage_3 import StageThree
from .gradients_stages_1_2 import StageOne, StageTwo
from .trainable import ShardedTensors



def gradient_memory(sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> GradientMemory:
    """Gradients, buckets, staging and step temporaries of one GPU."""
    return (StageZero, StageOne, StageTwo, StageThree)[plan.zero_stage](sharded, plan, optimizer, local_ranks)
