# ruff: noqa: I001  (in reading order)
from .data_parallel_scaling import (
    StepProfile as StepProfile,
    StepTime as StepTime,
    profile_step as profile_step,
    predict_step as predict_step,
    scaling_efficiency as scaling_efficiency,
)
from .zero_claims import (
    GB as GB,
    PARTS as PARTS,
    PRECISIONS as PRECISIONS,
    Claim as Claim,
    bytes_a_rank as bytes_a_rank,
    largest_saving as largest_saving,
    ranks_for_saving as ranks_for_saving,
    ranks_to_fit as ranks_to_fit,
    largest_model as largest_model,
    readings as readings,
    claims as claims,
)
from .zero3_published import TOKENS as TOKENS, ROWS as ROWS, compared as compared
from .tensor_time import (
    WAYS as WAYS,
    TensorLayerTime as TensorLayerTime,
    tensor_layer_time as tensor_layer_time,
    tensor_times as tensor_times,
)
from .context_published import (
    PublishedRing as PublishedRing,
    PUBLISHED_RINGS as PUBLISHED_RINGS,
    counted_efficiencies as counted_efficiencies,
    predicted_efficiencies as predicted_efficiencies,
)
from .expert_best import place_best as place_best
from .expert_overlap_time import overlapped_time as overlapped_time
from .expert_rebalance import Rebalanced as Rebalanced, rebalance_over_run as rebalance_over_run
from .expert_against_dense import (
    AgainstDense as AgainstDense,
    against_dense as against_dense,
    dense_of_equal_flops as dense_of_equal_flops,
    dense_of_equal_parameters as dense_of_equal_parameters,
    rows_of_an_expert as rows_of_an_expert,
    grouped_shares as grouped_shares,
    fewest_rows as fewest_rows,
)
from .expert_published import (
    OLMOE as OLMOE,
    PublishedMixture as PublishedMixture,
    PUBLISHED_MIXTURES as PUBLISHED_MIXTURES,
    predicted_rates as predicted_rates,
)
from .expert_runs import (
    METHODS as METHODS,
    ExpertRun as ExpertRun,
    recorded_expert_runs as recorded_expert_runs,
    expert_run as expert_run,
)
from .placement import PlacedMesh as PlacedMesh, place as place, placements as placements, far_bytes as far_bytes
from .placement_bytes import (
    LEVELS as LEVELS,
    StepCall as StepCall,
    step_calls as step_calls,
    StepTraffic as StepTraffic,
    step_traffic as step_traffic,
)
from .strategy_choice import (
    StrategyClaim as StrategyClaim,
    CLAIMS as CLAIMS,
    StrategyRow as StrategyRow,
    StrategyVerdict as StrategyVerdict,
    strategies as strategies,
    strategy_verdicts as strategy_verdicts,
    communication_holds_on as communication_holds_on,
    efficiencies as efficiencies,
)
from .batches import (
    SEQ_LEN as SEQ_LEN,
    NARROW as NARROW,
    RECORDS as RECORDS,
    SCHEDULES as SCHEDULES,
    loss_of as loss_of,
    schedule_run as schedule_run,
    recorded_steps as recorded_steps,
    recorded_noise as recorded_noise,
    recorded_large_batch as recorded_large_batch,
    recorded_schedules as recorded_schedules,
    recorded_coordinates as recorded_coordinates,
    recorded_rates as recorded_rates,
)
from .precision import (
    RECIPE_NAMES as RECIPE_NAMES,
    CONFIG as CONFIG,
    recipe_losses as recipe_losses,
    model_in as model_in,
    recorded_recipe_runs as recorded_recipe_runs,
    excess_losses as excess_losses,
)
from .optimizer_experiment import start as start, run as run
from .optimizer_choice import choose as choose, state_of as state_of
from .compression_pays import (
    CompressedStep as CompressedStep,
    compressed_step as compressed_step,
    speedup_of_compression as speedup_of_compression,
    break_even_bandwidth as break_even_bandwidth,
    speedup_curves as speedup_curves,
)
from .compression import CompressedRun as CompressedRun, recorded_runs as recorded_runs
from .context_cost import (
    ContextTime as ContextTime,
    context_time as context_time,
    context_times as context_times,
    fair_share_s as fair_share_s,
    context_efficiencies as context_efficiencies,
)
from .expert_cost import ExpertTime as ExpertTime, expert_time as expert_time, expert_times as expert_times
from .optimizer_search import FACTOR as FACTOR, best_of_means as best_of_means, search as search
from .optimizer_trial import (
    CURVATURE_EVERY as CURVATURE_EVERY,
    kinds as kinds,
    make_optimizers as make_optimizers,
    Training as Training,
    held_out_loss as held_out_loss,
)
from .optimizers import (
    PUBLISHED as PUBLISHED,
    Result as Result,
    Difference as Difference,
    difference as difference,
    recorded_results as recorded_results,
    about as about,
    within_noise as within_noise,
    verdicts as verdicts,
)
from .zero_latency import (
    GROUPINGS as GROUPINGS,
    Zero3Time as Zero3Time,
    unit_params as unit_params,
    zero3_time as zero3_time,
    smallest_batch as smallest_batch,
    step_s as step_s,
)
