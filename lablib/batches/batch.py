"""The size of a batch: micro-batch, accumulation and data ranks multiply to the global batch.

One step of the optimizer uses the gradient of a global batch of B sequences. A device holds the activations of m of
them at a time, a micro-batch; it works on `num_accumulations` of these one after another and adds their gradients up;
and `data_ranks` devices do so in parallel:

    B = micro_batch x num_accumulations x data_ranks            sequences per step
    B x seq_len                                                 tokens per step

So the same B, and the same training, fits one device or a thousand, with different memory and time.

Cost: activations grow with `micro_batch`; seconds with `micro_batch x num_accumulations`; bytes sent with neither, as
gradients are reduced once per step. Sequential passes per step: `num_accumulations`.
Source: the arithmetic of DeepSpeed's configuration (`train_batch_size`, `train_micro_batch_size_per_gpu`,
`gradient_accumulation_steps`) and of Megatron-LM's (`--global-batch-size`, `--micro-batch-size`).
Simplified: every micro-batch and every rank has the same number of sequences; `accumulation.py` does not need this.
"""

from dataclasses import dataclass

from lablib.signature import Checked, Count


@dataclass(frozen=True, slots=True)
class BatchSize(Checked):
    """A global batch and its parts."""

    micro_batch: Count  # sequences that one device works on at a time
    num_accumulations: Count = 1  # micro-batches of one device per step, one after another
    data_ranks: Count = 1  # devices that work in parallel on different sequences

    @property
    def global_batch(self) -> int:
        """Sequences B of a step."""
        return self.micro_batch * self.num_accumulations * self.data_ranks

    @property
    def local_batch(self) -> int:
        """Sequences of a step on one rank."""
        return self.micro_batch * self.num_accumulations

    def tokens(self, seq_len: int) -> int:
        """Tokens of a step, of sequences of `seq_len`."""
        return self.global_batch * seq_len
