"""Train a GPT from a configuration on the ranks of torchrun or `lab sim`.

torchrun --nproc-per-node 4 examples/train.py examples/train.toml optimizer.lr=1e-3
lab sim --ranks 4 examples/train.py examples/train.toml optimizer.lr=1e-3
"""

import sys

from lablib.train.torchrun import main

main(sys.argv[1:])
