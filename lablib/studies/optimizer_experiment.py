"""The experiment of the optimizer trials: model, text, schedule and length, and one run of it.

A GPT of 2 layers and width 64 (120,576 parameters) on bytes of Python's standard library, 8 sequences of 64 bytes per
step, 400 steps, a linear warmup over 120 of them and a cosine to a tenth. The warmup is long so that seeds agree: with
30 of 300 steps, at the rate that was AdamW's best on one seed, another ended 0.25 nats higher.

    run("adamw", 4e-3, 0.0, seed=1)                     all of it: 5 to 10 seconds of one core
    run("adamw", 4e-3, 0.0, seed=1, num_steps=60)       its first 60 steps

Cost: 6 FLOPs per parameter and token, so 0.15 TFLOP per run; Sophia a tenth more.
Source: studies/optimizer_trial.py; model, text and schedule: lablib.models, lablib.data, lablib.batches.schedules.
Simplified: 1.7 tokens per parameter, where 20 are usual: this is the beginning of a training.
"""

from lablib.batches.schedules import cosine
from lablib.data import batches, load_corpus, train_val_split
from lablib.models import GPT, GPTConfig
from lablib.signature import checked
from lablib.studies.batches import held_out
from lablib.studies.optimizer_trial import Evaluation, Training, train

SEQ_LEN, BATCH_SIZE, NUM_STEPS, WARMUP, FINAL, LOOK_EVERY = 64, 8, 400, 120, 0.1, 50
MODEL = GPTConfig(2, 64, 2, vocab_size=256, max_seq_len=SEQ_LEN)


@checked
def start(optimizer: str, lr: float, weight_decay: float, seed: int) -> Training:
    """A run before its first step. The seed sets the initial weights, the same for every optimizer."""
    model = GPT(MODEL, seed=seed)
    return Training(model, optimizer, lr, weight_decay, lambda step: cosine(step, NUM_STEPS, WARMUP, FINAL), seed)


@checked
def run(
    optimizer: str, lr: float, weight_decay: float, seed: int, num_steps: int = NUM_STEPS, look_every: int = LOOK_EVERY
) -> tuple[Training, list[Evaluation]]:
    """One run, or its beginning: the final training state, and the losses of 64 held-out sequences during the run.

    Arguments:
        optimizer: the name of its file.
        lr, weight_decay: of it; `recorded_results()` has the best found.
        seed: of weights and of the order of the text.
        num_steps: of the 400; the schedule is still for all 400.
        look_every: steps between evaluations.
    """
    training = start(optimizer, lr, weight_decay, seed)
    text = batches(train_val_split(load_corpus())[0], BATCH_SIZE, SEQ_LEN, seed)
    return training, train(training, text, held_out(64), num_steps, look_every)
