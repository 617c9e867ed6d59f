"""Real ranks on GPUs.

found            GPUs for NCCL, or a sentence about what is missing
sharing          several ranks on one GPU
warm_up          first-use work of a GPU, before any measurement
warm_up_kernels  kernels that start each profiler session
kernels          kernels of a rank and the operators that launched them
issued           the recorded call of a profiler event
batches          coalesced calls
under_way        communications that are not complete
message_circles  messages that wait for each other
kernel_notes     a note where the profiler missed kernels
memory           memory of a rank's programs
errors           errors that a GPU reports late
"""
