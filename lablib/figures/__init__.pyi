# ruff: noqa: I001  (in reading order)
from .style import LOOKS as LOOKS, kind_of_phase as kind_of_phase
from .run.timeline import figure_timeline as figure_timeline
from .run.reconcile import figure_reconcile as figure_reconcile
from .run.memory import figure_memory as figure_memory
from .run.allocator import figure_allocator as figure_allocator
from .plans.pipeline import figure_pipeline as figure_pipeline
from .plans.pipeline_simulation import figure_pipeline_simulation as figure_pipeline_simulation
from .run.ranks import figure_traffic as figure_traffic
from .run.traffic_matrix import figure_traffic_matrix as figure_traffic_matrix
from .run.roofline import figure_roofline as figure_roofline
from .plans.waterfall import figure_waterfall as figure_waterfall
from .plans.communication import figure_communication as figure_communication
from .plans.plan_memory import figure_plan_memory as figure_plan_memory
from .run.step_memory import figure_step_memory as figure_step_memory
from .plans.plans import figure_plans as figure_plans, figure_predictions as figure_predictions
from .run.waits import figure_waits as figure_waits
from .run.metrics import figure_metrics as figure_metrics
from .plans.validation import validation_svg as validation_svg
from .lines import (
    figure_lines as figure_lines,
    figure_collective_cost as figure_collective_cost,
    figure_scaling as figure_scaling,
    figure_idle_shares as figure_idle_shares,
)
from .plans.batch_splits import figure_batch_splits as figure_batch_splits
from .plans.tensor_times import figure_tensor_times as figure_tensor_times
from .plans.topology import DrawnLink as DrawnLink, Node as Node, figure_topology as figure_topology
from .plans.networks import figure_network as figure_network
from .describe import describe as describe, table as table
from .show import show as show, with_drawn_figures as with_drawn_figures
