# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
"""A small language model, trained the nanoGPT way: globals for settings, overridden by exec; AMP; accumulation."""

import math
import os
import time
from contextlib import nullcontext

import torch
from model import GPT, GPTConfig
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 4
log_interval = 1
eval_iters = 2
gradient_accumulation_steps = 8
batch_size = 2
block_size = 8
n_layer = 2
n_head = 2
n_embd = 16
learning_rate = 1e-2
max_iters = 6
warmup_iters = 2
min_lr = 1e-3
grad_clip = 1.0
backend = "nccl"
device = "cuda"
dtype = "float16"
compile = True
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
here = os.path.dirname(os.path.abspath(__file__))
exec(open(os.path.join(here, "configurator.py")).read())
config = {k: globals()[k] for k in config_keys}

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
    ddp_rank, ddp_world_size = 0, 1

if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

text = torch.arange(4096) * 7919 % 61  # tokens without a file


def get_batch(split, number):
    """Micro-batch `number` of the whole run: the ranks share them out."""
    generator = torch.Generator().manual_seed(number if split == "train" else 10**6 + number)
    ix = torch.randint(len(text) - block_size, (batch_size,), generator=generator)
    x = torch.stack([text[i : i + block_size] for i in ix])
    y = torch.stack([text[i + 1 : i + 1 + block_size] for i in ix])
    if device_type == "cuda":
        x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    else:
        x, y = x.to(device), y.to(device)
    return x, y


model = GPT(GPTConfig(block_size=block_size, vocab_size=61, n_layer=n_layer, n_head=n_head, n_embd=n_embd))
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16" and device_type == "cuda"))
optimizer = model.configure_optimizers(0.1, learning_rate, (0.9, 0.95), device_type)
if compile and device_type == "cuda":
    unoptimized_model = model
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split, k)
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * min(1.0, ratio))) * (learning_rate - min_lr)


t0 = time.time()
raw_model = model.module if ddp else model
iter_num = 0
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.6f}, val loss {losses['val']:.6f}")
        checkpoint = {"model": raw_model.state_dict(), "iter_num": iter_num, "config": config}
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        number = (iter_num * gradient_accumulation_steps + micro_step) * ddp_world_size + ddp_rank
        X, Y = get_batch("train", number)
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break

losses = estimate_loss()
print(f"rank {ddp_rank} final: train loss {losses['train']:.6f}, val loss {losses['val']:.6f}")
if ddp:
    destroy_process_group()
