# ruff: noqa: I001  (in reading order)
from .base import BatchedOptimizer as BatchedOptimizer
from .adamw import AdamW as AdamW, new_moments as new_moments
from .adafactor import Adafactor as Adafactor
from .lamb import LAMB as LAMB
from .lion import Lion as Lion, expected_sign as expected_sign
from .sophia import SophiaG as SophiaG, sampled_label_loss as sampled_label_loss
from .newton_schulz import newton_schulz as newton_schulz, singular_values_after as singular_values_after
from .muon import Muon as Muon
from .blockwise import (
    codebook as codebook,
    blocks as blocks,
    quantize as quantize,
    dequantize as dequantize,
    outlier_errors as outlier_errors,
)
from .adam8bit import Adam8bit as Adam8bit
from .adam_bf16 import AdamBF16 as AdamBF16, stochastic_bf16 as stochastic_bf16
from .soap import SOAP as SOAP
from .projection import (
    strongest_directions as strongest_directions,
    project as project,
    project_back as project_back,
    lost_share as lost_share,
)
from .galore import GaLore as GaLore
from .four_bits import quantize_4bit as quantize_4bit, dequantize_4bit as dequantize_4bit
from .q_galore import QGaLore as QGaLore
from .memory import OPTIMIZERS as OPTIMIZERS, state_bytes as state_bytes
from .in_backward import step_in_backward as step_in_backward
from .effects import (
    singular_values as singular_values,
    mean_steps as mean_steps,
    block_errors as block_errors,
    lost_shares as lost_shares,
)
