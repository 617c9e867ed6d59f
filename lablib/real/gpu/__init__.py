"""Real ranks on GPUs.

found            GPUs for NCCL, or an error that names the missing part
sharing          several ranks on one GPU
warm_up          first-use work of a GPU, before any measurement
kernels          kernels of a rank and the operators that launched them
batches          coalesced calls
under_way        incomplete communications
message_circles  circular waits of messages
kernel_notes     a note where the profiler missed kernels
memory           memory of a rank's programs
errors           errors that a GPU reports late
"""
