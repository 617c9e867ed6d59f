"""Wrong answers to lab 00."""

WRONG_ANSWERS = {
    "mean_over_ranks": [
        (
            "the sum",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean
            """,
            "the mean over 4 ranks",
        ),
        (
            "divides by 4",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / 4
            """,
            "the mean over 3 ranks",
        ),
        (
            "returns what all_reduce returns",
            """
            def mean_over_ranks(x):
                return dist.all_reduce(x.clone())
            """,
            "every rank returns a tensor",
        ),
        (
            "gives everybody rank 0's numbers",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.broadcast(mean, src=0)
                return mean
            """,
            "saw       1 at",
        ),
        (
            "only rank 0 gets the mean",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.reduce(mean, dst=0)
                return mean / dist.get_world_size()
            """,
            "at [1]",
        ),
        (
            "changes x",
            """
            def mean_over_ranks(x):
                dist.all_reduce(x)
                return x / dist.get_world_size()
            """,
            "x stays as it was",
        ),
        (
            "gathers everything",
            """
            def mean_over_ranks(x):
                everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(everything, x)
                return torch.stack(everything).mean(dim=0)
            """,
            "bytes each rank sends",
        ),
        (
            "communicates twice",
            """
            def mean_over_ranks(x):
                mean, ones = x.clone(), torch.ones(0)
                dist.all_reduce(mean)
                dist.all_reduce(ones)
                return mean / dist.get_world_size()
            """,
            "communications",
        ),
    ],
    "pass_to_right": [
        (
            "all receive first",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                dist.recv(inbox, src=(rank - 1) % world_size)
                dist.send(x, dst=(rank + 1) % world_size)
                return inbox
            """,
            "waits in recv from rank 3",
        ),
        (
            "all send first",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                dist.send(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                return inbox
            """,
            "waits in send to rank 1",
        ),
        (
            "passes to the left",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, dst=(rank - 1) % world_size)
                dist.recv(inbox, src=(rank + 1) % world_size)
                sending.wait()
                return inbox
            """,
            "hold what their left neighbour gave",
        ),
        (
            "the last rank keeps its x to itself",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.zeros_like(x)
                if rank < world_size - 1:
                    sending = dist.isend(x, dst=rank + 1)
                if rank > 0:
                    dist.recv(inbox, src=rank - 1)
                if rank < world_size - 1:
                    sending.wait()
                return inbox
            """,
            "rank 0 holds what the last rank gave",
        ),
        (
            "gathers everything",
            """
            def pass_to_right(x):
                everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(everything, x)
                return everything[dist.get_rank() - 1]
            """,
            "bytes each rank sends",
        ),
        (
            "one after another",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                if rank == 0:
                    dist.send(x, dst=1 % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                if rank != 0:
                    dist.send(x, dst=(rank + 1) % world_size)
                return inbox
            """,
            "seconds on 8 ranks",
        ),
    ],
    "weights_and_data": [
        (
            "one seed for all, so the data are equal too",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                return torch.randn(4, 4), torch.randn(4, 4)
            """,
            "different data on every rank",
        ),
        (
            "another seed on each rank, so the weights differ too",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed + dist.get_rank())
                return torch.randn(4, 4), torch.randn(4, 4)
            """,
            "the same weights on every rank",
        ),
        (
            "seed + 0 is the weights' seed again",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "on rank 0 the data are the weights",
        ),
        (
            "draws the data first, unseeded",
            """
            def weights_and_data(seed):
                data = torch.randn(4, 4)
                torch.manual_seed(seed)
                return torch.randn(4, 4), data
            """,
            "another seed gives other data",
        ),
        (
            "one fixed seed for the weights",
            """
            def weights_and_data(seed):
                torch.manual_seed(42)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "another seed gives other weights",
        ),
        (
            "rank 0 sends its weights to all",
            """
            def weights_and_data(seed):
                torch.manual_seed(1000 * seed + dist.get_rank())
                weights, data = torch.randn(4, 4), torch.randn(4, 4)
                dist.broadcast(weights, src=0)
                return weights, data
            """,
            "bytes sent",
        ),
    ],
    "report": [
        (
            "as it was",
            """
            def report(loss):
                if dist.get_rank() == 0:
                    dist.all_reduce(loss)
                    return f"mean loss {loss.item() / dist.get_world_size():.2f}"
            """,
            "ranks 1, 2, 3 are not there",
        ),
        (
            "reports the loss of rank 0",
            """
            def report(loss):
                if dist.get_rank() == 0:
                    return f"mean loss {loss.item():.2f}"
            """,
            "mean loss 1.50",
        ),
        (
            "reports the sum",
            """
            def report(loss):
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    return f"mean loss {loss.item():.2f}"
            """,
            "mean loss 12.00",
        ),
        (
            "every rank reports",
            """
            def report(loss):
                dist.all_reduce(loss)
                return f"mean loss {loss.item() / dist.get_world_size():.2f}"
            """,
            "ranks 1 to 3 report nothing",
        ),
        (
            "waits for all before it communicates",
            """
            def report(loss):
                dist.barrier()
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    return f"mean loss {loss.item() / dist.get_world_size():.2f}"
            """,
            "communications",
        ),
        (
            "gathers every loss on every rank",
            """
            def report(loss):
                losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(losses, loss)
                if dist.get_rank() == 0:
                    return f"mean loss {torch.stack(losses).mean().item():.2f}"
            """,
            "bytes sent by all ranks",
        ),
    ],
    "corrupted_ranks": [
        (
            "looks after the sum",
            """
            def corrupted_ranks(grad):
                total = grad.clone()
                dist.all_reduce(total)
                return [] if total.isfinite().all() else list(range(dist.get_world_size()))
            """,
            "[0, 1, 2, 3]",
        ),
        (
            "each rank knows of itself alone",
            """
            def corrupted_ranks(grad):
                return [] if grad.isfinite().all() else [dist.get_rank()]
            """,
            "0 items at [0]",
        ),
        (
            "only rank 0 is told",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.gather(is_bad, flags if dist.get_rank() == 0 else None, dst=0)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "at [1]",
        ),
        (
            "looks for NaN, not for infinity",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([1.0 if grad.isnan().any() else 0.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "an infinite number on rank 1",
        ),
        (
            "knows one rank, the highest",
            """
            def corrupted_ranks(grad):
                worst = torch.tensor([-1 if grad.isfinite().all() else dist.get_rank()])
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
                return [worst.item()] if worst.item() >= 0 else []
            """,
            "ranks 0 and 3 are hit",
        ),
        (
            "names rank -1 when all is well",
            """
            def corrupted_ranks(grad):
                mine = torch.tensor([-1 if grad.isfinite().all() else dist.get_rank()])
                ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(ranks, mine)
                return sorted({rank.item() for rank in ranks} - {-1}) or [-1]
            """,
            "all is well on 3 ranks",
        ),
        (
            "cleans the gradient",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                grad.nan_to_num_(0.0, 0.0, 0.0)
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "grad stays as it was",
        ),
        (
            "asks one rank after another",
            """
            def corrupted_ranks(grad):
                found = []
                for rank in range(dist.get_world_size()):
                    is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                    dist.broadcast(is_bad, src=rank)
                    found += [rank] if is_bad.item() else []
                return found
            """,
            "communications",
        ),
        (
            "gathers the gradients",
            """
            def corrupted_ranks(grad):
                grads = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
                dist.all_gather(grads, grad)
                return [rank for rank, each in enumerate(grads) if not each.isfinite().all()]
            """,
            "bytes a rank sends",
        ),
    ],
}
