# ruff: noqa: I001  (in reading order)
from .formats import (
    Format as Format,
    FP32 as FP32,
    TF32 as TF32,
    BF16 as BF16,
    FP16 as FP16,
    E5M2 as E5M2,
    E4M3 as E4M3,
    E2M1 as E2M1,
    E8M0 as E8M0,
    FORMATS as FORMATS,
    all_values as all_values,
)
from .exponents import (
    ExponentCounts as ExponentCounts,
    exponent_counts as exponent_counts,
    GradientExponents as GradientExponents,
)
from .rounding import ROUNDINGS as ROUNDINGS, round_to as round_to, round_by_table as round_by_table
from .running_sum import running_sum as running_sum, stalls_at as stalls_at
from .loss_scaling import (
    ScaleRule as ScaleRule,
    static_scale as static_scale,
    deepspeed_rule as deepspeed_rule,
    LossScaler as LossScaler,
    unscale as unscale,
)
from .mixed_precision import MixedPrecision as MixedPrecision, TextRun as TextRun, train_on_text as train_on_text
from .savings import held_bytes as held_bytes, training_steps as training_steps
from .product_speed import product_speeds as product_speeds, product_time_s as product_time_s
from .equal_loss import SpeedClaim as SpeedClaim, steps_to_loss as steps_to_loss, speed_claim as speed_claim
from .autocast import (
    RULES as RULES,
    OPERATORS as OPERATORS,
    autocast_casts as autocast_casts,
    find_rule as find_rule,
    autocast as autocast,
    COUNTERPARTS as COUNTERPARTS,
)
from .block_scaling import (
    Recipe as Recipe,
    RECIPES as RECIPES,
    find_recipe as find_recipe,
    quantize as quantize,
    DelayedScale as DelayedScale,
)
from .hadamard import hadamard_matrix as hadamard_matrix, hadamard_transform as hadamard_transform
from .quantized_linear import (
    LinearRecipe as LinearRecipe,
    LINEAR_RECIPES as LINEAR_RECIPES,
    find_linear_recipe as find_linear_recipe,
    QuantizedLinear as QuantizedLinear,
    quantize_linears as quantize_linears,
)
from .int4_training import (
    split_bits as split_bits,
    sampling_probabilities as sampling_probabilities,
    Int4Linear as Int4Linear,
)
from .recipe_speed import linear_step_time_s as linear_step_time_s, quantizing_time_s as quantizing_time_s
from .best_format import best_format as best_format, find_device as find_device
