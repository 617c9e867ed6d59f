"""Fused kernels in Triton, each next to a tiled reference in torch: bytes read, kept on chip and written.

elementwise_chain  bytes decide: a chain of element-wise operators, unfused and fused
tile_quantization  tiles and waves: what a size wastes, and which are better
jit              a kernel written once: compiled on a GPU, interpreted on a CPU
launch_checks    what a launch refuses before any program runs
interpreter      Triton's interpreter for one launch; addresses are checked
kernel_source    a kernel's source, changed so that Python can run it
accesses         what each program reads and writes, and the bytes
vector_add       the smallest kernel: a tile a program
bias_gelu        two operators in one: what was between them is never in memory
softmax          a row a program; longer rows by online softmax
rms_norm         one reading of a row; the weight's gradient by partial sums
layer_norm       the same, with a mean and a bias
cross_entropy    the loss and its gradient, a tile of the vocabulary at a time
row_checks       what kernels refuse that hold rows
matmul           a tiled matrix product and its epilogue
matmul_plan      the order of its programs and the numbers that they move
attention_plan   which tile of queries meets which tile of keys
flash_parts      what its loops share
flash_forward    FlashAttention's loop: online softmax
flash_backward   its gradients, with the scores made again
flash_attention  both as one function of q, k and v
attention_bytes  what attention moves, computes and keeps
torch_compiler   torch's compilers as the next files ask them: its private names
graph_breaks     where torch.compile cuts a function into several graphs
recompiles       guards, and what is compiled again when one fails
compilers        the same function in eager, TorchScript, torch.compile, JAX
launch_overhead  when the host is the limit; CUDA graphs and mega-kernels
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
