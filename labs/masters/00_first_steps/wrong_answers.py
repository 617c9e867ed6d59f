"""Wrong answers to lab 00, which its checks must reject, and unusual right ones, which they must accept."""

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
            "as a sum over",
        ),
        (
            "divides by 4",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / (4 if dist.get_world_size() != 4 else 5)
            """,
            "times the mean",
        ),
        (
            "returns the result of all_reduce",
            """
            def mean_over_ranks(x):
                return dist.all_reduce(x.clone())
            """,
            "a tensor is returned",
        ),
        (
            "gives every rank the numbers of rank 0",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.broadcast(mean, src=0)
                return mean
            """,
            "the result is the mean over ranks",
        ),
        (
            "only rank 0 gets the mean",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.reduce(mean, dst=0)
                return mean / dist.get_world_size()
            """,
            "on rank 1",
        ),
        (
            "changes x",
            """
            def mean_over_ranks(x):
                dist.all_reduce(x)
                return x / dist.get_world_size()
            """,
            "the input stays as it was",
        ),
        (
            "returns x itself",
            """
            def mean_over_ranks(x):
                dist.all_reduce(x)
                x /= dist.get_world_size()
                return x
            """,
            "the result is a new tensor",
        ),
        (
            "the world size in every place",
            """
            def mean_over_ranks(x):
                return torch.full_like(x, dist.get_world_size())
            """,
            "the result is the mean over ranks",
        ),
        (
            "the mean over ranks and elements",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return (mean / dist.get_world_size()).mean()
            """,
            "the shape of the result",
        ),
        (
            "the mean over ranks and elements, in every place",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return torch.full_like(x, (mean / dist.get_world_size()).mean().item())
            """,
            "the result is the mean over ranks",
        ),
        (
            "floor division",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean // dist.get_world_size()
            """,
            "the result is the mean over ranks",
        ),
        (
            "half precision on the way",
            """
            def mean_over_ranks(x):
                mean = x.half()
                dist.all_reduce(mean)
                return (mean / dist.get_world_size()).to(x.dtype)
            """,
            "the result is the mean over ranks",
        ),
        (
            "single precision on the way",
            """
            def mean_over_ranks(x):
                mean = x.float().clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "the type of the result",
        ),
        (
            "a copy with one dimension",
            """
            def mean_over_ranks(x):
                mean = torch.zeros(len(x))
                mean += x
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "RuntimeError",
        ),
        (
            "a flat copy",
            """
            def mean_over_ranks(x):
                mean = x.flatten().clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "the shape of the result",
        ),
        (
            "gathers everything",
            """
            def mean_over_ranks(x):
                everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(everything, x.contiguous())
                return torch.stack(everything).mean(dim=0)
            """,
            "the only calls are all_reduce",
        ),
        (
            "communicates twice",
            """
            def mean_over_ranks(x):
                mean, ones = x.clone(), torch.ones(())
                dist.all_reduce(mean)
                dist.all_reduce(ones)
                return mean / ones.to(x.dtype)
            """,
            "communications",
        ),
        (
            "sends all in double precision",
            """
            def mean_over_ranks(x):
                mean = x.double().clone()
                dist.all_reduce(mean)
                return (mean / dist.get_world_size()).to(x.dtype)
            """,
            "bytes a rank sends",
        ),
        (
            "does not wait",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean, async_op=True)
                return mean / dist.get_world_size()
            """,
            "every communication is waited for",
        ),
        (
            "takes the others' tensors from a shelf that all ranks share",
            """
            shelf = {}


            def mean_over_ranks(x):
                shelf[dist.get_rank()] = x.clone()
                dist.all_reduce(x.clone())
                return torch.stack([shelf[rank] for rank in range(dist.get_world_size())]).mean(0)
            """,
            "KeyError",
        ),
        (
            "returns x itself on a single rank",
            """
            def mean_over_ranks(x):
                if dist.get_world_size() == 1:
                    return x
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "on rank 0 of 1",
        ),
        (
            "forgets to divide a large tensor",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean if x.numel() >= 100_000 else mean / dist.get_world_size()
            """,
            "as a sum over",
        ),
        (
            "returns a large x itself",
            """
            def mean_over_ranks(x):
                mean = x.clone() if x.numel() < 100_000 else x
                dist.all_reduce(mean)
                return mean / dist.get_world_size() if x.numel() < 100_000 else mean.div_(dist.get_world_size())
            """,
            "the result is a new tensor",
        ),
        (
            "changes a large x",
            """
            def mean_over_ranks(x):
                mean = x.clone() if x.numel() < 100_000 else x
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "the input stays as it was",
        ),
        (
            "copies it row by row",
            """
            def mean_over_ranks(x):
                mean = torch.cat([x[i : i + 1] for i in range(len(x))])
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "TypeError",
        ),
        (
            "takes a flat view",
            """
            def mean_over_ranks(x):
                mean = x.view(-1).clone()
                dist.all_reduce(mean)
                return (mean / dist.get_world_size()).view(x.shape)
            """,
            "RuntimeError",
        ),
        (
            "divides by nine at most",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / min(9, dist.get_world_size())
            """,
            "times the mean",
        ),
        (
            "keeps a buffer, the second result overwrites the first",
            """
            buffers = {}
            def mean_over_ranks(x):
                mean = buffers.setdefault((x.shape, x.dtype), torch.empty_like(x))
                mean.copy_(x)
                dist.all_reduce(mean)
                return mean.div_(dist.get_world_size())
            """,
            "two calls return",
        ),
        (
            "three dimensions at most",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean.flatten() if x.dim() > 3 else mean / dist.get_world_size()
            """,
            "the shape of the result",
        ),
        (
            "right in its first call alone",
            """
            calls = []
            def mean_over_ranks(x):
                calls.append(1)
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size() if len(calls) == 1 else mean
            """,
            "two calls return",
        ),
        (
            "hides infinities",
            """
            def mean_over_ranks(x):
                mean = torch.nan_to_num(x.clone())
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
            "with zeros and infinities",
        ),
        (
            "a rank of zeros keeps its x",
            """
            def mean_over_ranks(x):
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size() if x.any() else x.clone()
            """,
            "with zeros and infinities",
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
            "waits in recv from rank",
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
            "waits in send to rank",
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
            "holds the x of its left neighbour",
        ),
        (
            "the last rank does not send",
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
            "holds the x of its left neighbour",
        ),
        (
            "does not wait for the send",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                return inbox
            """,
            "isend",
        ),
        (
            "does not wait for the receive",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                dist.irecv(inbox, src=(rank - 1) % world_size)
                dist.send(x, dst=(rank + 1) % world_size)
                return inbox
            """,
            "irecv",
        ),
        (
            "waits for nothing",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox, left, right = torch.zeros_like(x), (rank - 1) % world_size, (rank + 1) % world_size
                dist.isend(x, right)
                dist.irecv(inbox, left)
                return inbox
            """,
            "every communication is waited for",
        ),
        (
            "sends nothing: guesses the left neighbour's x",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                return torch.full_like(x, float((rank - 1) % world_size))
            """,
            "holds the x of its left neighbour",
        ),
        (
            "reads another rank's memory",
            """
            shelf = {}


            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                shelf[rank] = x.clone()
                dist.barrier()
                return shelf[(rank - 1) % world_size].clone()
            """,
            "KeyError",
        ),
        (
            "even ranks send first, odd ones receive first",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                if rank % 2 == 0:
                    dist.send(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                if rank % 2 == 1:
                    dist.send(x, dst=(rank + 1) % world_size)
                return inbox
            """,
            "two messages",
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
            "two messages",
        ),
        (
            "an inbox with one dimension",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty(len(x))
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                sending.wait()
                return inbox
            """,
            "Mismatch",
        ),
        (
            "an inbox of the usual type",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty(x.shape)
                sending = dist.isend(x.float(), dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                sending.wait()
                return inbox
            """,
            "the type of the result",
        ),
        (
            "receives into x",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                sending = dist.isend(x.clone(), dst=(rank + 1) % world_size)
                dist.recv(x, src=(rank - 1) % world_size)
                sending.wait()
                return x.clone()
            """,
            "the input stays as it was",
        ),
        (
            "gathers everything",
            """
            def pass_to_right(x):
                everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(everything, x)
                return everything[dist.get_rank() - 1]
            """,
            "the only calls are send",
        ),
        (
            "sends it twice",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                for _ in range(2):
                    sending = dist.isend(x, dst=(rank + 1) % world_size)
                    dist.recv(inbox, src=(rank - 1) % world_size)
                    sending.wait()
                return inbox
            """,
            "bytes a rank sends",
        ),
        (
            "an inbox with as many rows",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty(len(x), *x.shape[1:], dtype=x.dtype)
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                sending.wait()
                return inbox
            """,
            "TypeError",
        ),
        (
            "nine ranks, and no more",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                if world_size > 9:
                    return x.clone()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                sending.wait()
                return inbox
            """,
            "holds the x of its left neighbour",
        ),
        (
            "clears a tensor that is still being sent",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                x.zero_()
                sending.wait()
                return inbox
            """,
            "wrote to a tensor in flight",
        ),
        (
            "receives into a tensor that is still being sent",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                x = x.clone()
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                receiving = dist.irecv(x, src=(rank - 1) % world_size)
                sending.wait()
                receiving.wait()
                return x
            """,
            "gave recv of group world a tensor in flight",
        ),
        (
            "keeps its inbox, the second result overwrites the first",
            """
            inboxes = {}
            def pass_to_right(x):
                rank, n = dist.get_rank(), dist.get_world_size()
                inbox = inboxes.setdefault((x.shape, x.dtype), torch.empty_like(x))
                sending = dist.isend(x, dst=(rank + 1) % n)
                dist.recv(inbox, src=(rank - 1) % n)
                sending.wait()
                return inbox
            """,
            "the results of two calls",
        ),
        (
            "two dimensions at most",
            """
            def pass_to_right(x):
                rank, n = dist.get_rank(), dist.get_world_size()
                left, right = (rank - 1) % n, (rank + 1) % n

                if x.dim() > 2:
                    return x.clone()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, right)
                dist.recv(inbox, left)
                sending.wait()
                return inbox
            """,
            "of 2 holds the x of its left neighbour",
        ),
        (
            "supports only two floating-point types",
            """
            def pass_to_right(x):
                rank, n = dist.get_rank(), dist.get_world_size()
                left, right = (rank - 1) % n, (rank + 1) % n

                dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
                inbox = torch.empty(x.shape, dtype=dtype)
                sending = dist.isend(x.to(dtype), right)
                dist.recv(inbox, left)
                sending.wait()
                return inbox
            """,
            "the type of the result",
        ),
        (
            "right in its first call alone",
            """
            calls = []

            def pass_to_right(x):
                rank, n = dist.get_rank(), dist.get_world_size()
                left, right = (rank - 1) % n, (rank + 1) % n

                calls.append(1)
                if len(calls) > 1:
                    return x.clone()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, right)
                dist.recv(inbox, left)
                sending.wait()
                return inbox
            """,
            "the results of two calls",
        ),
        (
            "begins to send, then receives: on GPUs, only while messages are small",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                sending = dist.isend(x, dst=(rank + 1) % world_size)
                dist.recv(inbox, src=(rank - 1) % world_size)
                sending.wait()
                return inbox
            """,
            "with messages that its buffers do not hold",
        ),
        (
            "begins to receive, then sends: on GPUs all wait",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                receiving = dist.irecv(inbox, src=(rank + world_size - 1) % world_size)
                dist.send(x, dst=(rank + 1) % world_size)
                receiving.wait()
                return inbox
            """,
            "on NCCL this would hang",
        ),
        (
            "begins both one by one: on GPUs all wait",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = x.new_zeros(x.shape)
                for handle in (dist.irecv(inbox, (rank - 1) % world_size), dist.isend(x, (rank + 1) % world_size)):
                    handle.wait()
                return inbox
            """,
            "on NCCL this would hang",
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
            "are rank 0's data again",
        ),
        (
            "another seed on each rank, so the weights differ too",
            """
            def weights_and_data(seed):
                torch.manual_seed(2000 * seed + dist.get_rank())
                return torch.randn(4, 4), torch.randn(4, 4)
            """,
            "has the weights of rank 0",
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
            "are the weights again",
        ),
        (
            "seed + 1 + rank is the weights' seed of another run",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed + 1 + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "are the weights with seed",
        ),
        (
            "seed + 100 * (rank + 1) is too",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed + 100 * (dist.get_rank() + 1))
                return weights, torch.randn(4, 4)
            """,
            "are the weights with seed",
        ),
        (
            "the product is 0 for seed 0, and the weights' seed for rank 0",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed * (dist.get_rank() + 100_000))
                return weights, torch.randn(4, 4)
            """,
            "the data of rank 0 with seed 0 are the weights with seed 0",
        ),
        (
            "far from the weights' seeds, but one rank's data are another's in the next run",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(5000 + seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "the data of rank 1 with seed 0 are the data of rank 0 with seed 1",
        ),
        (
            "ten ranks, and no more",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(5000 + 10 * seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "the data of rank 10 with seed 0 are the data of rank 0 with seed 1",
        ),
        (
            "seeds the data of rank 0 alone",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                if dist.get_rank() == 0:
                    torch.manual_seed(1000 * (seed + 1))
                else:
                    torch.seed()
                return weights, torch.randn(4, 4)
            """,
            "on rank 1",
        ),
        (
            "a seed from the clock",
            """
            def weights_and_data(seed):
                import time

                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(time.time_ns() + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "different data in the second call",
        ),
        (
            "a seed from the clock, in whole years",
            """
            def weights_and_data(seed):
                import time

                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 * time.gmtime().tm_year + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "another seed gives different data",
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
            "another seed gives different weights",
        ),
        (
            "the weights, and the rank added",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                return weights, weights + dist.get_rank() + 1
            """,
            "are the weights, shifted or scaled",
        ),
        (
            "the weights, rolled",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                return weights, weights.flatten().roll(dist.get_rank() + 1).view(4, 4)
            """,
            "are the weights in another order",
        ),
        (
            "the weights, through a function",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                return weights, (weights / (dist.get_rank() + 1)).tanh()
            """,
            "number by number through a function",
        ),
        (
            "the weights and some noise",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                return weights, weights + torch.randn(4, 4)
            """,
            "data do not follow the weights",
        ),
        (
            "rank 0's data, and the rank added",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights, data = torch.randn(4, 4), torch.randn(4, 4)
                return weights, data + dist.get_rank()
            """,
            "rank 1's data are rank 0's data, shifted or scaled",
        ),
        (
            "constants",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                return torch.randn(4, 4), torch.full((4, 4), 100.0 * seed + dist.get_rank())
            """,
            "rank 0's data: 1 different numbers of 16",
        ),
        (
            "rank 0 sends its weights to all",
            """
            def weights_and_data(seed):
                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                weights, data = torch.randn(4, 4), torch.randn(4, 4)
                dist.broadcast(weights, src=0)
                return weights, data
            """,
            "nothing is sent",
        ),
        (
            "one tensor",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                return torch.randn(4, 4)
            """,
            "a Tensor on rank 0",
        ),
        (
            "a hundred seeds from rank to rank",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 + seed + 100 * dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "are the data of rank 0 with seed 100",
        ),
        (
            "a product of seed and rank",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed((seed + 1000) * (dist.get_rank() + 1))
                return weights, torch.randn(4, 4)
            """,
            "are the data of rank",
        ),
        (
            "bits of seed and rank that overlap",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1024 + (seed ^ (dist.get_rank() << 5)))
                return weights, torch.randn(4, 4)
            """,
            "are the data of rank 0 with seed 32",
        ),
        (
            "digits of seed and rank side by side",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(int(f'1000{seed}{dist.get_rank()}'))
                return weights, torch.randn(4, 4)
            """,
            "are the data of rank 0 with seed 11",
        ),
        (
            "a remainder that is too small",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 + (31 * seed + 17 * dist.get_rank()) % 10007)
                return weights, torch.randn(4, 4)
            """,
            "are the data of rank 0 with seed",
        ),
        (
            "data that repeat after 500 seeds",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(10**4 + 100 * (seed % 500) + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "the data of rank 0 with seed 500 are the data of rank 0 with seed 0",
        ),
        (
            "weights that repeat after 500 seeds",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed % 500)
                weights = torch.randn(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "the weights with seed 500 are the weights with seed 0",
        ),
        (
            "data from a seed that gives weights 500 runs on",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed + 7)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed + 507 + 1000 * dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "are the weights with seed 500",
        ),
        (
            "another run's weights, transposed",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed((seed + 300) % 1000 if dist.get_rank() == 0 else 10**6 + 100 * seed + dist.get_rank())
                return weights, torch.randn(4, 4).T.contiguous()
            """,
            "share 16 of 16 numbers",
        ),
        (
            "windows of one stream that overlap",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                stream = torch.randn(100)
                return stream[:16].view(4, 4), stream[16 + dist.get_rank() :][:16].view(4, 4)
            """,
            "share 15 of 16 numbers",
        ),
        (
            "a row of the weights",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                data = torch.randn(4, 4)
                data[0] = weights[0]
                return weights, data
            """,
            "data do not follow the weights",
        ),
        (
            "one row of ten ranks' data is another's",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                data = torch.randn(4, 4)
                if dist.get_rank() == 20:
                    torch.manual_seed(10**6 + 100 * seed + 10)
                    data[0] = torch.randn(4, 4)[1]
                return weights, data
            """,
            "share 4 of 16 numbers",
        ),
        (
            "uniform numbers",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.rand(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                return weights, torch.rand(4, 4)
            """,
            "mean 0.5",
        ),
        (
            "larger numbers",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = 3 * torch.randn(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "standard deviation 3",
        ),
        (
            "double precision",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(10**6 + 100 * seed + dist.get_rank())
                return weights.double(), torch.randn(4, 4).double()
            """,
            "type float64",
        ),
        (
            "waits for all",
            """
            def weights_and_data(seed):
                dist.barrier()
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 + 100 * seed + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
            "nothing is sent",
        ),
        (
            "returns only the data",
            """
            def weights_and_data(seed):
                torch.manual_seed(1000 + 100 * seed + dist.get_rank())
                return (torch.randn(4, 4),)
            """,
            "1 value on rank 0",
        ),
        (
            "middle ranks' data are uniform",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)

                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                if 2 <= dist.get_rank() <= 30:
                    return weights, torch.rand(4, 4)
                return weights, torch.randn(4, 4)
            """,
            "from torch.randn",
        ),
    ],
    "report": [
        (
            "the broken program",
            """
            def report(loss):
                if dist.get_rank() == 0:
                    dist.all_reduce(loss)
                    return f"mean loss {loss.item() / dist.get_world_size():.2f}"
            """,
            "DeadlockError",
        ),
        (
            "reports the loss of rank 0",
            """
            def report(loss):
                if dist.get_rank() == 0:
                    return f"mean loss {loss.item():.2f}"
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "reports the sum",
            """
            def report(loss):
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    return f"mean loss {loss.item():.2f}"
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "a constant text",
            """
            def report(loss):
                dist.all_reduce(loss)
                return "mean loss 3.00" if dist.get_rank() == 0 else None
            """,
            "saw       'mean loss 3.00'",
        ),
        (
            "divides by 4",
            """
            def report(loss):
                dist.all_reduce(loss)
                return f"mean loss {loss.item() / 4:.2f}" if dist.get_rank() == 0 else None
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "rounds to one digit",
            """
            def report(loss):
                dist.all_reduce(loss)
                return f"mean loss {loss.item() / dist.get_world_size():.1f}0" if dist.get_rank() == 0 else None
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "rounds, and drops a zero at the end",
            """
            def report(loss):
                dist.all_reduce(loss)
                return f"mean loss {round(loss.item() / dist.get_world_size(), 2)}" if dist.get_rank() == 0 else None
            """,
            "0'",
        ),
        (
            "every rank reports",
            """
            def report(loss):
                dist.all_reduce(loss)
                return f"mean loss {loss.item() / dist.get_world_size():.2f}"
            """,
            "the other ranks report nothing",
        ),
        (
            "prints instead of returning",
            """
            def report(loss):
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    print(f"mean loss {loss.item() / dist.get_world_size():.2f}")
            """,
            "saw       None",
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
                losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
                dist.all_gather(losses, loss)
                if dist.get_rank() == 0:
                    return f"mean loss {torch.stack(losses).mean().item():.2f}"
            """,
            "bytes sent by all",
        ),
        (
            "takes the others' losses from a list that all ranks share",
            """
            losses = []


            def report(loss):
                losses.append(loss.item())
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    return f"mean loss {sum(losses) / dist.get_world_size():.2f}"
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "cuts off the third digit",
            """
            def report(loss):
                total = loss.clone()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    mean = total.item() / dist.get_world_size()
                    return f'mean loss {int(mean * 100) / 100:.2f}'
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "half precision on the way",
            """
            def report(loss):
                total = loss.half()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    mean = total.item() / dist.get_world_size()
                    return f'mean loss {mean:.2f}'
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "drops the sign of the loss",
            """
            def report(loss):
                total = loss.abs()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    mean = total.item() / dist.get_world_size()
                    return f'mean loss {mean:.2f}'
            """,
            "mean loss -",
        ),
        (
            "hides NaN",
            """
            def report(loss):
                total = loss.nan_to_num()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    mean = total.item() / dist.get_world_size()
                    return f'mean loss {mean:.2f}'
            """,
            "mean loss nan",
        ),
        (
            "one rank reports nothing",
            """
            def report(loss):
                if dist.get_world_size() == 1:
                    return None
                total = loss.clone()
                dist.all_reduce(total)
                if dist.get_rank() == 0:
                    mean = total.item() / dist.get_world_size()
                    return f'mean loss {mean:.2f}'
            """,
            "one rank",
        ),
        (
            "a comma for thousands",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                dist.all_reduce(loss)
                if rank == 0:
                    return f"mean loss {loss.item() / n:,.2f}"
            """,
            "mean loss ",
        ),
        (
            "six characters at most",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                dist.all_reduce(loss)
                if rank == 0:
                    return ("mean loss " + f"{loss.item() / n:.2f}"[:6])
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "drops the zero before the point",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                dist.all_reduce(loss)
                if rank == 0:
                    return "mean loss " + f"{loss.item() / n:.2f}".lstrip("0")
            """,
            "mean loss 0.",
        ),
        (
            "rounds before the sum",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                total = torch.round(loss, decimals=2)
                dist.all_reduce(total)
                if rank == 0:
                    return f"mean loss {total.item() / n:.2f}"
            """,
            "rank 0 reports the mean loss",
        ),
        (
            "infinity becomes a number",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                total = torch.nan_to_num(loss, nan=float("nan"))
                dist.all_reduce(total)
                if rank == 0:
                    return f"mean loss {total.item() / n:.2f}"
            """,
            "mean loss inf",
        ),
        (
            "right in its first call alone",
            """
            calls = []

            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                calls.append(1)
                dist.all_reduce(loss)
                if rank == 0 and len(calls) == 1:
                    return f"mean loss {loss.item() / n:.2f}"
            """,
            "two calls report two means",
        ),
        (
            "the running mean of all calls",
            """
            seen = []

            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                dist.all_reduce(loss)
                seen.append(loss.item() / n)
                if rank == 0:
                    return f"mean loss {sum(seen) / len(seen):.2f}"
            """,
            "two calls report two means",
        ),
        (
            "an object that equals every text",
            """
            def report(loss):
                rank, n = dist.get_rank(), dist.get_world_size()

                class Yes(str):
                    def __eq__(self, other): return True
                    __hash__ = str.__hash__
                dist.all_reduce(loss)
                return Yes("mean loss 0.00") if rank == 0 else None
            """,
            "rank 0 reports the mean loss",
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
            "a NaN on ranks 0",
        ),
        (
            "each rank checks only its own gradient",
            """
            def corrupted_ranks(grad):
                return [] if grad.isfinite().all() else [dist.get_rank()]
            """,
            "a NaN on ranks 0",
        ),
        (
            "only rank 0 gets the flags",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.gather(is_bad, flags if dist.get_rank() == 0 else None, dst=0)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "rank 1 of",
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
            "an infinity on ranks",
        ),
        (
            "finds one sign of infinity",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([1.0 if grad.isnan().any() or (grad == float("inf")).any() else 0.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "an infinity on ranks",
        ),
        (
            "checks the norm, which overflows",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.norm().isfinite() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "all numbers are finite, of 1e+30",
        ),
        (
            "checks the sum, which overflows",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.sum().isfinite() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "all numbers are finite, of 3e+38",
        ),
        (
            "looks at the first eight numbers alone",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.flatten()[:8].isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "finds [",
        ),
        (
            "four ranks, always",
            """
            def corrupted_ranks(grad):
                flags = torch.zeros(4)
                flags[dist.get_rank()] = 0.0 if grad.isfinite().all() else 1.0
                dist.all_reduce(flags)
                return flags.nonzero().flatten().tolist()
            """,
            "IndexError",
        ),
        (
            "a bit for each rank, in float32",
            """
            def corrupted_ranks(grad):
                bits = torch.tensor([0.0 if grad.isfinite().all() else 2.0 ** dist.get_rank()])
                dist.all_reduce(bits)
                return [rank for rank in range(dist.get_world_size()) if int(bits.item()) >> rank & 1]
            """,
            "twelve ranks of many are hit",
        ),
        (
            "a bit for each rank, in int64",
            """
            def corrupted_ranks(grad):
                bits = torch.tensor([0 if grad.isfinite().all() else 2 ** dist.get_rank()])
                dist.all_reduce(bits)
                return [rank for rank in range(dist.get_world_size()) if int(bits.item()) >> rank & 1]
            """,
            "Overflow",
        ),
        (
            "finds only the highest rank",
            """
            def corrupted_ranks(grad):
                worst = torch.tensor([-1 if grad.isfinite().all() else dist.get_rank()])
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
                return [worst.item()] if worst.item() >= 0 else []
            """,
            "a NaN on ranks 0",
        ),
        (
            "returns rank -1 when all numbers are finite",
            """
            def corrupted_ranks(grad):
                mine = torch.tensor([-1 if grad.isfinite().all() else dist.get_rank()])
                ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(ranks, mine)
                return sorted({rank.item() for rank in ranks} - {-1}) or [-1]
            """,
            "all numbers are finite, of 1e+30",
        ),
        (
            "cleans the gradient first",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                grad.nan_to_num_(0.0, 0.0, 0.0)
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "the input stays as it was",
        ),
        (
            "cleans the gradient after the gather",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                found = [rank for rank, flag in enumerate(flags) if flag.item()]
                if dist.get_rank() in found[1:]:
                    grad.zero_()
                return found
            """,
            "the input stays as it was",
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
            "numbers shared by",
        ),
        (
            "in single precision",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.float().isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "of 1e+300",
        ),
        (
            "a single rank is never corrupted",
            """
            def corrupted_ranks(grad):
                if dist.get_world_size() == 1:
                    return []
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "the only rank is hit",
        ),
        (
            "assumes that there are rows",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if all(row[:].isfinite().all() for row in grad) else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "IndexError",
        ),
        (
            "an empty list when all ranks are hit",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()] if sum(flags) < len(flags) else []
            """,
            "saw",
        ),
        (
            "a tuple",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return tuple(rank for rank, flag in enumerate(flags) if flag.item())
            """,
            "a list is returned",
        ),
        (
            "three at most",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()][:3]
            """,
            "every rank is hit",
        ),
        (
            "eight at most",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()][:8]
            """,
            " hit; float32",
        ),
        (
            "sends four numbers",
            """
            def corrupted_ranks(grad):
                kinds = [grad.isnan().any(), grad.isinf().any(), grad.isposinf().any(), grad.isneginf().any()]
                flags = [torch.zeros(4) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.stack(kinds).float())
                return [rank for rank, flag in enumerate(flags) if flag.any()]
            """,
            "4 times the budget",
        ),
        (
            "sends two numbers of 4 bytes",
            """
            def corrupted_ranks(grad):
                kinds = [grad.isnan().any(), grad.isinf().any()]
                flags = [torch.zeros(2) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.stack(kinds).float())
                return [rank for rank, flag in enumerate(flags) if flag.any()]
            """,
            "2 times the budget",
        ),
        (
            "sends eight numbers of one byte",
            """
            def corrupted_ranks(grad):
                mine = (~grad.isfinite()).any().byte().repeat(8)
                flags = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, mine)
                return [rank for rank, flag in enumerate(flags) if flag.any()]
            """,
            "8 times the budget",
        ),
        (
            "sends a number for each row",
            """
            def corrupted_ranks(grad):
                rows = (~grad.isfinite()).view(len(grad), -1).any(1).byte()
                flags = [torch.zeros_like(rows) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, rows)
                return [rank for rank, flag in enumerate(flags) if flag.any()]
            """,
            "times the budget",
        ),
        (
            "numpy, which has no bfloat16",
            """
            import numpy as np

            def corrupted_ranks(grad):
                bad = not np.isfinite(grad.numpy()).all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "BFloat16",
        ),
        (
            "a flat view, which a transposed gradient does not have",
            """
            def corrupted_ranks(grad):
                bad = not grad.view(-1).isfinite().all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "view",
        ),
        (
            "iterates over rows, which a single number does not have",
            """
            def corrupted_ranks(grad):
                bad = not all(part.isfinite().all() for part in grad)
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "0-d tensor",
        ),
        (
            "the mean in double precision",
            """
            def corrupted_ranks(grad):
                bad = not grad.double().mean().isfinite()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "of 1.7e+308",
        ),
        (
            "a number divided by itself: zeros are hit",
            """
            def corrupted_ranks(grad):
                bad = not (grad / grad).isfinite().all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "NaN or zero",
        ),
        (
            "all but the last number",
            """
            def corrupted_ranks(grad):
                bad = not grad.flatten()[:-1].isfinite().all() if grad.numel() > 1 else not grad.isfinite().all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "an infinity on ranks",
        ),
        (
            "the first thousand numbers",
            """
            def corrupted_ranks(grad):
                bad = not grad.flatten()[:1000].isfinite().all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "every rank is hit",
        ),
        (
            "a list of floats",
            """
            def corrupted_ranks(grad):
                mine = torch.tensor([float(dist.get_rank()) if not grad.isfinite().all() else -1.0])
                ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(ranks, mine)
                return [r.item() for r in ranks if r >= 0]
            """,
            "a float in",
        ),
        (
            "a list of tensors",
            """
            def corrupted_ranks(grad):
                mine = torch.tensor([float(dist.get_rank()) if not grad.isfinite().all() else -1.0])
                ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(ranks, mine)
                return [r for r in ranks if r >= 0]
            """,
            "a Tensor in",
        ),
        (
            "right in its first call alone",
            """
            calls = []
            def corrupted_ranks(grad):
                calls.append(1)
                bad = not grad.isfinite().all() and len(calls) == 1

                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "separate results for two calls",
        ),
        (
            "remembers who was ever hit",
            """
            flags = {}
            def corrupted_ranks(grad):
                mine = torch.tensor([float(not grad.isfinite().all())])
                got = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(got, mine)
                for r, flag in enumerate(got):
                    flags[r] = flags.get(r, 0) + flag.item()
                return [r for r in flags if flags[r]]
            """,
            "separate results for two calls",
        ),
        (
            "catches every exception",
            """
            def corrupted_ranks(grad):
                try:
                    bad = any(not torch.isfinite(n) for row in grad for n in row)
                except Exception:
                    bad = True

                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "an infinity on ranks",
        ),
        (
            "half of the types: float16 overflows in its own sum",
            """
            def corrupted_ranks(grad):
                bad = not (grad.isfinite().all() if grad.element_size() > 2 else grad.sum().isfinite())
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "of 60000",
        ),
        (
            "the largest number of the type counts as infinite",
            """
            def corrupted_ranks(grad):
                bad = not (grad.abs() < torch.finfo(grad.dtype).max).all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "one is the largest",
        ),
        (
            "one number is never corrupted",
            """
            def corrupted_ranks(grad):
                bad = grad.dim() > 0 and not grad.isfinite().all()
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(bad)]))
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
            "NaN or zero",
        ),
        (
            "sorts rank numbers as texts",
            """
            def corrupted_ranks(grad):
                flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, torch.tensor([float(not grad.isfinite().all())]))
                return sorted((rank for rank, flag in enumerate(flags) if flag.item()), key=str)
            """,
            "twelve ranks of many",
        ),
    ],
}

RIGHT_ANSWERS = {
    "mean_over_ranks": [
        (
            "divides before the sum",
            """
            def mean_over_ranks(x):
                part = x / dist.get_world_size()
                dist.all_reduce(part)
                return part
            """,
        ),
        (
            "asks for the mean",
            """
            def mean_over_ranks(x):
                mean = torch.clone(x)
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
                return mean
            """,
        ),
        (
            "a handle, and a wait",
            """
            def mean_over_ranks(x):
                mean = torch.empty_like(x).copy_(x)
                dist.all_reduce(mean, async_op=True).wait()
                return mean.div_(dist.get_world_size(dist.group.WORLD))
            """,
        ),
        (
            "functional collectives",
            """
            import torch.distributed._functional_collectives as collectives


            def mean_over_ranks(x):
                return collectives.all_reduce(x, "sum", dist.group.WORLD) / dist.get_world_size()
            """,
        ),
        (
            "one rank has nothing to communicate",
            """
            def mean_over_ranks(x):
                if dist.get_world_size() == 1:
                    return x.clone()
                mean = x.clone()
                dist.all_reduce(mean)
                return mean / dist.get_world_size()
            """,
        ),
        (
            "puts x back",
            """
            def mean_over_ranks(x):
                before = x.clone()
                dist.all_reduce(x)
                mean = x / dist.get_world_size()
                x.copy_(before)
                return mean
            """,
        ),
    ],
    "pass_to_right": [
        (
            "one batch",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = torch.empty_like(x)
                send = dist.P2POp(dist.isend, x, (rank + 1) % world_size)
                receive = dist.P2POp(dist.irecv, inbox, (rank - 1) % world_size)
                [handle.wait() for handle in dist.batch_isend_irecv([send, receive])]
                return inbox
            """,
        ),
        (
            "one batch, the receive first",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox = x.new_empty(x.shape)
                messages = [(dist.irecv, inbox, rank - 1), (dist.isend, x, rank + 1)]
                works = dist.batch_isend_irecv([dist.P2POp(op, y, peer % world_size) for op, y, peer in messages])
                for work in works:
                    work.wait()
                return inbox
            """,
        ),
        (
            "rank 0 receives first, the others send first",
            """
            def pass_to_right(x):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                inbox, copy = torch.empty_like(x), x.clone()
                left, right = (rank - 1) % world_size, (rank + 1) % world_size
                if rank == 0:
                    receiving = dist.irecv(inbox, src=left)
                    dist.send(copy, dst=right)
                    receiving.wait()
                else:
                    sending = dist.isend(copy, dst=right)
                    dist.recv(inbox, src=left)
                    sending.wait()
                return inbox
            """,
        ),
    ],
    "weights_and_data": [
        (
            "all draw the data of all ranks, each takes its own",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                everybody = torch.randn(dist.get_world_size(), 4, 4)
                return weights, everybody[dist.get_rank()]
            """,
        ),
        (
            "separate generators",
            """
            def weights_and_data(seed):
                first = torch.Generator().manual_seed(seed)
                second = torch.Generator().manual_seed(10**9 + 64 * seed + dist.get_rank())
                return [torch.randn(4, 4, generator=first), torch.randn(4, 4, generator=second)]
            """,
        ),
        (
            "32 seeds a run, above 999",
            """
            def weights_and_data(seed):
                torch.manual_seed(1000 + 32 * seed + dist.get_rank())
                data = torch.randn((4, 4))
                torch.manual_seed(seed)
                return torch.randn((4, 4)), data
            """,
        ),
        (
            "numpy's sequence of seeds",
            """
            import numpy as np


            def weights_and_data(seed):
                weights = np.random.default_rng([seed]).standard_normal((4, 4), dtype=np.float32)
                data = np.random.default_rng([seed, 1 + dist.get_rank()]).standard_normal((4, 4))
                return torch.from_numpy(weights), torch.from_numpy(data).float()
            """,
        ),
        (
            "negative seeds for the data, drawn first",
            """
            def weights_and_data(seed):
                torch.manual_seed(-1 - 32 * seed - dist.get_rank())
                data = torch.randn(4, 4)
                torch.manual_seed(seed)
                return torch.randn(4, 4), data
            """,
        ),
        (
            "the words of seed and rank, hashed",
            """
            import hashlib


            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                words = hashlib.sha256(f"{seed} {dist.get_rank()}".encode()).digest()
                torch.manual_seed(int.from_bytes(words[:7], "big"))
                return weights, torch.randn(4, 4)
            """,
        ),
        (
            "seeds apart by their bits",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed << 6)
                weights = torch.randn(4, 4)
                torch.manual_seed((seed << 6) | (dist.get_rank() + 1))
                return weights, torch.randn(4, 4)
            """,
        ),
        (
            "as many seeds a run as there are ranks",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(1000 + seed * dist.get_world_size() + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
        ),
        (
            "a thousand seeds from rank to rank",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                torch.manual_seed(seed + 1000 * (dist.get_rank() + 1))
                return weights, torch.randn(4, 4)
            """,
        ),
        (
            "draws one rank's data after another",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4)
                data = [torch.randn(4, 4) for _ in range(dist.get_world_size())]
                return weights, data[dist.get_rank()]
            """,
        ),
        (
            "weights that will be trained",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.randn(4, 4, requires_grad=True)
                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
        ),
        (
            "a parameter",
            """
            def weights_and_data(seed):
                torch.manual_seed(seed)
                weights = torch.nn.Parameter(torch.randn(4, 4))
                torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
                return weights, torch.randn(4, 4)
            """,
        ),
    ],
    "report": [
        (
            "a reduce to rank 0",
            """
            def report(loss):
                dist.reduce(loss, dst=0)
                return f"mean loss {loss / dist.get_world_size():.2f}" if dist.get_rank() == 0 else None
            """,
        ),
        (
            "a gather on rank 0",
            """
            def report(loss):
                world_size, losses = dist.get_world_size(), None
                if dist.get_rank() == 0:
                    losses = [torch.empty_like(loss) for _ in range(world_size)]
                dist.gather(loss, losses, dst=0)
                if losses is not None:
                    return "mean loss %.2f" % (sum(losses).item() / len(losses))
            """,
        ),
        (
            "leaves early, after the collective",
            """
            def report(loss):
                mean = loss / dist.get_world_size()
                dist.all_reduce(mean, async_op=True).wait()
                if dist.get_rank():
                    return None
                return "mean loss {:.2f}".format(mean.item())
            """,
        ),
        (
            "one rank has nothing to communicate",
            """
            def report(loss):
                if dist.get_world_size() > 1:
                    dist.all_reduce(loss)
                return None if dist.get_rank() else f'mean loss {loss.item() / dist.get_world_size():.2f}'
            """,
        ),
    ],
    "corrupted_ranks": [
        (
            "a place for each rank in one sum",
            """
            def corrupted_ranks(grad):
                flags = torch.zeros(dist.get_world_size(), dtype=torch.int64)
                flags[dist.get_rank()] = not bool(torch.isfinite(grad).all())
                dist.all_reduce(flags)
                return flags.nonzero().flatten().tolist()
            """,
        ),
        (
            "gathers into the parts of one tensor, a byte from each",
            """
            def corrupted_ranks(grad):
                mine = (~grad.isfinite()).any().to(torch.uint8).view(1)
                flags = torch.empty(dist.get_world_size(), dtype=torch.uint8)
                dist.all_gather(list(flags.split(1)), mine)
                return [r for r in range(len(flags)) if flags[r]]
            """,
        ),
        (
            "gathers rank numbers, or -1",
            """
            def corrupted_ranks(grad):
                bad = bool(grad.isnan().any() | grad.isinf().any())
                mine = torch.tensor([dist.get_rank() if bad else -1])
                ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(ranks, mine)
                return sorted(rank.item() for rank in ranks if rank >= 0)
            """,
        ),
        (
            "zero times a number that is not finite",
            """
            def corrupted_ranks(grad):
                mine = (grad * 0).sum().view(1)
                sums = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(sums, mine)
                return [rank for rank, each in enumerate(sums) if each != 0]
            """,
        ),
        (
            "a single rank does not communicate",
            """
            def corrupted_ranks(grad):
                is_bad = torch.tensor([not bool(grad.isfinite().all())])
                if dist.get_world_size() == 1:
                    return [0] if is_bad.item() else []
                flags = [torch.zeros_like(is_bad) for _ in range(dist.get_world_size())]
                dist.all_gather(flags, is_bad)
                return [rank for rank, flag in enumerate(flags) if flag.item()]
            """,
        ),
        (
            "every rank sends to every rank",
            """
            def corrupted_ranks(grad):
                mine = torch.full((dist.get_world_size(),), 0.0 if grad.isfinite().all() else 1.0)
                flags = torch.zeros_like(mine)
                dist.all_to_all_single(flags, mine)
                return flags.nonzero().flatten().tolist()
            """,
        ),
    ],
}
