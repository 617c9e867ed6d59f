"""Communication of simulated ranks: `torch.distributed` on the engine's groups and messages.

process_group   the `ProcessGroup` of the simulator: collectives, messages, coalesced calls
collectives     its collectives, one method each
messages        its sends and receives
agreement       checks of arguments, on one rank and over all
exchange        the effect of each collective on its tensors
reduce          reductions over ranks, in rank order
delivery        transfer of data, into buffers that are filled when their rank waits
work, future    handles: `wait` gives up the turn, then joins the streams
pending         unfinished results: the first operator that uses one waits
in_flight       reads of tensors in flight, and writes to them
unwaited        handles that the program never waits for, results used too early, outputs that overlap inputs
store           the key-value store
group_labels    unique names of groups
group_orders    the order of `new_group` calls, compared over ranks
named_backends  groups with the name of a torch backend
nccl_limits     calls of torch.distributed that NCCL lacks
nccl_order      unbatched messages that would hang on NCCL
torch_functions functions of torch.distributed that a run replaces
"""
