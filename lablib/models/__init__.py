"""A plain GPT and a plain Llama without parallelism, and a catalogue of published sizes. Read `gpt.py` first.

sizes               sizes of a GPT, and its parameter count
gpt                 the GPT
llama_sizes         sizes of a Llama
llama               the same with RMSNorm, rotary positions, grouped heads and a gated MLP
catalogue           sizes to train here, by name
transformer         published architectures: attention, experts, latents, windows
published           published sizes, by name
transformer_sizes   parameters of a published architecture
transformer_flops   its FLOPs per token and step
scaling_law         loss of a training from parameters and tokens
training_compute    FLOPs of a whole training: 6 N D
drawing             random numbers on the device of a model
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
