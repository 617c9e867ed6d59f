"""Pictures of what a run did and of what a formula says: `figure_x(data)` returns a plotly figure, and does no more.

Reading order: what is shared, then the figures, then how they reach the reader.
"""

# ruff: noqa: I001  (in reading order)
from lablib.figures.style import LOOKS as LOOKS
from lablib.figures.style import kind_of_phase as kind_of_phase
from lablib.units import format_quantity as format_quantity
from lablib.units import unit_for as unit_for
from lablib.figures.timeline import figure_timeline as figure_timeline
from lablib.figures.reconcile import figure_reconcile as figure_reconcile
from lablib.figures.memory import figure_memory as figure_memory
from lablib.figures.pipeline import figure_pipeline as figure_pipeline
from lablib.figures.pipeline_simulation import figure_pipeline_simulation as figure_pipeline_simulation
from lablib.figures.peaks import figure_peaks as figure_peaks
from lablib.figures.traffic import figure_traffic as figure_traffic
from lablib.figures.traffic_matrix import figure_traffic_matrix as figure_traffic_matrix
from lablib.figures.traffic_matrix import figure_traffic_matrices as figure_traffic_matrices
from lablib.figures.roofline import figure_roofline as figure_roofline
from lablib.figures.waterfall import figure_waterfall as figure_waterfall
from lablib.figures.waterfall import figure_waterfalls as figure_waterfalls
from lablib.figures.communication import figure_communication as figure_communication
from lablib.figures.plan_memory import figure_plan_memory as figure_plan_memory
from lablib.figures.step_memory import figure_step_memory as figure_step_memory
from lablib.figures.plans import figure_plans as figure_plans
from lablib.figures.plans import figure_predictions as figure_predictions
from lablib.figures.waits import figure_waits as figure_waits
from lablib.figures.collectives import figure_collective_cost as figure_collective_cost
from lablib.figures.collectives import figure_effective_bandwidth as figure_effective_bandwidth
from lablib.figures.scaling import figure_scaling as figure_scaling
from lablib.figures.validation import figure_validation as figure_validation
from lablib.figures.validation_picture import validation_svg as validation_svg
from lablib.figures.lines import figure_lines as figure_lines
from lablib.figures.batch_splits import figure_batch_splits as figure_batch_splits
from lablib.figures.compression_pays import figure_when_compression_pays as figure_when_compression_pays
from lablib.figures.spread import figure_spread as figure_spread
from lablib.figures.schedules import figure_schedules as figure_schedules
from lablib.figures.steps_law import figure_steps_law as figure_steps_law
from lablib.figures.widths import figure_coordinates as figure_coordinates
from lablib.figures.widths import figure_rates as figure_rates
from lablib.figures.packing import figure_packing as figure_packing
from lablib.figures.packing import figure_block_fill as figure_block_fill
from lablib.figures.time_memory import figure_time_memory as figure_time_memory
from lablib.figures.exponents import figure_exponents as figure_exponents
from lablib.figures.optimizers import figure_differences as figure_differences
from lablib.figures.optimizers import figure_loss_and_bytes as figure_loss_and_bytes
from lablib.figures.optimizers import figure_loss_curves as figure_loss_curves
from lablib.figures.compression import figure_loss_against_bytes as figure_loss_against_bytes
from lablib.figures.compression import figure_loss_over_h as figure_loss_over_h
from lablib.figures.updates import figure_blocks as figure_blocks
from lablib.figures.updates import figure_projection as figure_projection
from lablib.figures.updates import figure_sign_of_noise as figure_sign_of_noise
from lablib.figures.updates import figure_singular_values as figure_singular_values
from lablib.figures.loading import figure_idle_shares as figure_idle_shares
from lablib.figures.loading import figure_loading as figure_loading
from lablib.figures.tensor_times import figure_tensor_times as figure_tensor_times
from lablib.figures.equal_memory import figure_equal_memory as figure_equal_memory
from lablib.figures.tiles import figure_tiles as figure_tiles
from lablib.figures.staircase import figure_staircase as figure_staircase
from lablib.figures.topology import Edge as Edge
from lablib.figures.topology import Node as Node
from lablib.figures.topology import figure_topology as figure_topology
from lablib.figures.networks import figure_network as figure_network
from lablib.figures.describe import describe as describe
from lablib.figures.describe import table as table
from lablib.figures.show import show as show
from lablib.figures.export import with_drawn_figures as with_drawn_figures
