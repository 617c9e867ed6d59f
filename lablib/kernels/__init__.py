"""Kernels in tiles: what a GPU reads, keeps on chip and writes.

matmul           a tiled matrix product, its epilogue and the order of its programs
attention_plan   which tile of queries meets which tile of keys
flash_forward    FlashAttention's loop: online softmax
flash_backward   its gradients, with the scores made again
flash_attention  both as one function of q, k and v
attention_bytes  what attention moves, computes and keeps
"""
