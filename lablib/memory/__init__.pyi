# ruff: noqa: I001  (in reading order)
from .saved_tensors import (
    SavedTensor as SavedTensor,
    saved_tensors as saved_tensors,
    activation_bytes as activation_bytes,
    table as table,
)
from .checkpointing import (
    Segment as Segment,
    Plan as Plan,
    keep_all as keep_all,
    checkpoint_every as checkpoint_every,
    checkpoint_sqrt as checkpoint_sqrt,
    checkpoint_first as checkpoint_first,
    run as run,
    peak_bytes as peak_bytes,
    recomputed as recomputed,
    checkpoint_operators as checkpoint_operators,
    checkpoint_modules as checkpoint_modules,
)
from .optimal_checkpointing import (
    ChainLayer as ChainLayer,
    optimal_plan as optimal_plan,
    least_budget_bytes as least_budget_bytes,
    run_plan as run_plan,
)
from .packed_memory import packed_memory as packed_memory, is_dense as is_dense
from .activation_compression import (
    compress as compress,
    decompress as decompress,
    compressed_activations as compressed_activations,
)
from .offload import naive_offload as naive_offload, offload as offload, exposed_s as exposed_s
from .ways_to_fit import (
    LayerWork as LayerWork,
    Way as Way,
    price_layers as price_layers,
    layer_costs as layer_costs,
    ways_to_fit as ways_to_fit,
)
from .linear_cross_entropy import (
    linear_cross_entropy as linear_cross_entropy,
    chunked_linear_cross_entropy as chunked_linear_cross_entropy,
    fused_linear_cross_entropy as fused_linear_cross_entropy,
)
from .training_step import (
    checkpoint_layers as checkpoint_layers,
    MasterWeights as MasterWeights,
    training_step as training_step,
)
from .measured_peak import measured_peak_bytes as measured_peak_bytes
