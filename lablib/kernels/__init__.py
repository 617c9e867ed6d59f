"""Fused kernels in Triton, each beside a tiled reference in plain torch: what a GPU reads, keeps on chip and writes.

elementwise_chain  bytes decide: a chain of element-wise operators, unfused and fused
jit              a kernel written once: compiled on a GPU, interpreted on a CPU
interpreter      Triton's interpreter for one launch; addresses are checked
accesses         what each program reads and writes, and the bytes
matmul           a tiled matrix product and its epilogue
matmul_plan      the order of its programs and the numbers that they move
attention_plan   which tile of queries meets which tile of keys
flash_parts      what its loops share
flash_forward    FlashAttention's loop: online softmax
flash_backward   its gradients, with the scores made again
flash_attention  both as one function of q, k and v
attention_bytes  what attention moves, computes and keeps
"""
