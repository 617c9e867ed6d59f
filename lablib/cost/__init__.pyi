# ruff: noqa: I001  (in reading order)
from .memory import memory_bound_time_s as memory_bound_time_s
from .matmul import matmul_flops as matmul_flops, matmul_time_s as matmul_time_s
from .attention import attention_time_s as attention_time_s
from .network import GroupNetwork as GroupNetwork
from .collective import (
    CollectiveCost as CollectiveCost,
    algorithms_for as algorithms_for,
    collective_cost as collective_cost,
)
from .exchange import exchange_cost as exchange_cost
from .regular_group import regular_collective_s as regular_collective_s
