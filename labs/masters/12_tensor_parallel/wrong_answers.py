"""Wrong answers to lab 12: tensor parallel, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "tensor_mlp": [
        (
            "returns nothing",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    F.gelu(x @ up + up_bias, approximate="tanh") @ down
""",
            "None: is there a return?",
        ),
        (
            "no f: x's gradient is this rank's part",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the gradient of",
        ),
    ],
    "sequence_mlp": [
        (
            "returns nothing",
            "def sequence_mlp(x, gain, up, up_bias, down, down_bias):\n    return None\n",
            "None: is there",
        ),
        (
            "forgets the sum of gain's gradient",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    down_bias = with_gradient(down_bias, same, all_reduced)
    normed = F.rms_norm(x, x.shape[1:], gain)
    whole = with_gradient(normed, gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the gradient of gain",
        ),
    ],
    "sharded_loss": [
        ("returns nothing", "def sharded_loss(logits, targets, first):\n    return None\n", "None: is there a return?"),
        (
            "the loss of its own words alone",
            """
def sharded_loss(logits, targets, first):
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    return F.cross_entropy(logits, column)
""",
            "the loss is the mean over tokens",
        ),
    ],
    "draw_shard": [
        (
            "each rank draws its rows from the seed",
            """
def draw_shard(rows, columns, seed):
    room = -(-rows // dist.get_world_size())
    mine = max(0, min(room, rows - dist.get_rank() * room))
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(mine, columns, generator=generator, dtype=torch.float64, device="cpu")
""",
            "the same numbers as rank 0",
        ),
        (
            "each rank draws its rows from seed + rank",
            """
def draw_shard(rows, columns, seed):
    room = -(-rows // dist.get_world_size())
    mine = max(0, min(room, rows - dist.get_rank() * room))
    generator = torch.Generator("cpu").manual_seed(seed + dist.get_rank())
    return torch.randn(mine, columns, generator=generator, dtype=torch.float64, device="cpu")
""",
            "this rank's rows of what one device draws",
        ),
    ],
}
