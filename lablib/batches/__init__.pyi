# ruff: noqa: I001  (in reading order)
from .batch import BatchSize as BatchSize
from .accumulation import (
    summed_loss as summed_loss,
    count_tokens as count_tokens,
    accumulate_mean_of_means as accumulate_mean_of_means,
    accumulate as accumulate,
    backward_all as backward_all,
)
from .clipping import clip_grad_norm_ as clip_grad_norm_, named_nonfinite as named_nonfinite
from .schedules import (
    linear_decay as linear_decay,
    cosine_decay as cosine_decay,
    square_root_decay as square_root_decay,
    exponential_decay as exponential_decay,
    warmup_stable_decay as warmup_stable_decay,
    cosine as cosine,
    linear as linear,
    constant as constant,
    deepspeed_warmup as deepspeed_warmup,
)
from .noise_scale import (
    GradientNoise as GradientNoise,
    exact_noise as exact_noise,
    naive_noise as naive_noise,
    estimate_noise as estimate_noise,
    estimate_from_parts as estimate_from_parts,
    average_noise as average_noise,
    StepsLaw as StepsLaw,
    fit_steps_law as fit_steps_law,
)
from .large_batch import linear_rate as linear_rate, square_root_rate as square_root_rate
from .batch_rules import (
    kaplan_critical_batch as kaplan_critical_batch,
    deepseek_batch as deepseek_batch,
    step_law_batch as step_law_batch,
)
from .mup import (
    apply_mup_ as apply_mup_,
    mup_groups as mup_groups,
    at_width as at_width,
    coordinate_check as coordinate_check,
)
from .packing import (
    Packing as Packing,
    one_per_block as one_per_block,
    first_fit as first_fit,
    best_fit as best_fit,
    PackedBlocks as PackedBlocks,
    fill_blocks as fill_blocks,
    cu_seqlens as cu_seqlens,
)
from .packed_attention import (
    document_mask as document_mask,
    attend_by_mask as attend_by_mask,
    attend_by_length as attend_by_length,
    attend_to_all as attend_to_all,
    packed_logits as packed_logits,
    masked_attention_flops as masked_attention_flops,
    variable_length_attention_flops as variable_length_attention_flops,
)
