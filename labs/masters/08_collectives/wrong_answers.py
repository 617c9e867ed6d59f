"""Wrong answers to lab 08: typical mistakes, and ways round the exercise. And unusual right ones."""


def but(source: str, *changes: tuple[str, str]) -> str:
    """The source with some of its lines changed."""
    for old, new in changes:
        assert old in source, f"nothing to change: {old!r}"
        source = source.replace(old, new)
    return source


RING = """
def ring_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(n)
    parallel.ring_reduce_scatter(chunks, range(n), group)
    for step in range(n - 1):
        outgoing, incoming = chunks[(rank - step + 1) % n], chunks[(rank - step) % n]
        parallel.exchange(outgoing, (rank + 1) % n, incoming, (rank - 1) % n, group)
"""

TREE = """
def tree_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    strides = [2**k for k in range((n - 1).bit_length())]
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
"""

CROSSING = """
def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
    k = (n - 1).bit_length()
    return (n - 1 - k) * latency_s * bandwidth_bytes_per_s / (k - (n - 1) / n)
"""

BISECTION = """
def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
    k, beta = len(bin(n - 1)) - 2, 1 / bandwidth_bytes_per_s
    if n < 4:
        return 0
    low, high = 0.0, 1e16
    for _ in range(200):
        size = (low + high) / 2
        ring, tree = (n - 1) * (latency_s + size / n * beta), k * (latency_s + size * beta)
        low, high = (size, high) if tree < ring else (low, size)
    return low
"""

HALVING = """
def halving_doubling_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    strides = [n >> k for k in range(1, n.bit_length())]
    piece, halves = tensor.view(-1), []
    for stride in strides:
        low, high = piece.tensor_split(2)
        kept, given = (high, low) if rank & stride else (low, high)
        incoming = torch.empty_like(kept)
        parallel.exchange(given, rank ^ stride, incoming, rank ^ stride)
        kept += incoming
        halves.append((kept, given))
        piece = kept
    for stride, (kept, given) in zip(reversed(strides), reversed(halves)):
        parallel.exchange(kept, rank ^ stride, given, rank ^ stride)
"""

HIERARCHY = """
def hierarchical_all_reduce(tensor, ranks_per_node):
    rank, n = dist.get_rank(), dist.get_world_size()
    place = rank % ranks_per_node
    node = range(rank - place, rank - place + ranks_per_node)
    rail = range(place, n, ranks_per_node)
    chunks = tensor.view(-1).tensor_split(ranks_per_node)
    parallel.ring_reduce_scatter(chunks, node)
    mine = chunks[(place + 1) % ranks_per_node]
    pieces = mine.tensor_split(len(rail))
    parallel.ring_reduce_scatter(pieces, rail)
    parallel.ring_all_gather(pieces, rail)
    parallel.ring_all_gather(chunks, node)
"""

STAR = """
def star(tensor, group=None):
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
"""

LIBRARY = """
{before}

def ring_all_reduce(tensor, group=None):
    {f}(tensor, group)
"""

CUT_REST_LAST = """\
    flat = tensor.view(-1)
    ends = [len(flat) // n * c for c in range(n)] + [len(flat)]
    chunks = [flat[low:high] for low, high in zip(ends, ends[1:])]
"""

CHAIN = """
def chain(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    incoming = torch.empty_like(tensor)
    if rank + 1 < n:
        dist.recv(incoming, group_src=rank + 1, group=group)
        tensor += incoming
    if rank:
        dist.send(tensor, group_dst=rank - 1, group=group)
        dist.recv(tensor, group_src=rank - 1, group=group)
    if rank + 1 < n:
        dist.send(tensor, group_dst=rank + 1, group=group)
"""

BOTH_HALVES = """
    for step in range(2 * (n - 1)):
        outgoing, mine = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        EXCHANGE
        mine.copy_(mine + incoming if step < n - 1 else incoming)
"""
HEAD = RING[: RING.index("    parallel.ring_reduce_scatter")]


def ring_with(exchange: str) -> str:
    """A ring of one loop, with the given code for the exchange."""
    return HEAD + BOTH_HALVES.replace("EXCHANGE", exchange.strip().replace("\n", "\n        ")).lstrip("\n")


BLOCKING = """
send = lambda: dist.send(outgoing, group_dst=(rank + 1) % n, group=group)
receive = lambda: dist.recv(incoming, group_src=(rank - 1) % n, group=group)
for call in (send, receive):
    n > 1 and call()
"""
UNWAITED = """
dist.isend(outgoing.clone(), group_dst=(rank + 1) % n, group=group)
dist.recv(incoming, group_src=(rank - 1) % n, group=group)
"""
WAITED = """
works = [dist.isend(outgoing, group_dst=(rank + 1) % n, group=group)]
works.append(dist.irecv(incoming, group_src=(rank - 1) % n, group=group))
for work in works:
    work.wait()
"""
STORE = """

def {name}({signature}):
    import pickle

    store = dist.distributed_c10d._get_default_store()
    members = dist.get_process_group_ranks(group or dist.group.WORLD) if "group" in locals() else None
    store.set(str(dist.get_rank()), pickle.dumps(tensor))
    honest({call})
    ranks = range(dist.get_world_size()) if members is None else members
    tensor.copy_(sum(pickle.loads(store.get(str(rank))) for rank in ranks))
"""
BOARD = """
board = {}

def SIGNATURE:
    rank, n = dist.get_rank(), dist.get_world_size()
    board[rank] = tensor.clone()
    INNER
    tensor.copy_(sum(board[r] for r in range(n)))
"""


def on_a_board(source: str, name: str, *rest: str) -> str:
    """Right messages with no content; the values pass through a dict of the notebook."""
    signature, call = (
        f"{name}({', '.join(['tensor', *rest])})",
        f"honest({', '.join(['torch.zeros_like(tensor)', *rest])})",
    )
    return source.replace(f"def {name}(", "def honest(") + BOARD.replace("SIGNATURE", signature).replace("INNER", call)


def first(source: str, *lines: str) -> str:
    """The source with these lines in front of the function's first."""
    head, colon, rest = source.partition("):\n")
    return head + colon + "".join(f"    {line}\n" for line in lines) + rest


def by_data(source: str) -> str:
    """Sums in a copy, and gives the copy's memory to the tensor."""
    return first(source, "given, tensor = tensor, tensor.clone()") + "    given.data = tensor\n"


def for_some(source: str, condition: str) -> str:
    """Wrong where the condition holds."""
    return source + f"    if {condition}:\n        tensor.zero_()\n"


def once(source: str) -> str:
    """Sums at the first call only."""
    return "done = []\n\n" + first(source, "if done:", "    return", "done.append(1)")


def over_the_store(source: str, name: str, *rest: str) -> str:
    """Right messages with no content; the values pass through the store by which processes find each other."""
    signature, call = ", ".join(["tensor", *rest]), ", ".join(["torch.zeros_like(tensor)", *rest])
    return source.replace(f"def {name}(", "def honest(") + STORE.format(
        name=name, signature=signature.replace("group", "group=None"), call=call
    )


def star_where(source: str, condition: str) -> str:
    """A star for some numbers of ranks."""
    return STAR + but(source, (START, START + f"    if {condition}:\n        return star(tensor, group)\n"))


def cut_last(tensor: str, n: str) -> str:
    """An expression that cuts a tensor into n pieces, with the remainder in the last."""
    size = f"{tensor}.numel()"
    return f"{tensor}.split([{size} // {n}] * ({n} - 1) + [{size} - {size} // {n} * ({n} - 1)])"


REFUSES_NOTHING = ("if tensor.numel() == 0:", "    raise ValueError('nothing to sum')")
IGNORES_FEW = "if tensor.numel() < dist.get_world_size({}):"
RUNS = "your code runs without an exception"
START = "    rank, n = dist.get_rank(group), dist.get_world_size(group)\n"
OWN = "the answer is your own code"
SUM = "x holds the sum"
NEW_TENSOR = "x itself holds the sum when the call returns"
AGAIN = "a second call in the same program"
ONLY_SENDS = "only sends and receives are called"
WAIT = "every communication is waited for"
GROUP = "it works in a group"
MOST, LEAST = "the most a rank sends", "the least a rank sends"

WORLD = (("(group)", "()"), (", group=group", ""), ("group_dst=", ""), ("group_src=", ""))  # without a group

AGAIN = "each further call in the same program sums as the first did"


def in_float64(head: str, call: str) -> str:
    """A function that lets `honest` sum whole numbers in float64."""
    return f"""

def {head}:
    whole = tensor
    if not whole.is_floating_point():
        tensor = whole.double()
    honest({call})
    if tensor is not whole:
        whole.copy_(tensor)
"""


WRONG_ANSWERS = {
    "ring_all_reduce": [
        ("stops after the reduce-scatter", RING[: RING.index("    for step")], SUM),
        ("one step short in the all-gather", but(RING, ("range(n - 1)", "range(n - 2)")), SUM),
        (
            "passes on its own chunk first",
            but(
                RING,
                ("rank - step + 1", "rank - step"),
                ("incoming = chunks[(rank - step)", "incoming = chunks[(rank - step - 1)"),
            ),
            SUM,
        ),
        ("takes the mean", RING + "    tensor /= n\n", SUM),
        ("adds in the all-gather, too", RING + "        incoming += incoming\n", SUM),
        (
            "returns the sum and leaves the tensor",
            but(RING, ("    chunks", "    tensor = tensor.clone()\n    chunks")) + "    return tensor\n",
            NEW_TENSOR,
        ),
        (
            "sends half precision",
            but(RING, ("tensor.view(-1).tensor_split(n)", "(half := tensor.view(-1).half()).tensor_split(n)"))
            + "    tensor.view(-1).copy_(half)\n",
            SUM,
        ),
        (
            "calls torch",
            "def ring_all_reduce(tensor, group=None):\n    dist.all_reduce(tensor, group=group)\n",
            ONLY_SENDS,
        ),
        (
            "calls torch for half of it",
            """
            def ring_all_reduce(tensor, group=None):
                parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
                dist.all_gather(parts, tensor, group=group)
                tensor.copy_(sum(parts))
            """,
            ONLY_SENDS,
        ),
        (
            "calls torch where n does not divide the size",
            but(
                RING,
                (START, START + "    if tensor.numel() % n:\n        return dist.all_reduce(tensor, group=group)\n"),
            ),
            ONLY_SENDS,
        ),
        (
            "calls torch on any number of ranks but four",
            but(RING, (START, START + "    if n != 4:\n        return dist.all_reduce(tensor, group=group)\n")),
            ONLY_SENDS,
        ),
        (
            "calls lablib",
            "def ring_all_reduce(tensor, group=None):\n    parallel.ring_all_reduce(tensor, group)\n",
            OWN,
        ),
        (
            "calls lablib, by another name",
            "def ring_all_reduce(tensor, group=None):\n    getattr(parallel, 'ring_all_reduce')(tensor, group)\n",
            OWN,
        ),
        (
            "imports lablib's",
            """
def ring_all_reduce(tensor, group=None):
    from lablib.parallel.collectives.tree import tree_all_reduce as ring
    ring(tensor, group)
""",
            OWN,
        ),
        (
            "calls lablib for the second half",
            RING[: RING.index("    for step")] + "    parallel.ring_all_gather(chunks, range(n), group)\n",
            OWN,
        ),
        ("every rank sends before any receives", ring_with(BLOCKING), "every rank runs to its end"),
        (
            "even ranks send first, odd ranks receive first: no deadlock, and half of the links idle",
            ring_with(but(BLOCKING, ("(send, receive)", "((send, receive) if rank % 2 == 0 else (receive, send))"))),
            "seconds of 2(n-1) steps",
        ),
        ("does not wait for its sends", ring_with(UNWAITED), WAIT),
        (
            "a power of two only: partners by xor, and whole tensors",
            """
            def ring_all_reduce(tensor, group=None):
                rank, n, stride = dist.get_rank(group), dist.get_world_size(group), 1
                while stride < n:
                    incoming = torch.empty_like(tensor)
                    parallel.exchange(tensor, rank ^ stride, incoming, rank ^ stride, group)
                    tensor += incoming
                    stride *= 2
            """,
            MOST,
        ),
        (
            "drops the remainder",
            but(
                RING, ("tensor.view(-1).tensor_split(n)", "tensor.view(-1)[: tensor.numel() // n * n].tensor_split(n)")
            ),
            SUM,
        ),
        (
            "cuts a matrix into rows, so that some ranks send much more",
            but(RING, ("tensor.view(-1).tensor_split(n)", "tensor.tensor_split(n)")),
            MOST,
        ),
        ("forgets the group", but(RING, ("(group)", "()"), (", group)", ")")), GROUP),
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
            MOST,
        ),
        (
            "a star where n does not divide the size",
            STAR + but(RING, (START, START + "    if tensor.numel() % n:\n        return star(tensor, group)\n")),
            MOST,
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
            RUNS,
        ),
        (
            "lablib's, from a dict",
            LIBRARY.format(before="tools = {'f': parallel.all_reduce_average}", f="tools['f']"),
            OWN,
        ),
        (
            "lablib's, with arguments bound",
            "import functools\n"
            "ring_all_reduce = functools.partial(parallel.hierarchical_all_reduce, ranks_per_node=1)\n",
            OWN,
        ),
        (
            "lablib's, from the globals of an allowed function",
            LIBRARY.format(before="", f="parallel.exchange.__globals__['ring_all_reduce']"),
            OWN,
        ),
        (
            "lablib's, from the modules that are loaded",
            LIBRARY.format(before="import sys", f="sys.modules['lablib.parallel'].ring_all_reduce"),
            OWN,
        ),
        (
            "looks for the other tensors in the frames of the check",
            """
            import sys

            def ring_all_reduce(tensor, group=None):
                frame = sys._getframe(1)
                while "parts" not in frame.f_locals:
                    frame = frame.f_back
                tensor.copy_(sum(frame.f_locals["parts"]))
            """,
            OWN,
        ),
        ("gives the tensor other memory", by_data(RING), NEW_TENSOR),
        ("refuses an empty tensor", first(RING, *REFUSES_NOTHING), RUNS),
        ("leaves fewer elements than ranks", first(RING, IGNORES_FEW.format("group"), "    return"), NEW_TENSOR),
        ("wrong for whole numbers", for_some(RING, "not tensor.is_floating_point()"), SUM),
        ("wrong for a single number", for_some(RING, "tensor.ndim == 0"), SUM),
        ("wrong for three dimensions", for_some(RING, "tensor.ndim == 3"), GROUP),
        ("wrong on one rank", for_some(RING, "n == 1"), SUM),
        ("chunk(n), which makes fewer chunks", but(RING, ("tensor_split(n)", "chunk(n)")), RUNS),
        (
            "the rest in the last chunk",
            but(RING, ("    parallel.ring_reduce", CUT_REST_LAST + "    parallel.ring_reduce")),
            "unequal shares",
        ),
        (
            "a star on few ranks",
            STAR + but(RING, (START, START + "    if n < 4:\n        return star(tensor, group)\n")),
            "seconds of 2(n-1) steps",
        ),
        ("sums once only", once(RING), AGAIN),
        ("sends zeros, and the values through the store", over_the_store(RING, "ring_all_reduce", "group"), OWN),
        ("a star on five ranks", star_where(RING, "n == 5"), "5 ranks"),
        ("a star on many ranks", star_where(RING, "n > 9"), MOST),
        (
            "a star in a group",
            STAR + but(RING, (START, START + "    if group:\n        return star(tensor, group)\n")),
            MOST,
        ),
        (
            "sums once for each size",
            "done = set()\n" + first(RING, "if tensor.numel() in done:", "    return", "done.add(tensor.numel())"),
            AGAIN,
        ),
        ("writes next to its tensor", first(RING, "tensor._base[0] = 7"), "the memory next to x"),
        (
            "adds whole numbers in float64",
            RING.replace("def ring_all_reduce(", "def honest(")
            + in_float64("ring_all_reduce(tensor, group=None)", "tensor, group"),
            "whole numbers are summed exactly",
        ),
        (
            "remembers the group of the first call",
            "groups = []\n" + first(RING, "groups.append(group)", "group = groups[0]"),
            "a call in a group, and then one without",
        ),
    ],
    "tree_all_reduce": [
        ("up only: rank 0 has the sum", TREE[: TREE.index("    for stride in reversed")], SUM),
        (
            "keeps the last message instead of adding it",
            but(TREE, ("dist.recv(incoming", "dist.recv(tensor"), ("            tensor += incoming\n", "")),
            SUM,
        ),
        ("takes the mean", TREE + "    tensor /= n\n", SUM),
        (
            "returns the sum and leaves the tensor",
            but(TREE, ("    strides", "    tensor = tensor.clone()\n    strides")) + "    return tensor\n",
            NEW_TENSOR,
        ),
        (
            "calls torch",
            """
            def tree_all_reduce(tensor, group=None):
                dist.reduce(tensor, group_dst=0, group=group)
                dist.broadcast(tensor, group_src=0, group=group)
            """,
            ONLY_SENDS,
        ),
        (
            "calls torch for the way down",
            TREE[: TREE.index("    for stride in reversed")] + "    dist.broadcast(tensor, group_src=0, group=group)\n",
            ONLY_SENDS,
        ),
        (
            "calls torch where n is no power of two",
            but(TREE, (START, START + "    if n & (n - 1):\n        return dist.all_reduce(tensor, group=group)\n")),
            ONLY_SENDS,
        ),
        (
            "calls lablib",
            "def tree_all_reduce(tensor, group=None):\n    parallel.tree_all_reduce(tensor, group)\n",
            OWN,
        ),
        (
            "a lablib ring",
            "def tree_all_reduce(tensor, group=None):\n    parallel.ring_all_reduce(tensor, group)\n",
            OWN,
        ),
        (
            "right for powers of two only: forgets that a partner may be missing",
            but(TREE, (" and rank + stride < n", "")),
            "your code runs without an exception",
        ),
        (
            "rounds log2 n down: the last ranks are left out",
            but(TREE, ("(n - 1).bit_length()", "n.bit_length() - 1")),
            SUM,
        ),
        ("names ranks of the world inside a group", but(TREE, ("group_dst=", ""), ("group_src=", "")), GROUP),
        ("forgets the group", but(TREE, ("(group)", "()"), (", group=group)", ")")), GROUP),
        ("a star: all send to rank 0", but(STAR, ("star", "tree_all_reduce")), "seconds of 2 log2(n)"),
        ("a ring again", but(ring_with(WAITED), ("ring_all_reduce", "tree_all_reduce")), "messages that all"),
        (
            "up in a tree, down from rank 0 to each",
            TREE[: TREE.index("    for stride in reversed")]
            + """\
    if rank:
        dist.recv(tensor, group_src=0, group=group)
    for other in range(1, n) if rank == 0 else ():
        dist.send(tensor, group_dst=other, group=group)
""",
            "seconds of 2 log2(n)",
        ),
        (
            "a butterfly: all ranks send in every round",
            but(
                TREE,
                (
                    START,
                    START
                    + """    if not n & (n - 1):
        for stride in [2**k for k in range(n.bit_length() - 1)]:
            incoming = torch.empty_like(tensor)
            works = [dist.isend(tensor.clone(), group_dst=rank ^ stride, group=group)]
            works += [dist.irecv(incoming, group_src=rank ^ stride, group=group)]
            [work.wait() for work in works]
            tensor += incoming
        return
""",
                ),
            ),
            "messages that all",
        ),
        (
            "a tree for powers of two, a star for other numbers",
            STAR + but(TREE, (START, START + "    if n & (n - 1):\n        return star(tensor, group)\n")),
            "seconds of 2 log2(n)",
        ),
        ("does not wait for its sends", but(TREE, ("dist.send(tensor,", "dist.isend(tensor.clone(),")), WAIT),
        (
            "sends half precision",
            but(TREE, ("    strides", "    whole, tensor = tensor, tensor.half()\n    strides"))
            + "    whole.copy_(tensor)\n",
            SUM,
        ),
        (
            "sends the same twice",
            but(
                TREE,
                (
                    "            dist.send(tensor, group_dst=rank - stride, group=group)",
                    """\
            for half in tensor.view(-1).tensor_split(2):
                dist.send(half, group_dst=rank - stride, group=group)""",
                ),
                (
                    "            dist.recv(incoming, group_src=rank + stride, group=group)",
                    """\
            for half in incoming.view(-1).tensor_split(2):
                dist.recv(half, group_src=rank + stride, group=group)""",
                ),
            ),
            "messages that all",
        ),
        (
            "a chain in a group",
            CHAIN + but(TREE, (START, START + "    if group:\n        return chain(tensor, group)\n")),
            "seconds of 2 log2(n)",
        ),
        ("sums once only", once(TREE), AGAIN),
        ("sends zeros, and the values through the store", over_the_store(TREE, "tree_all_reduce", "group"), OWN),
        ("a star on four ranks", star_where(TREE, "n == 4"), "4 ranks"),
        ("a star on many ranks", star_where(TREE, "n > 12"), "seconds of 2 log2(n)"),
        ("gives the tensor other memory", by_data(TREE), NEW_TENSOR),
        ("refuses an empty tensor", first(TREE, *REFUSES_NOTHING), RUNS),
        ("leaves an empty group of elements", first(TREE, IGNORES_FEW.format("group"), "    return"), NEW_TENSOR),
        ("wrong for whole numbers", for_some(TREE, "not tensor.is_floating_point()"), SUM),
        ("wrong for a single number", for_some(TREE, "tensor.ndim == 0"), SUM),
        ("wrong for three dimensions", for_some(TREE, "tensor.ndim == 3"), GROUP),
        (
            "sends zeros, and the values through a dict",
            but(on_a_board(TREE, "tree_all_reduce", "group"), ("tensor, group):", "tensor, group=None):")),
            RUNS,
        ),
        (
            "sums once for each size",
            "done = set()\n" + first(TREE, "if tensor.numel() in done:", "    return", "done.add(tensor.numel())"),
            AGAIN,
        ),
        ("writes next to its tensor", first(TREE, "tensor._base[0] = 7"), "the memory next to x"),
        (
            "adds whole numbers in float64",
            TREE.replace("def tree_all_reduce(", "def honest(")
            + in_float64("tree_all_reduce(tensor, group=None)", "tensor, group"),
            "whole numbers are summed exactly",
        ),
        (
            "remembers the group of the first call",
            "groups = []\n" + first(TREE, "groups.append(group)", "group = groups[0]"),
            "a call in a group, and then one without",
        ),
        (
            "a star on nine ranks",
            STAR + first(TREE, "if dist.get_world_size(group) == 9:", "    return star(tensor, group)"),
            "seconds of 2 log2(n) = 8 rounds, 9 ranks",
        ),
    ],
    "crossing_size_bytes": [
        (
            "returns a text",
            but(CROSSING, ("return ", "return str("), ("/ n)", "/ n))")),
            "a size is returned, in bytes",
        ),
        ("returns a list", but(CROSSING, ("return ", "return ["), ("/ n)", "/ n)]")), "a size is returned, in bytes"),
        ("returns whether", but(CROSSING, ("return ", "return bool("), ("/ n)", "/ n))")), "a size is returned"),
        ("not a number (nan)", "def crossing_size_bytes(n, a, b):\n    return float('nan')\n", "0 or more, and finite"),
        ("endless", "def crossing_size_bytes(n, a, b):\n    return float('inf')\n", "0 or more, and finite"),
        (
            "lets the ring send the whole tensor in each step, and gets a negative size",
            but(CROSSING, ("(k - (n - 1) / n)", "((k - (n - 1)) or 1)")),
            "0 or more, and finite",
        ),
        ("wrong by a ten-thousandth", but(CROSSING, ("return ", "return 1.0001 * ")), "ring and tree take the same"),
        (
            "right up to a hundred ranks",
            but(CROSSING, ("return ", "return (n < 100) * ")),
            "ring and tree take the same",
        ),
        (
            "log2 n is not rounded up",
            "from math import log2\n" + but(CROSSING, ("(n - 1).bit_length()", "log2(n)")),
            "no power of two",
        ),
        (
            "log2 n is rounded to the nearest",
            "from math import log2\n" + but(CROSSING, ("(n - 1).bit_length()", "round(log2(n))")),
            "no power of two",
        ),
        ("log2 n is rounded down", but(CROSSING, ("(n - 1).bit_length()", "n.bit_length() - 1")), "no power of two"),
        (
            "one round too many for powers of two",
            but(CROSSING, ("(n - 1).bit_length()", "n.bit_length()")),
            "a power of two",
        ),
        (
            "a table of the numbers in another check",
            "rounds = {2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 8: 3, 12: 4, 16: 4, 17: 5, 32: 5, 64: 6}\n"
            + but(CROSSING, ("(n - 1).bit_length()", "rounds.get(n, 7)")),
            "ring and tree take the same time",
        ),
        (
            "lets the ring send the whole tensor in each step",
            but(CROSSING, ("(k - (n - 1) / n)", "abs(k - (n - 1))")),
            "a power of two",
        ),
        (
            "forgets the way back of the tree",
            but(CROSSING, ("(n - 1 - k)", "(2 * (n - 1) - k)"), ("(k - (n - 1) / n)", "(k - 2 * (n - 1) / n)")),
            "a power of two",
        ),
        ("gives the size of a chunk", but(CROSSING, ("/ n)", "/ n) / n")), "a power of two"),
        ("takes the bandwidth for beta", but(CROSSING, ("* bandwidth", "/ bandwidth")), "a power of two"),
        (
            "right for NVLink only",
            but(CROSSING, ("latency_s * bandwidth_bytes_per_s", "1.9e-6 * 450e9")),
            "a power of two",
        ),
        ("in kilobytes", but(CROSSING, ("latency_s *", "latency_s / 1000 *")), "a power of two"),
        (
            "never less than one byte",
            but(CROSSING, ("return ", "return max(1, "), ("/ n)", "/ n))")),
            "on 2 ranks the tree never wins",
        ),
        (
            "returns nothing where the tree never wins",
            but(CROSSING, ("    return", "    if n < 4:\n        return None\n    return")),
            "a size is returned, in bytes",
        ),
        ("bisects up to 1 GB", but(BISECTION, ("1e16", "1e9")), "ring and tree take the same"),
        (
            "caches the result by number of ranks and latency",
            """
            found = {}

            def crossing_size_bytes(n, latency_s, bandwidth):
                k = (n - 1).bit_length()
                size = (n - 1 - k) * latency_s * bandwidth / (k - (n - 1) / n)
                return found.setdefault((n, latency_s), size)
            """,
            "ring and tree take the same time (8 ranks",
        ),
        ("no latency above 0.1 ms", first(CROSSING, "latency_s = min(latency_s, 1e-4)"), "ring and tree take the same"),
        ("no latency below 1 us", first(CROSSING, "latency_s = max(latency_s, 1e-6)"), "ring and tree take the same"),
        (
            "no bandwidth below 1 GB/s",
            first(CROSSING, "bandwidth_bytes_per_s = max(bandwidth_bytes_per_s, 1e9)"),
            "ring and tree take the same",
        ),
        (
            "no bandwidth above 1 TB/s",
            first(CROSSING, "bandwidth_bytes_per_s = min(bandwidth_bytes_per_s, 1e12)"),
            "ring and tree take the same",
        ),
        (
            "log2 n is rounded to two digits, then up",
            "from math import ceil, log2\n" + but(CROSSING, ("(n - 1).bit_length()", "ceil(round(log2(n), 2))")),
            "no power of two",
        ),
        ("wrong on 16 ranks", but(CROSSING, ("return ", "return (n != 16) * ")), "16 ranks"),
        (
            "looks it up in lablib",
            """
def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
    from lablib.cost import collective_cost
    return 1.0
""",
            OWN,
        ),
    ],
    "halving_doubling_all_reduce": [
        ("halving only: each rank holds one piece", HALVING[: HALVING.index("    for stride, (kept")], SUM),
        (
            "keeps the received half instead of adding it",
            but(HALVING, ("kept += incoming", "kept.copy_(incoming)")),
            SUM,
        ),
        ("adds on the way out, too", HALVING + "        given += kept\n", "x holds"),
        (
            "both partners keep the first half",
            but(HALVING, ("(high, low) if rank & stride else (low, high)", "(low, high)")),
            "rank",
        ),
        ("takes the mean", HALVING + "    tensor /= n\n", SUM),
        (
            "returns the sum and leaves the tensor",
            but(HALVING, ("    piece, halves", "    tensor = tensor.clone()\n    piece, halves"))
            + "    return tensor\n",
            NEW_TENSOR,
        ),
        (
            "drops the odd element",
            but(
                HALVING,
                ("piece.tensor_split(2)", "piece[: len(piece) // 2], piece[len(piece) // 2 : len(piece) // 2 * 2]"),
            ),
            SUM,
        ),
        (
            "sends half precision",
            but(HALVING, ("tensor.view(-1), []", "(small := tensor.view(-1).half()), []"))
            + "    tensor.view(-1).copy_(small)\n",
            SUM,
        ),
        ("calls torch", "def halving_doubling_all_reduce(tensor):\n    dist.all_reduce(tensor)\n", ONLY_SENDS),
        (
            "calls torch for the way out of uneven sizes",
            but(
                HALVING,
                ("    strides", "    if tensor.numel() % n:\n        return dist.all_reduce(tensor)\n    strides"),
            ),
            ONLY_SENDS,
        ),
        ("a lablib ring", "def halving_doubling_all_reduce(tensor):\n    parallel.ring_all_reduce(tensor)\n", OWN),
        (
            "recursive doubling: few rounds, whole tensors",
            """
            def halving_doubling_all_reduce(tensor):
                rank, n, stride = dist.get_rank(), dist.get_world_size(), 1
                while stride < n:
                    incoming = torch.empty_like(tensor)
                    parallel.exchange(tensor, rank ^ stride, incoming, rank ^ stride)
                    tensor += incoming
                    stride *= 2
            """,
            MOST,
        ),
        (
            "a ring: few bytes, many rounds",
            but(
                ring_with(WAITED),
                ("ring_all_reduce(tensor, group=None)", "halving_doubling_all_reduce(tensor)"),
                ("(group)", "()"),
                (", group=group", ""),
                ("group_dst=", ""),
                ("group_src=", ""),
            ),
            "seconds of 2 log2(n)",
        ),
        ("a star", but(STAR, ("star(tensor, group=None)", "halving_doubling_all_reduce(tensor)"), *WORLD), MOST),
        (
            "a ring where the size is uneven",
            but(
                ring_with(WAITED),
                ("ring_all_reduce(tensor, group=None)", "ring(tensor)"),
                ("(group)", "()"),
                (", group=group", ""),
                ("group_dst=", ""),
                ("group_src=", ""),
            )
            + but(HALVING, ("    strides", "    if tensor.numel() % n:\n        return ring(tensor)\n    strides")),
            "seconds of 2 log2(n)",
        ),
        (
            "does not wait for its sends",
            but(
                HALVING,
                (
                    "parallel.exchange(given, rank ^ stride, incoming, rank ^ stride)",
                    "dist.isend(given.clone(), rank ^ stride)\n        dist.recv(incoming, rank ^ stride)",
                ),
            ),
            WAIT,
        ),
        (
            "on its way out in the order of its way in",
            but(HALVING, ("zip(reversed(strides), reversed(halves))", "zip(strides, halves)")),
            SUM,
        ),
        ("chunk(2), which makes one half of one element", but(HALVING, ("tensor_split(2)", "chunk(2)")), RUNS),
        ("sums once only", once(HALVING), AGAIN),
        ("sends zeros, and the values through the store", over_the_store(HALVING, "halving_doubling_all_reduce"), OWN),
        ("wrong on 32 ranks", for_some(HALVING, "n > 16"), SUM),
        ("gives the tensor other memory", by_data(HALVING), NEW_TENSOR),
        ("refuses an empty tensor", first(HALVING, *REFUSES_NOTHING), RUNS),
        ("leaves fewer elements than ranks", first(HALVING, IGNORES_FEW.format(""), "    return"), NEW_TENSOR),
        ("wrong for whole numbers", for_some(HALVING, "not tensor.is_floating_point()"), SUM),
        ("wrong on 16 ranks", for_some(HALVING, "n > 8"), SUM),
        ("cuts rows", but(HALVING, ("tensor.view(-1), []", "tensor, []")), ""),
        (
            "sends zeros, and the values through a dict",
            on_a_board(HALVING, "halving_doubling_all_reduce"),
            RUNS,
        ),
        (
            "sums once for each size",
            "done = set()\n" + first(HALVING, "if tensor.numel() in done:", "    return", "done.add(tensor.numel())"),
            AGAIN,
        ),
        ("writes next to its tensor", first(HALVING, "tensor._base[0] = 7"), "the memory next to x"),
        (
            "adds whole numbers in float64",
            HALVING.replace("def halving_doubling_all_reduce(", "def honest(")
            + in_float64("halving_doubling_all_reduce(tensor)", "tensor"),
            "whole numbers are summed exactly",
        ),
    ],
    "hierarchical_all_reduce": [
        (
            "stays inside the node",
            but(
                HIERARCHY,
                ("    parallel.ring_reduce_scatter(pieces, rail)\n", ""),
                ("    parallel.ring_all_gather(pieces, rail)\n", ""),
            ),
            SUM,
        ),
        (
            "takes the node's ranks for the rail's",
            but(HIERARCHY, ("chunks[(place + 1) % ranks_per_node]", "chunks[(place + 1) % len(rail)]")),
            SUM,
        ),
        (
            "forgets to bring the chunks together",
            but(HIERARCHY, ("    parallel.ring_all_gather(chunks, node)\n", "")),
            SUM,
        ),
        (
            "returns the sum and leaves the tensor",
            but(HIERARCHY, ("    place", "    tensor = tensor.clone()\n    place")) + "    return tensor\n",
            NEW_TENSOR,
        ),
        (
            "calls lablib",
            """
def hierarchical_all_reduce(tensor, ranks_per_node):
    parallel.hierarchical_all_reduce(tensor, ranks_per_node=ranks_per_node)
""",
            OWN,
        ),
        (
            "calls torch for the way across",
            but(
                HIERARCHY,
                ("    parallel.ring_reduce_scatter(pieces, rail)\n", ""),
                (
                    "    parallel.ring_all_gather(pieces, rail)\n",
                    """\
    rails = [dist.new_group(list(range(p, n, ranks_per_node))) for p in range(ranks_per_node)]
    dist.all_reduce(mine, group=rails[place])
""",
                ),
            ),
            ONLY_SENDS,
        ),
        (
            "right for two nodes only: adds the other node's chunk",
            but(
                HIERARCHY,
                (
                    "    parallel.ring_reduce_scatter(pieces, rail)\n",
                    """\
    other = torch.empty_like(mine)
    parallel.exchange(mine, (rank + ranks_per_node) % n, other, (rank - ranks_per_node) % n)
""",
                ),
                ("    parallel.ring_all_gather(pieces, rail)\n", "    mine += other\n"),
            ),
            SUM,
        ),
        (
            "whole chunks to all others of the rail",
            but(
                HIERARCHY,
                (
                    "    parallel.ring_reduce_scatter(pieces, rail)\n",
                    """\
    whole = mine.clone()
    for k in range(1, len(rail)):
        other = torch.empty_like(mine)
        parallel.exchange(whole, (rank + k * ranks_per_node) % n, other, (rank - k * ranks_per_node) % n)
        mine += other
""",
                ),
                ("    parallel.ring_all_gather(pieces, rail)\n", ""),
            ),
            "bytes that leave a node",
        ),
        (
            "drops the remainder of the nodes",
            but(
                HIERARCHY,
                ("mine.tensor_split(len(rail))", "mine[: len(mine) // len(rail) * len(rail)].tensor_split(len(rail))"),
            ),
            SUM,
        ),
        ("nodes of four only", but(HIERARCHY, ("    rank, n", "    ranks_per_node = 4\n    rank, n")), "rank"),
        (
            "a flat ring",
            """
def hierarchical_all_reduce(tensor, ranks_per_node):
    ring = range(dist.get_world_size())
    chunks = tensor.view(-1).tensor_split(len(ring))
    parallel.ring_reduce_scatter(chunks, ring)
    parallel.ring_all_gather(chunks, ring)
""",
            "bytes that leave a node",
        ),
        (
            "a flat ring unless there are two nodes",
            but(
                HIERARCHY,
                (
                    "    place",
                    """\
    if n != 2 * ranks_per_node:
        flat = tensor.view(-1).tensor_split(n)
        parallel.ring_reduce_scatter(flat, range(n))
        return parallel.ring_all_gather(flat, range(n))
    place""",
                ),
            ),
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
            "one leader per node sends for all: one NIC works, the others are idle",
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
            but(HIERARCHY, ("    mine =", "    parallel.ring_all_gather(chunks, node)\n    mine =")),
            "seconds of its three phases",
        ),
        ("sums once only", once(HIERARCHY), AGAIN),
        (
            "sends zeros, and the values through the store",
            over_the_store(HIERARCHY, "hierarchical_all_reduce", "ranks_per_node"),
            OWN,
        ),
        ("wrong on more nodes", for_some(HIERARCHY, "n // ranks_per_node > 4"), SUM),
        ("wrong on large nodes", for_some(HIERARCHY, "ranks_per_node > 6"), SUM),
        (
            "the rest in the last chunk",
            but(
                HIERARCHY,
                ("tensor.view(-1).tensor_split(ranks_per_node)", cut_last("tensor.view(-1)", "ranks_per_node")),
            ),
            "node",
        ),
        (
            "the rest in the last piece",
            but(HIERARCHY, ("mine.tensor_split(len(rail))", cut_last("mine", "len(rail)"))),
            "node",
        ),
        ("gives the tensor other memory", by_data(HIERARCHY), NEW_TENSOR),
        ("refuses an empty tensor", first(HIERARCHY, *REFUSES_NOTHING), RUNS),
        (
            "leaves fewer elements than ranks of a node",
            first(HIERARCHY, "if tensor.numel() < ranks_per_node:", "    return"),
            NEW_TENSOR,
        ),
        ("wrong for whole numbers", for_some(HIERARCHY, "not tensor.is_floating_point()"), SUM),
        ("wrong on larger nodes", for_some(HIERARCHY, "ranks_per_node > 4"), SUM),
        (
            "by way of float32",
            first(HIERARCHY, "given, tensor = tensor, tensor.float()") + "    given.copy_(tensor)\n",
            SUM,
        ),
        ("cuts rows", but(HIERARCHY, ("tensor.view(-1)", "tensor"), ("mine.tensor", "mine.view(-1).tensor")), "node"),
        ("chunk, which makes fewer chunks", but(HIERARCHY, ("tensor_split", "chunk")), RUNS),
        (
            "sends zeros, and the values through a dict",
            on_a_board(HIERARCHY, "hierarchical_all_reduce", "ranks_per_node"),
            RUNS,
        ),
        (
            "sums once for each size",
            "done = set()\n" + first(HIERARCHY, "if tensor.numel() in done:", "    return", "done.add(tensor.numel())"),
            AGAIN,
        ),
        ("writes next to its tensor", first(HIERARCHY, "tensor._base[0] = 7"), "the memory next to x"),
        (
            "adds whole numbers in float64",
            HIERARCHY.replace("def hierarchical_all_reduce(", "def honest(")
            + in_float64("hierarchical_all_reduce(tensor, ranks_per_node)", "tensor, ranks_per_node"),
            "whole numbers are summed exactly",
        ),
        (
            "a flat ring on three or more nodes of four or more",
            first(
                HIERARCHY,
                "n = dist.get_world_size()",
                "if ranks_per_node >= 4 and n >= 3 * ranks_per_node:",
                "    chunks = tensor.view(-1).tensor_split(n)",
                "    parallel.ring_reduce_scatter(chunks, range(n))",
                "    return parallel.ring_all_gather(chunks, range(n))",
            ),
            "(3 nodes of",
        ),
        (
            "nothing for a single number",
            first(HIERARCHY, "if tensor.dim() == 0:", "    return"),
            "x itself holds the sum",
        ),
        ("no rank alone", first(HIERARCHY, "assert dist.get_world_size() > 1"), "AssertionError"),
    ],
}

PADDED = """
def ring_all_reduce(tensor, group=None):
    n = dist.get_world_size(group)
    each = -(-tensor.numel() // n)
    flat = torch.zeros(each * n, dtype=tensor.dtype)
    flat[: tensor.numel()] = tensor.flatten()
    chunks = list(flat.split(each)) if each else [flat] * n
    parallel.ring_reduce_scatter(chunks, range(n), group)
    i = dist.get_rank(group)
    for step in range(n - 1):
        parallel.exchange(chunks[(i + 1 - step) % n], (i + 1) % n, chunks[(i - step) % n], (i - 1) % n, group)
    tensor.copy_(flat[: tensor.numel()].view_as(tensor))
"""

PAD = """\
padded = torch.zeros(-(-size // n) * n, dtype=tensor.dtype)
    padded[:size] = tensor.view(-1)
    piece, halves = padded, []"""

RIGHT_ANSWERS = {
    "ring_all_reduce": [
        ("one loop for both halves, isend and irecv", ring_with(WAITED)),
        (
            "the other way round",
            but(
                ring_with(WAITED),
                ("(rank - step", "(rank + step"),
                ("step - 1)", "step + 1)"),
                ("group_dst=(rank + 1)", "group_dst=(rank - 1)"),
                ("group_src=(rank - 1)", "group_src=(rank + 1)"),
            ),
        ),
        ("pads to equal chunks", PADDED),
        (
            "by another name",
            but(RING, ("    chunks", "    library = parallel\n    chunks"), (" parallel.", " library.")),
        ),
        (
            "imports inside an allowed function",
            but(
                RING,
                ("    chunks", "    from lablib.parallel import exchange, ring_reduce_scatter\n\n    chunks"),
                ("parallel.ring", "ring"),
                ("parallel.exchange", "exchange"),
            ),
        ),
        (
            "chunks of equal size but the last",
            but(
                RING,
                (
                    "tensor.view(-1).tensor_split(n)",
                    "[tensor.view(-1)[c * each : (c + 1) * each] for c in range(n)]",
                ),
                (START, START + "    each = -(-tensor.numel() // n)\n"),
            ),
        ),
        ("returns the tensor, too", RING + "    return tensor\n"),
        ("in a phase", first(RING, "from lablib import phase", "with phase('ring'):", "    pass")),
        (
            "by numbers of the world",
            but(
                ring_with(WAITED),
                ("    rank, n", "    members = dist.get_process_group_ranks(group or dist.group.WORLD)\n    rank, n"),
                ("group_dst=(rank + 1) % n", "dst=members[(rank + 1) % n]"),
                ("group_src=(rank - 1) % n", "src=members[rank - 1]"),
            ),
        ),
        (
            "sends no empty messages",
            but(
                ring_with(WAITED),
                ("works = [", "works = []\n        if len(outgoing):\n            works += ["),
                ("        works.append(", "        if len(incoming):\n            works.append("),
            ),
        ),
        (
            "copies in and out, slices by hand, blocking receive after a send that is waited for later",
            """
            def passed(outgoing, incoming, right, left, group):
                sent = dist.isend(outgoing.clone(), group_dst=right, group=group)
                dist.recv(incoming, group_src=left, group=group)
                sent.wait()
                return incoming

            def ring_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                flat = tensor.reshape(-1).clone()
                ends = [flat.numel() * c // n for c in range(n + 1)]
                chunk = lambda c: flat[ends[c % n] : ends[c % n + 1]]
                for step in range(n - 1):
                    mine = chunk(rank - step - 2)
                    into = torch.empty_like(mine)
                    mine += passed(chunk(rank - step - 1), into, (rank + 1) % n, (rank - 1) % n, group)
                for step in range(n - 1):
                    passed(chunk(rank - step), chunk(rank - step - 1), (rank + 1) % n, (rank - 1) % n, group)
                tensor[...] = flat.view_as(tensor)
            """,
        ),
    ],
    "tree_all_reduce": [
        (
            "isend and irecv, then wait",
            but(
                TREE,
                (
                    "dist.send(tensor, group_dst=rank - stride, group=group)",
                    "dist.isend(tensor, group_dst=rank - stride, group=group).wait()",
                ),
                (
                    "dist.recv(incoming, group_src=rank + stride, group=group)",
                    "dist.irecv(incoming, group_src=rank + stride, group=group).wait()",
                ),
            ),
        ),
        (
            "counted from the last rank",
            but(
                TREE,
                (
                    "rank, n = dist.get_rank(group), dist.get_world_size(group)",
                    "n = dist.get_world_size(group)\n    rank = n - 1 - dist.get_rank(group)",
                ),
                ("group_dst=rank", "group_dst=n - 1 - rank"),
                ("group_src=rank", "group_src=n - 1 - rank"),
                ("n - 1 - rank - stride", "n - 1 - (rank - stride)"),
                ("n - 1 - rank + stride", "n - 1 - (rank + stride)"),
            ),
        ),
        (
            "down by messages handed over together, to the farthest first",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n, stride, children = dist.get_rank(group), dist.get_world_size(group), 1, []
                while stride < n and rank % (2 * stride) == 0:
                    if rank + stride < n:
                        incoming = torch.empty_like(tensor)
                        dist.recv(incoming, group_src=rank + stride, group=group)
                        tensor += incoming
                        children.insert(0, rank + stride)
                    stride *= 2
                if rank:
                    dist.send(tensor, group_dst=rank - stride, group=group)
                    dist.recv(tensor, group_src=rank - stride, group=group)
                for work in [dist.isend(tensor, group_dst=child, group=group) for child in children]:
                    work.wait()
            """,
        ),
        (
            "by the lowest set bit, and recursive",
            """
            def tree_all_reduce(tensor, group=None):
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                lowest = rank & -rank or n

                def visit(stride):
                    if stride >= n:
                        return
                    if lowest == stride:
                        dist.send(tensor, group_dst=rank ^ stride, group=group)
                        dist.recv(tensor, group_src=rank ^ stride, group=group)
                        return
                    if rank + stride < n:
                        incoming = torch.zeros_like(tensor)
                        dist.recv(incoming, group_src=rank | stride, group=group)
                        tensor.add_(incoming)
                    visit(2 * stride)
                    if rank + stride < n:
                        dist.send(tensor, group_dst=rank | stride, group=group)

                visit(1)
            """,
        ),
    ],
    "crossing_size_bytes": [
        (
            "exact fractions",
            "from fractions import Fraction\n"
            + but(
                CROSSING,
                (
                    "latency_s * bandwidth_bytes_per_s / (k - (n - 1) / n)",
                    "Fraction(latency_s) * Fraction(bandwidth_bytes_per_s) / (k - Fraction(n - 1, n))",
                ),
            ),
        ),
        (
            "an array of no dimension",
            "import numpy\n" + but(CROSSING, ("return ", "return numpy.asarray("), ("/ n)", "/ n))")),
        ),
        (
            "from the times at two sizes, on a Link",
            """
            def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
                link = lab08.Link("asked", latency_s, bandwidth_bytes_per_s)
                k = (n - 1).bit_length()

                def more_s(size):
                    ring, tree = (link.latency_s + part / link.bandwidth_bytes_per_s for part in (size / n, size))
                    return (n - 1) * ring - k * tree

                return more_s(0) / (more_s(0) - more_s(1e9)) * 1e9
            """,
        ),
        (
            "a tensor of no dimension",
            but(CROSSING, ("return ", "return torch.tensor("), ("/ n)", "/ n), dtype=torch.float64)")),
        ),
        ("rounded to a byte", but(CROSSING, ("return ", "return round("), ("/ n)", "/ n))"))),
        ("a tensor of float32", but(CROSSING, ("return ", "return torch.tensor("), ("/ n)", "/ n))"))),
        (
            "a number of NumPy's",
            "import numpy\n" + but(CROSSING, ("return ", "return numpy.float64("), ("/ n)", "/ n))")),
        ),
        (
            "a decimal",
            "from decimal import Decimal\n" + but(CROSSING, ("return ", "return Decimal("), ("/ n)", "/ n))")),
        ),
        ("ceil of log2", "from math import ceil, log2\n" + but(CROSSING, ("(n - 1).bit_length()", "ceil(log2(n))"))),
        (
            "by bisection",
            BISECTION,
        ),
    ],
    "halving_doubling_all_reduce": [
        (
            "recursive",
            """
            def halving_doubling_all_reduce(tensor):
                rank = dist.get_rank()

                def visit(piece, stride):
                    if not stride:
                        return
                    halves = piece.tensor_split(2)
                    mine, other = halves if not rank & stride else halves[::-1]
                    incoming = torch.empty_like(mine)
                    parallel.exchange(other, rank ^ stride, incoming, rank ^ stride)
                    mine.add_(incoming)
                    visit(mine, stride // 2)
                    parallel.exchange(mine, rank ^ stride, other, rank ^ stride)

                visit(tensor.view(-1), dist.get_world_size() // 2)
            """,
        ),
        (
            "cut at the bounds of n chunks",
            """
            def halving_doubling_all_reduce(tensor):
                rank, n = dist.get_rank(), dist.get_world_size()
                x, ends = tensor.view(-1), [0]
                for chunk in x.tensor_split(n):
                    ends.append(ends[-1] + len(chunk))
                low, high, stride, done = 0, n, n // 2, []
                while stride:
                    middle = (low + high) // 2
                    kept, given = ((low, middle), (middle, high))[:: -1 if rank & stride else 1]
                    mine, other = (x[ends[a] : ends[b]] for a, b in (kept, given))
                    incoming = torch.empty_like(mine)
                    parallel.exchange(other, rank ^ stride, incoming, rank ^ stride)
                    mine += incoming
                    done.append((stride, mine, other))
                    (low, high), stride = kept, stride // 2
                for stride, mine, other in done[::-1]:
                    parallel.exchange(mine, rank ^ stride, other, rank ^ stride)
            """,
        ),
        (
            "pads to equal chunks",
            but(
                HALVING,
                ("    strides", "    given_in, size = tensor, tensor.numel()\n    strides"),
                ("piece, halves = tensor.view(-1), []", PAD),
            )
            + "    given_in.copy_(padded[:size].view_as(given_in))\n",
        ),
        (
            "the odd element in the second half",
            but(HALVING, ("piece.tensor_split(2)", "piece.split([len(piece) // 2, len(piece) - len(piece) // 2])")),
        ),
        ("near partners first", but(HALVING, ("range(1, n.bit_length())]", "range(n.bit_length() - 1, 0, -1)]"))),
        (
            "by places, isend and irecv, on a copy",
            """
            def swap(out, into, partner):
                works = [dist.irecv(into, partner), dist.isend(out, partner)]
                for work in works:
                    work.wait()

            def halving_doubling_all_reduce(tensor):
                rank, stride = dist.get_rank(), dist.get_world_size() // 2
                flat = tensor.reshape(-1).clone()
                low, high, steps = 0, flat.numel(), []
                while stride:
                    middle = (low + high) // 2
                    steps.append((stride, low, middle, high))
                    mine, other = ((low, middle), (middle, high))[:: -1 if rank & stride else 1]
                    incoming = flat[slice(*mine)].clone()
                    swap(flat[slice(*other)], incoming, rank ^ stride)
                    flat[slice(*mine)] += incoming
                    (low, high), stride = mine, stride // 2
                for stride, low, middle, high in steps[::-1]:
                    mine, other = ((low, middle), (middle, high))[:: -1 if rank & stride else 1]
                    swap(flat[slice(*mine)], flat[slice(*other)], rank ^ stride)
                tensor.copy_(flat.view_as(tensor))
            """,
        ),
    ],
    "hierarchical_all_reduce": [
        (
            "cut at the bounds of n pieces",
            but(
                HIERARCHY,
                (
                    "    chunks = tensor.view(-1).tensor_split(ranks_per_node)\n",
                    """\
    flat, nodes, ends = tensor.view(-1), n // ranks_per_node, [0]
    for piece in flat.tensor_split(n):
        ends.append(ends[-1] + len(piece))
    chunks = [flat[ends[c * nodes] : ends[(c + 1) * nodes]] for c in range(ranks_per_node)]
""",
                ),
            ),
        ),
        (
            "with the ring of exercise 1, in a group for each rail",
            RING
            + but(
                HIERARCHY,
                (
                    "    place",
                    "    rails = [dist.new_group([*range(p, n, ranks_per_node)]) for p in range(ranks_per_node)]\n"
                    "    place",
                ),
                ("    parallel.ring_reduce_scatter(pieces, rail)\n", "    ring_all_reduce(mine, rails[place])\n"),
                ("    parallel.ring_all_gather(pieces, rail)\n", ""),
                ("    pieces = mine.tensor_split(len(rail))\n", ""),
            ),
        ),
        (
            "two levels by one loop",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                r, n, piece, back = dist.get_rank(), dist.get_world_size(), tensor.view(-1), []
                for same in (lambda x: x // ranks_per_node, lambda x: x % ranks_per_node):
                    members = [x for x in range(n) if same(x) == same(r)]
                    chunks = piece.tensor_split(len(members))
                    parallel.ring_reduce_scatter(chunks, members)
                    back.append((chunks, members))
                    piece = chunks[(members.index(r) + 1) % len(members)]
                while back:
                    parallel.ring_all_gather(*back.pop())
            """,
        ),
        (
            "the pieces of nodes counted from another place",
            but(
                HIERARCHY,
                (
                    "rail = range(place, n, ranks_per_node)",
                    "rail = [*range(rank, n, ranks_per_node), *range(place, rank, ranks_per_node)]",
                ),
                (
                    "    pieces = mine.tensor_split(len(rail))\n",
                    "    rail = sorted(rail)[::-1]\n    pieces = mine.tensor_split(len(rail))\n",
                ),
            ),
        ),
        (
            "lists, and a copy",
            but(
                HIERARCHY,
                ("    place", "    whole, tensor = tensor, tensor.clone()\n    place"),
                (
                    "node = range(rank - place, rank - place + ranks_per_node)",
                    "node = [r for r in range(n) if r // ranks_per_node == rank // ranks_per_node]",
                ),
            )
            + "    whole.copy_(tensor)\n",
        ),
        (
            "with its own rings",
            """
            def ring(chunks, members):
                n, i = len(members), members.index(dist.get_rank())
                right, left = members[(i + 1) % n], members[i - 1]

                def step(out, into, add):
                    incoming = torch.empty_like(into)
                    parallel.exchange(out, right, incoming, left)
                    into.copy_(into + incoming if add else incoming)

                def scatter():
                    for s in range(n - 1):
                        step(chunks[(i - s - 1) % n], chunks[(i - s - 2) % n], True)

                def gather():
                    for s in range(n - 1):
                        step(chunks[(i - s) % n], chunks[(i - s - 1) % n], False)

                return scatter, gather

            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n = dist.get_rank(), dist.get_world_size()
                node = list(range(n))[rank // ranks_per_node * ranks_per_node :][:ranks_per_node]
                rail = [r for r in range(n) if (r - rank) % ranks_per_node == 0]
                chunks = tensor.view(-1).tensor_split(ranks_per_node)
                inside = ring(chunks, node)
                across = ring(chunks[node.index(rank)].tensor_split(len(rail)), rail)
                for phase in (inside[0], *across, inside[1]):
                    phase()
            """,
        ),
        (
            "straight to each member, no rings",
            """
            def hierarchical_all_reduce(tensor, ranks_per_node):
                rank, n, L = dist.get_rank(), dist.get_world_size(), ranks_per_node
                node = [rank // L * L + i for i in range(L)]
                rail = list(range(rank % L, n, L))

                def scatter(pieces, members):
                    me, mine = members.index(rank), pieces[members.index(rank)]
                    for k in range(1, len(members)):
                        to, source = (me + k) % len(members), (me - k) % len(members)
                        incoming = torch.empty_like(mine)
                        parallel.exchange(pieces[to], members[to], incoming, members[source])
                        mine += incoming
                    return mine

                def gather(pieces, members):
                    me = members.index(rank)
                    for k in range(1, len(members)):
                        to, source = (me + k) % len(members), (me - k) % len(members)
                        parallel.exchange(pieces[me], members[to], pieces[source], members[source])

                chunks = tensor.view(-1).tensor_split(L)
                pieces = scatter(chunks, node).tensor_split(len(rail))
                scatter(pieces, rail)
                gather(pieces, rail)
                gather(chunks, node)
            """,
        ),
    ],
}
