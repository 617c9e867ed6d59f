"""The measured peak: by hand, and of a training step beside the simulator's memory tracker."""

import torch

from lablib import launch
from lablib.memory.measured_peak import measured_peak_bytes
from lablib.models import GPT, GPTConfig, next_token_loss


def test_what_is_released_counts_no_more():
    def program():
        x = torch.zeros(1000)  # 4,000 bytes
        y = torch.zeros(1000)  # 8,000
        del x
        z = torch.zeros(600, dtype=torch.float64)  # 4,000 + 4,800
        del y
        return z, torch.zeros(900)  # 4,800 + 3,600

    assert measured_peak_bytes(program) == 8800
    assert measured_peak_bytes(lambda: None) == 0


def test_a_training_step_holds_what_the_tracker_says():
    def step():
        model = GPT(GPTConfig(num_layers=2, d_model=64, num_heads=2, vocab_size=64, max_seq_len=32))
        tokens = torch.zeros(4, 32, dtype=torch.long, device=model.head.weight.device)
        for part in tokens.split(2):
            next_token_loss(model(part), part).backward()

    assert measured_peak_bytes(step) == launch(step, ranks=1, fidelity="shapes").memory.peak_bytes(0)
