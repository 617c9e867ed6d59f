"""Wrong answers to lab 08: each is a mistake somebody makes, or a way round the exercise."""

WRONG_ANSWERS = {
    "ring_all_reduce": [
        (
            "stops after the reduce-scatter",
            """
            def ring_all_reduce(tensor, group=None):
                chunks = tensor.view(-1).tensor_split(dist.get_world_size(group))
                parallel.ring_reduce_scatter(chunks, range(dist.get_world_size(group)), group)
            """,
            "every rank holds the sum (4 ranks",
        ),
        (
            "one step short in the all-gather",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = tensor.view(-1).tensor_split(n)
                parallel.ring_reduce_scatter(chunks, range(n), group)
                for step in range(n - 2):
                    incoming = chunks[(rank - step) % n]
                    parallel.exchange(chunks[(rank - step + 1) % n], (rank + 1) % n, incoming, (rank - 1) % n, group)
            """,
            "every rank holds the sum (4 ranks",
        ),
        (
            "takes the mean",
            """
            def ring_all_reduce(tensor, group=None):
                parallel.ring_all_reduce(tensor, group)
                tensor /= dist.get_world_size(group)
            """,
            "every rank holds the sum (4 ranks",
        ),
        (
            "returns the sum and leaves the tensor",
            """
            def ring_all_reduce(tensor, group=None):
                result = tensor.clone()
                parallel.ring_all_reduce(result, group)
                return result
            """,
            "the sum is in the tensor that was passed",
        ),
        (
            "lets torch do it",
            """
            def ring_all_reduce(tensor, group=None):
                dist.all_reduce(tensor, group=group)
            """,
            "calls of all_reduce",
        ),
        (
            "lets torch do half of it",
            """
            def ring_all_reduce(tensor, group=None):
                parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, tensor, group=group)
                tensor.copy_(sum(parts))
            """,
            "calls of all_gather",
        ),
        (
            "everybody sends before anybody receives",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = tensor.view(-1).tensor_split(n)
                for step in range(n - 1):
                    incoming = torch.empty_like(chunks[(rank - step - 1) % n])
                    dist.send(chunks[(rank - step) % n], group_dst=(rank + 1) % n, group=group)
                    dist.recv(incoming, group_src=(rank - 1) % n, group=group)
                    chunks[(rank - step - 1) % n].add_(incoming)
                parallel.ring_all_gather(chunks, range(n), group)
            """,
            "every rank runs to its end",
        ),
        (
            "a power of two only: partners by xor",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                stride = 1
                while stride < n:
                    incoming = torch.empty_like(tensor)
                    parallel.exchange(tensor, rank ^ stride, incoming, rank ^ stride, group)
                    tensor += incoming
                    stride *= 2
            """,
            "rank",
        ),
        (
            "drops what n does not divide",
            """
            def ring_all_reduce(tensor, group=None):
                n = dist.get_world_size(group)
                flat, each = tensor.view(-1), tensor.numel() // n
                chunks = [flat[c * each : (c + 1) * each] for c in range(n)]
                parallel.ring_reduce_scatter(chunks, range(n), group)
                parallel.ring_all_gather(chunks, range(n), group)
            """,
            "it works for 10 float64 on 4 ranks",
        ),
        (
            "takes the tensor to be flat",
            """
            def ring_all_reduce(tensor, group=None):
                n = dist.get_world_size(group)
                chunks = list(tensor.tensor_split(n))
                if tensor.dim() > 1:
                    chunks = list(tensor[:1].tensor_split(n, dim=1))
                    chunks = [chunk.view(-1) for chunk in chunks]
                parallel.ring_reduce_scatter(chunks, range(n), group)
                parallel.ring_all_gather(chunks, range(n), group)
            """,
            "shape 2 x 4",
        ),
        (
            "forgets the group",
            """
            def ring_all_reduce(tensor, group=None):
                n = dist.get_world_size()
                chunks = tensor.view(-1).tensor_split(n)
                parallel.ring_reduce_scatter(chunks, range(n))
                parallel.ring_all_gather(chunks, range(n))
            """,
            "it works in a group",
        ),
        (
            "sends the whole tensor in each step",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                outgoing = tensor.clone()
                for _ in range(n - 1):
                    incoming = torch.empty_like(tensor)
                    parallel.exchange(outgoing, (rank + 1) % n, incoming, (rank - 1) % n, group)
                    tensor += incoming
                    outgoing = incoming
            """,
            "bytes that the busiest rank sends",
        ),
        (
            "even ranks send first, odd ranks receive first: no deadlock, and half of the links idle",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = tensor.view(-1).tensor_split(n)

                def pass_on(outgoing, incoming):
                    send = lambda: dist.send(outgoing, group_dst=(rank + 1) % n, group=group)
                    receive = lambda: dist.recv(incoming, group_src=(rank - 1) % n, group=group)
                    for call in (send, receive) if rank % 2 == 0 else (receive, send):
                        call()

                for step in range(n - 1):
                    incoming = torch.empty_like(chunks[(rank - step - 1) % n])
                    pass_on(chunks[(rank - step) % n], incoming)
                    chunks[(rank - step - 1) % n].add_(incoming)
                for step in range(n - 1):
                    pass_on(chunks[(rank - step + 1) % n], chunks[(rank - step) % n])
            """,
            "seconds of 2(n-1) steps",
        ),
        (
            "passes the tensors round the network, in the memory that simulated ranks share",
            """
            shelf = {}

            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                key = (n, tensor.numel(), tensor.dtype, tensor.shape, group is None)
                shelf.setdefault(key, {})[rank] = tensor.clone()
                empty = torch.empty(0)
                for _ in range(2):
                    for step in range(n - 1):
                        parallel.exchange(empty, (rank + 1) % n, empty.clone(), (rank - 1) % n, group)
                tensor.copy_(sum(shelf[key][r] for r in range(n)))
            """,
            "all bytes go through messages",
        ),
    ],
    "tree_all_reduce": [
        (
            "up only: rank 0 has the sum",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                incoming, stride = torch.empty_like(tensor), 1
                while stride < n:
                    if rank % (2 * stride) == stride:
                        dist.send(tensor, group_dst=rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.recv(incoming, group_src=rank + stride, group=group)
                        tensor += incoming
                    stride *= 2
            """,
            "every rank holds the sum (8 ranks",
        ),
        (
            "keeps the last message instead of adding it",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                strides = [2**k for k in range((n - 1).bit_length())]
                for stride in [*strides, *reversed(strides)]:
                    if rank % (2 * stride) == stride:
                        dist.send(tensor, group_dst=rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.recv(tensor, group_src=rank + stride, group=group)
            """,
            "every rank holds the sum (8 ranks",
        ),
        (
            "returns the sum and leaves the tensor",
            """
            def tree_all_reduce(tensor, group=None):
                result = tensor.clone()
                parallel.tree_all_reduce(result, group)
                return result
            """,
            "the sum is in the tensor that was passed",
        ),
        (
            "lets torch do it",
            """
            def tree_all_reduce(tensor, group=None):
                dist.reduce(tensor, group_dst=0, group=group)
                dist.broadcast(tensor, group_src=0, group=group)
            """,
            "calls of broadcast, reduce",
        ),
        (
            "right for powers of two only: forgets that a partner may be missing",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                strides = [2**k for k in range((n - 1).bit_length())]
                incoming = torch.empty_like(tensor)
                for stride in strides:
                    if rank % (2 * stride) == stride:
                        dist.send(tensor, group_dst=rank - stride, group=group)
                    elif rank % (2 * stride) == 0:
                        dist.recv(incoming, group_src=rank + stride, group=group)
                        tensor += incoming
                for stride in reversed(strides):
                    if rank % (2 * stride) == stride:
                        dist.recv(tensor, group_src=rank - stride, group=group)
                    elif rank % (2 * stride) == 0:
                        dist.send(tensor, group_dst=rank + stride, group=group)
            """,
            "your code runs without an exception",
        ),
        (
            "rounds log2 n down: the last ranks are left out",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                strides = [2**k for k in range(n.bit_length() - 1)]
                incoming = torch.empty_like(tensor)
                for stride in strides:
                    if rank % (2 * stride) == stride:
                        dist.send(tensor, group_dst=rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.recv(incoming, group_src=rank + stride, group=group)
                        tensor += incoming
                for stride in reversed(strides):
                    if rank % (2 * stride) == stride:
                        dist.recv(tensor, group_src=rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.send(tensor, group_dst=rank + stride, group=group)
            """,
            "it works on 3 ranks",
        ),
        (
            "names ranks of the world inside a group",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                strides = [2**k for k in range((n - 1).bit_length())]
                incoming = torch.empty_like(tensor)
                for stride in strides:
                    if rank % (2 * stride) == stride:
                        dist.send(tensor, rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.recv(incoming, rank + stride, group=group)
                        tensor += incoming
                for stride in reversed(strides):
                    if rank % (2 * stride) == stride:
                        dist.recv(tensor, rank - stride, group=group)
                    elif rank % (2 * stride) == 0 and rank + stride < n:
                        dist.send(tensor, rank + stride, group=group)
            """,
            "it works in a group",
        ),
        (
            "a star: everybody sends to rank 0",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank:
                    dist.send(tensor, group_dst=0, group=group)
                    dist.recv(tensor, group_src=0, group=group)
                    return
                incoming = torch.empty_like(tensor)
                for other in range(1, n):
                    dist.recv(incoming, group_src=other, group=group)
                    tensor += incoming
                for other in range(1, n):
                    dist.send(tensor, group_dst=other, group=group)
            """,
            "seconds of 2 log2(n) rounds on 8 ranks",
        ),
        (
            "a ring again",
            """
            def tree_all_reduce(tensor, group=None):
                parallel.ring_all_reduce(tensor, group)
            """,
            "seconds of 2 log2(n) rounds on 8 ranks",
        ),
        (
            "a butterfly: everybody talks in every round",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if n & (n - 1):
                    return parallel.tree_all_reduce(tensor, group)
                stride = 1
                while stride < n:
                    incoming = torch.empty_like(tensor)
                    parallel.exchange(tensor, rank ^ stride, incoming, rank ^ stride, group)
                    tensor += incoming
                    stride *= 2
            """,
            "bytes that all ranks send",
        ),
        (
            "a tree for powers of two, a star for other numbers",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if n & (n - 1) == 0:
                    return parallel.tree_all_reduce(tensor, group)
                if rank:
                    dist.send(tensor, group_dst=0, group=group)
                    dist.recv(tensor, group_src=0, group=group)
                    return
                incoming = torch.empty_like(tensor)
                for other in range(1, n):
                    dist.recv(incoming, group_src=other, group=group)
                    tensor += incoming
                for other in range(1, n):
                    dist.send(tensor, group_dst=other, group=group)
            """,
            "rounded up, on 6 ranks",
        ),
    ],
    "crossing_size_bytes": [
        (
            "right for powers of two only: log2 n is not rounded up",
            """
            from math import log2

            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                return (n - 1 - log2(n)) * latency_s * bandwidth_bytes_per_s / (log2(n) - (n - 1) / n)
            """,
            "(6 ranks",
        ),
        (
            "lets the ring send the whole tensor in each step",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return (n - 1 - rounds) * latency_s * bandwidth_bytes_per_s / abs(rounds - (n - 1))
            """,
            "(8 ranks, NVLink 4)",
        ),
        (
            "forgets the way back of the tree",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return (2 * (n - 1) - rounds) * latency_s * bandwidth_bytes_per_s / (rounds - 2 * (n - 1) / n)
            """,
            "(8 ranks, NVLink 4)",
        ),
        (
            "gives the size of a chunk",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return (n - 1 - rounds) * latency_s * bandwidth_bytes_per_s / (rounds - (n - 1) / n) / n
            """,
            "(8 ranks, NVLink 4)",
        ),
        (
            "takes the bandwidth for beta",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return (n - 1 - rounds) * latency_s / bandwidth_bytes_per_s / (rounds - (n - 1) / n)
            """,
            "(8 ranks, NVLink 4)",
        ),
        (
            "knows NVLink only",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return (n - 1 - rounds) * 1.9e-6 * 450e9 / (rounds - (n - 1) / n)
            """,
            "(8 ranks, RoCE",
        ),
        (
            "never less than one byte",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                rounds = (n - 1).bit_length()
                return max(1, (n - 1 - rounds) * latency_s * bandwidth_bytes_per_s / (rounds - (n - 1) / n))
            """,
            "on 2 ranks the tree never wins",
        ),
    ],
    "hierarchical_all_reduce": [
        (
            "stays inside the node",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                place = dist.get_rank() % ranks_per_node
                node = range(dist.get_rank() - place, dist.get_rank() - place + ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                parallel.ring_all_gather(chunks, node)
            """,
            "0 B leave a node",
        ),
        (
            "sends the chunk of its own number, which is not the finished one",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node, rail = range(rank - place, rank - place + ranks_per_node), range(place, n, ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                pieces = chunks[place].tensor_split(len(rail))
                parallel.ring_reduce_scatter(pieces, rail)
                parallel.ring_all_gather(pieces, rail)
                parallel.ring_all_gather(chunks, node)
            """,
            "every rank holds the sum (2 nodes",
        ),
        (
            "returns the sum and leaves the tensor",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                result = tensor.clone()
                parallel.hierarchical_all_reduce(result, ranks_per_node=ranks_per_node)
                return result
            """,
            "the sum is in the tensor that was passed",
        ),
        (
            "lets torch do the way across",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                place, n = dist.get_rank() % ranks_per_node, dist.get_world_size()
                rails = [dist.new_group(list(range(p, n, ranks_per_node))) for p in range(ranks_per_node)]
                node = range(dist.get_rank() - place, dist.get_rank() - place + ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                dist.all_reduce(chunks[(place + 1) % ranks_per_node], group=rails[place])
                parallel.ring_all_gather(chunks, node)
            """,
            "calls of all_reduce",
        ),
        (
            "right for two nodes only: adds what the other node has",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node = range(rank - place, rank - place + ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                mine = chunks[(place + 1) % ranks_per_node]
                other = torch.empty_like(mine)
                parallel.exchange(mine, (rank + ranks_per_node) % n, other, (rank - ranks_per_node) % n)
                mine += other
                parallel.ring_all_gather(chunks, node)
            """,
            "it works on 3 nodes of 2 ranks",
        ),
        (
            "drops what the nodes do not divide",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node, rail = range(rank - place, rank - place + ranks_per_node), range(place, n, ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                mine = chunks[(place + 1) % ranks_per_node]
                each = len(mine) // len(rail)
                pieces = [mine[i * each : (i + 1) * each] for i in range(len(rail))]
                parallel.ring_reduce_scatter(pieces, rail)
                parallel.ring_all_gather(pieces, rail)
                parallel.ring_all_gather(chunks, node)
            """,
            "it works on 3 nodes of 4 ranks",
        ),
        (
            "a flat ring",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                parallel.ring_all_reduce(tensor)
            """,
            "bytes that leave a node",
        ),
        (
            "across the nodes first, with the whole tensor",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node, rail = range(rank - place, rank - place + ranks_per_node), range(place, n, ranks_per_node)
                pieces = tensor.view(-1).tensor_split(len(rail))
                parallel.ring_reduce_scatter(pieces, rail)
                mine = pieces[(rank // ranks_per_node + 1) % len(rail)].tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(mine, node)
                parallel.ring_all_gather(mine, node)
                parallel.ring_all_gather(pieces, rail)
            """,
            "bytes that leave a node",
        ),
        (
            "one leader a node speaks for all: one NIC works, the others are idle",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node, leaders = range(rank - place, rank - place + ranks_per_node), range(0, n, ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                parallel.ring_all_gather(chunks, node)
                if place == 0:
                    pieces = tensor.view(-1).tensor_split(len(leaders))
                    parallel.ring_reduce_scatter(pieces, leaders)
                    parallel.ring_all_gather(pieces, leaders)
                    for other in node[1:]:
                        dist.send(tensor, other)
                else:
                    dist.recv(tensor, rank - place)
            """,
            "bytes through the busiest NIC",
        ),
        (
            "reduces the whole tensor inside the node before each rank takes its part across",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                place = rank % ranks_per_node
                node, rail = range(rank - place, rank - place + ranks_per_node), range(place, n, ranks_per_node)
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                parallel.ring_reduce_scatter(chunks, node)
                parallel.ring_all_gather(chunks, node)
                pieces = chunks[(place + 1) % ranks_per_node].tensor_split(len(rail))
                parallel.ring_reduce_scatter(pieces, rail)
                parallel.ring_all_gather(pieces, rail)
                parallel.ring_all_gather(chunks, node)
            """,
            "seconds",
        ),
    ],
}
