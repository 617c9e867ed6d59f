"""A training script as people write them for torchrun: DDP on GPUs, argparse, modules beside it, a checkpoint."""

import argparse
import json
import logging
import os
import time

import model as model_lib
import settings
import torch
import torch.distributed as dist
from data import Digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="per GPU")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def setup():
    if "RANK" not in os.environ:
        return 0, 1, torch.device("cpu")
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    return dist.get_rank(), dist.get_world_size(), torch.device("cuda", local_rank)


def main():
    args = parse_args()
    rank, world_size, device = setup()
    settings.RANK = rank
    settings.HISTORY.append(rank)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True

    dataset = Digits(64)
    sampler = DistributedSampler(dataset, shuffle=False) if world_size > 1 else None
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    model = model_lib.ConvNet().to(device)
    if world_size > 1:
        model = DDP(model, device_ids=[device.index])
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    path = os.path.join(args.folder, "checkpoint.pt")
    if args.resume:
        state = torch.load(path, map_location=device, weights_only=True)
        getattr(model, "module", model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    losses = []
    began = time.time()
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total /= len(loader)
        if world_size > 1:
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total.item())
        logger.info("epoch %d loss %.6f (%.1f s)", epoch, losses[-1], time.time() - began)

    if rank == 0:
        state = {"model": getattr(model, "module", model).state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path)
        if device.type == "cuda":
            print("memory", torch.cuda.max_memory_allocated() > 0, torch.cuda.get_device_name(device))
    if world_size > 1:
        dist.barrier(device_ids=[device.index])
    print(json.dumps({"rank": rank, "losses": losses, "settings": settings.RANK, "history": settings.HISTORY}))
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
