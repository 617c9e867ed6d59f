"""Fused kernels in Triton, each next to a tiled reference in torch: bytes read, kept on chip and written.

elementwise_chain  a chain of element-wise operators, unfused and fused: bytes and seconds
tile_quantization  tiles and waves: the waste of a size, and better sizes
jit              a kernel written once: compiled on a GPU, interpreted on a CPU
launch_checks    checks of a launch before any program runs
interpreter      Triton's interpreter for one launch; addresses are checked
kernel_source    a kernel's source, changed so that Python can run it
accesses         reads and writes of each program, and the bytes
vector_add       the smallest kernel: one tile per program
bias_gelu        two operators in one kernel, without their sum in memory
softmax          one row per program; longer rows by online softmax
rms_norm         one pass over a row; the weight's gradient by partial sums
layer_norm       LayerNorm, with a mean and a bias
cross_entropy    the loss and its gradient, a tile of the vocabulary at a time
row_checks       checks and programs of row-wise kernels
matmul           a tiled matrix product and its epilogue
matmul_plan      the order of its programs and the numbers that they move
attention_plan   pairs of a tile of queries and a tile of keys
flash_parts      common parts of its kernels
flash_forward    FlashAttention's loop: online softmax
flash_backward   its gradients, with recomputed scores
flash_attention  both as one function of q, k and v
attention_bytes  bytes, FLOPs and memory of attention
torch_compiler   queries of torch's compilers, with its private names
graph_breaks     where torch.compile cuts a function into several graphs
recompiles       guards, and compilation after one fails
compilers        one function in eager, TorchScript, torch.compile, JAX
launch_overhead  steps limited by the host; CUDA graphs and mega-kernels
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
