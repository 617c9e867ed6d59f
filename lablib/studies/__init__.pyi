# ruff: noqa: I001  (in reading order)
from .data_parallel_scaling import (
    StepProfile as StepProfile,
    StepTime as StepTime,
    profile_step as profile_step,
    predict_step as predict_step,
    scaling_efficiency as scaling_efficiency,
)
from .published_five import PublishedRuns as PublishedRuns, naive_step_s as naive_step_s
from .tensor_time import (
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
from .expert_against_dense import (
    OLMOE as OLMOE,
    AgainstDense as AgainstDense,
    against_dense as against_dense,
    dense_of_equal_flops as dense_of_equal_flops,
    dense_of_equal_parameters as dense_of_equal_parameters,
    rows_of_an_expert as rows_of_an_expert,
)
from .expert_runs import ExpertRun as ExpertRun, recorded_expert_runs as recorded_expert_runs
from .placement import PlacedMesh as PlacedMesh, place as place, placements as placements, far_bytes as far_bytes
from .placement_bytes import (
    StepCall as StepCall,
    step_calls as step_calls,
    StepTraffic as StepTraffic,
    step_traffic as step_traffic,
)
from .strategy_choice import (
    StrategyClaim as StrategyClaim,
    StrategyRow as StrategyRow,
    StrategyVerdict as StrategyVerdict,
    strategies as strategies,
    strategy_verdicts as strategy_verdicts,
)
from .batches import (
    recorded_steps as recorded_steps,
    recorded_noise as recorded_noise,
    recorded_large_batch as recorded_large_batch,
    recorded_schedules as recorded_schedules,
    recorded_coordinates as recorded_coordinates,
    recorded_rates as recorded_rates,
)
from .precision import recorded_recipe_runs as recorded_recipe_runs
from .compression_pays import (
    CompressedStep as CompressedStep,
    compressed_step as compressed_step,
    speedup_of_compression as speedup_of_compression,
    break_even_bandwidth as break_even_bandwidth,
    speedup_curves as speedup_curves,
)
from .compression import CompressedRun as CompressedRun, recorded_runs as recorded_runs
from .step_memory import StepMemory as StepMemory, memory_of_step as memory_of_step
from .layer_cost import LayerCost as LayerCost, layer_cost as layer_cost
from .context_cost import (
    context_cost as context_cost,
    fair_share_s as fair_share_s,
    context_efficiencies as context_efficiencies,
)
from .expert_cost import PRODUCTS as PRODUCTS, expert_cost as expert_cost
from .optimizers import recorded_results as recorded_results
from .zero_latency import (
    Zero3Time as Zero3Time,
    unit_params as unit_params,
    zero3_time as zero3_time,
    smallest_batch as smallest_batch,
)
from .thresholds import RunNumbers as RunNumbers, run_numbers as run_numbers, kept_thresholds as kept_thresholds
