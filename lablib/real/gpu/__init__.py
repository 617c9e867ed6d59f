"""Real ranks on GPUs.

sharing          GPUs for NCCL, or an error that names the missing part; several ranks on one GPU
warm_up          first-use work of a GPU, before any measurement
kernels          kernels of a rank and the operators that launched them
batches          coalesced calls
under_way        incomplete communications; errors that a GPU reports late
message_circles  circular waits of messages
kernel_notes     a note where the profiler missed kernels
memory           memory of a rank's programs
"""
