"""Wrong answers to lab 06: kernels and compilers, and unusual right ones."""

_SOFTMAX = """
def softmax_kernel(x_ptr, y_ptr, M, BLOCK: "tl.constexpr"):
    at = {at}
    row = {row}
    x = {x}
    {middle}
    e = {e}
    {store}
"""


def _softmax(
    at: str = "tl.arange(0, BLOCK)",
    row: str = "tl.program_id(0) * M",
    x: str = 'tl.load(x_ptr + row + at, mask=at < M, other=-float("inf"))',
    middle: str = "pass",
    e: str = "tl.exp(x - tl.max(x, axis=0))",
    store: str = "tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)",
) -> str:
    return _SOFTMAX.format(at=at, row=row, x=x, middle=middle, e=e, store=store)


_JOIN = """
def join(m1, s1, m2, s2):
    {first}
    m = {m}
    shift = {shift}
    s = {s}
    return {returned}
"""


def _join(
    first: str = "pass",
    m: str = "torch.maximum(m1, m2)",
    shift: str = "torch.where(m == -math.inf, 0.0, m)",
    s: str = "s1 * torch.exp(m1 - shift) + s2 * torch.exp(m2 - shift)",
    returned: str = "m, s",
) -> str:
    return _JOIN.format(first=first, m=m, shift=shift, s=s, returned=returned)


_ATTEND = """
def attend(q, k, v, first, block):
    R, d = q.shape
    m, s, o = {start}
    at = {at}
    for start in range({loop}, block):
        keys, values = k[start : start + block], v[start : start + block]
        hidden = {hidden}
        scores = ({scores}).masked_fill(hidden, -math.inf)
        new = {new}
        share, old = {share}
        m, s, o = {update}
    return {returned}
"""


def _attend(
    start: str = "q.new_full((R, 1), -math.inf), q.new_zeros(R, 1), torch.zeros_like(q)",
    at: str = "first + torch.arange(R)[:, None]",
    loop: str = "0, first + R",
    hidden: str = "start + torch.arange(len(keys)) > at",
    scores: str = "q @ keys.T / math.sqrt(d)",
    new: str = "torch.maximum(m, scores.amax(1, keepdim=True))",
    share: str = "torch.exp(scores - new), torch.exp(m - new)",
    update: str = "new, s * old + share.sum(1, keepdim=True), o * old + share @ values",
    returned: str = "o / s",
) -> str:
    return _ATTEND.format(
        start=start, at=at, loop=loop, hidden=hidden, scores=scores, new=new, share=share, update=update,
        returned=returned,
    )  # fmt: skip


_END = """
def end_of_step(M, N, rows, columns, cores):
    down, across = {down}, {across}
    waves = {waves}
    return {returned}
"""


def _end(
    down: str = "-(-M // rows)",
    across: str = "-(-N // columns)",
    waves: str = "-(-down * across // cores)",
    returned: str = "waves * cores // down * columns",
) -> str:
    return _END.format(down=down, across=across, waves=waves, returned=returned)


WRONG_ANSWERS = {
    "softmax_kernel": [
        ("stores nothing", _softmax(store="pass"), "y is written"),
        (
            "masks the rest as 0",
            _softmax(x="tl.load(x_ptr + row + at, mask=at < M, other=0.0)"),
            "every row of y has the sum 1 (a row shorter than the tile; 3 x 5, BLOCK 8)",
        ),
        (
            "masks the rest as -10,000",
            _softmax(x="tl.load(x_ptr + row + at, mask=at < M, other=-10000.0)"),
            "every row of y has the sum 1 (numbers a million below 0",
        ),
        ("subtracts no maximum", _softmax(e="tl.exp(x)"), "no number is nan"),
        (
            "subtracts the minimum",
            _softmax(e="tl.exp(x - tl.min(x, axis=0))"),
            "no number is nan (a row shorter than the tile; 3 x 5, BLOCK 8)",
        ),
        ("does not divide", _softmax(store="tl.store(y_ptr + row + at, e, mask=at < M)"), "has the sum 1"),
        ("divides by BLOCK", _softmax(store="tl.store(y_ptr + row + at, e / BLOCK, mask=at < M)"), "has the sum 1"),
        ("uses only the first row", _softmax(row="0"), "every number of x is read"),
        ("steps by BLOCK", _softmax(row="tl.program_id(0) * BLOCK"), "your code runs without an exception"),
        ("loads without a mask", _softmax(x="tl.load(x_ptr + row + at)"), "your code runs without an exception"),
        (
            "stores without a mask",
            _softmax(store="tl.store(y_ptr + row + at, e / tl.sum(e, axis=0))"),
            "your code runs without an exception",
        ),
        (
            "leaves out the last number",
            _softmax(x='tl.load(x_ptr + row + at, mask=at < M - 1, other=-float("inf"))'),
            "every number of x is read",
        ),
        (
            "writes all but the last",
            _softmax(store="tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M - 1)"),
            "every number of y is written",
        ),
        (
            "reads the row twice",
            _softmax(middle='x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf"))'),
            "each number of x is read once",
        ),
        (
            "writes e to memory first",
            _softmax(
                store=(
                    "tl.store(y_ptr + row + at, e, mask=at < M)\n"
                    "    tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)"
                ),
            ),
            "each number of y is written once",
        ),
        ("uses base 2", _softmax(e="tl.exp2(x - tl.max(x, axis=0))"), "y is the softmax of each row"),
        (
            "writes into x",
            _softmax(store="tl.store(x_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)"),
            "x stays unchanged",
        ),
        ("uses Triton's softmax", _softmax(e="tl.softmax(x)"), "the answer is your own code"),
        (
            "masks numbers that are 0",
            """
def softmax_kernel(x_ptr, y_ptr, M, BLOCK: "tl.constexpr"):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * M
    x = tl.load(x_ptr + row + at, mask=at < M, other=0.0)
    x = tl.where(x == 0.0, -float("inf"), x)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)
""",
            "y is the softmax of each row (a number of 0 in each row",
        ),
    ],
    "join": [
        ("adds the sums", _join(s="s1 + s2"), "s is the sum of exp(x - m) (either maximum is larger)"),
        ("takes the smaller maximum", _join(m="torch.minimum(m1, m2)"), "m is the larger maximum"),
        ("adds the maxima", _join(m="m1 + m2"), "m is the larger maximum"),
        ("keeps the first maximum", _join(m="m1"), "m is the larger maximum"),
        ("keeps the second maximum", _join(m="m2"), "m is the larger maximum"),
        (
            "corrects the first alone",
            _join(s="s1 * torch.exp(m1 - shift) + s2"),
            "s is the sum of exp(x - m) (either maximum is larger)",
        ),
        (
            "corrects the second alone",
            _join(s="s1 + s2 * torch.exp(m2 - shift)"),
            "s is the sum of exp(x - m) (either maximum is larger)",
        ),
        (
            "has the sign wrong",
            _join(s="s1 * torch.exp(shift - m1) + s2 * torch.exp(shift - m2)"),
            "s is the sum of exp(x - m) (either maximum is larger)",
        ),
        (
            "swaps the factors",
            _join(s="s2 * torch.exp(m1 - shift) + s1 * torch.exp(m2 - shift)"),
            "s is the sum of exp(x - m) (either maximum is larger)",
        ),
        (
            "goes back to plain exp",
            _join(s="(s1 * torch.exp(m1) + s2 * torch.exp(m2)) / torch.exp(shift)"),
            "m and s are not nan (both far above 0)",
        ),
        ("does not handle empty parts", _join(shift="m"), "both parts are empty"),
        ("returns s alone", _join(returned="s"), "a pair is returned"),
        ("returns s first", _join(returned="s, m"), "m is the larger maximum"),
        ("works in place", _join(first="s1 *= 1.5"), "the input stays as it was"),
        ("one maximum for all", _join(m="torch.maximum(m1, m2).max().expand_as(m1)"), "m is the larger maximum"),
        ("in float64 always", _join(returned="m.double(), s.double()"), "float32"),
        (
            "replaces -inf by -10,000",
            _join(m="torch.maximum(m1, m2).clamp(min=-1e4)"),
            "m is the larger maximum",
        ),
    ],
    "attend": [
        (
            "no scale",
            _attend(scores="q @ keys.T"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "divides by d",
            _attend(scores="q @ keys.T / d"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "sees the future",
            _attend(hidden="torch.zeros(R, len(keys), dtype=torch.bool)"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "does not see itself",
            _attend(hidden="start + torch.arange(len(keys)) >= at"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "forgets where the queries begin",
            _attend(at="torch.arange(R)[:, None]"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "forgets where the tile begins",
            _attend(hidden="torch.arange(len(keys)) > at"),
            "each query's mean of the values (the first queries; R 5, d 3, N 16, first 0, block 4)",
        ),
        (
            "does not correct s",
            _attend(update="new, s + share.sum(1, keepdim=True), o * old + share @ values"),
            "each query's mean of the values",
        ),
        (
            "does not correct o",
            _attend(update="new, s * old + share.sum(1, keepdim=True), o + share @ values"),
            "each query's mean of the values",
        ),
        (
            "forgets to divide",
            _attend(returned="o"),
            "each query's mean of the values (one tile holds all keys; R 6, d 3, N 8, first 2, block 8)",
        ),
        (
            "divides in each tile",
            _attend(
                update=(
                    "new, s * old + share.sum(1, keepdim=True), (o * old + "
                    "share @ values) / (s * old + share.sum(1, keepdim=True))"
                ),
                returned="o",
            ),
            "each query's mean of the values (the first queries; R 5, d 3, N 16, first 0, block 4)",
        ),
        (
            "the maximum of the tile alone",
            _attend(new="scores.amax(1, keepdim=True)"),
            "no number is nan (the first queries; R 5, d 3, N 16, first 0, block 4)",
        ),
        (
            "no maximum",
            _attend(new="torch.zeros_like(m)"),
            "no number is nan (scores far apart; R 5, d 3, N 20, first 11, block 4)",
        ),
        (
            "begins with a maximum of -10,000",
            _attend(start="q.new_full((R, 1), -1e4), q.new_zeros(R, 1), torch.zeros_like(q)"),
            "no number is nan (scores far below 0; R 5, d 3, N 20, first 11, block 4)",
        ),
        (
            "visits every tile",
            _attend(loop="0, len(k)"),
            "each score is computed once, and none in a tile that no query sees",
        ),
        (
            "leaves the last tile out",
            _attend(loop="0, first + 1"),
            "each query's mean of the values (the first queries; R 5, d 3, N 16, first 0, block 4)",
        ),
        (
            "one tile",
            (
                "def attend(q, k, v, first, block):\n"
                "    R, d = q.shape\n"
                "    scores = q @ k[: first + R].T / math.sqrt(d)\n"
                "    at = first + torch.arange(R)[:, None]\n"
                "    scores = scores.masked_fill(torch.arange(first + R) > at, -math.inf)\n"
                "    share = torch.exp(scores - scores.amax(1, keepdim=True))\n"
                "    return share @ v[: first + R] / share.sum(1, keepdim=True)\n"
            ),
            "scores of at most `block` keys",
        ),
        (
            "torch's attention",
            (
                "def attend(q, k, v, first, block):\n"
                "    R, N = len(q), len(k)\n"
                "    mask = torch.arange(N) <= first + torch.arange(R)[:, None]\n"
                "    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask)[0]\n"
            ),
            "your own",
        ),
        (
            "keeps the scores of all tiles",
            """
def attend(q, k, v, first, block):
    R, d = q.shape
    at = first + torch.arange(R)[:, None]
    m, tiles = q.new_full((R, 1), -math.inf), []
    for start in range(0, first + R, block):
        scores = q @ k[start:start + block].T / math.sqrt(d)
        scores = scores.masked_fill(start + torch.arange(scores.shape[1]) > at, -math.inf)
        tiles.append(scores)
        m = torch.maximum(m, scores.amax(1, keepdim=True))
    s, o = 0, 0
    for number, scores in enumerate(tiles):
        share = torch.exp(scores - m)
        s, o = s + share.sum(1, keepdim=True), o + share @ v[number * block:(number + 1) * block]
    return o / s
""",
            "scores of at most `block` keys",
        ),
    ],
    "end_of_step": [
        ("returns N", _end(returned="N"), "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)"),
        (
            "rounds up to a tile",
            _end(returned="across * columns"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "rounds tiles down",
            _end(across="N // columns"),
            "more rows of tiles than cores, two columns (M 112, N 9, tiles 16 x 8, 3 cores)",
        ),
        (
            "rounds rows down",
            _end(down="M // rows or 1"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "rounds waves down",
            _end(waves="down * across // cores or 1"),
            "several waves (M 48, N ",
        ),
        ("takes a fraction of waves", _end(waves="down * across / cores"), "a whole number is returned"),
        ("forgets the rows", _end(down="1"), "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)"),
        ("one wave always", _end(waves="1"), "several waves (M 48, N "),
        (
            "returns tiles",
            _end(returned="waves * cores // down"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "rounds columns of tiles up",
            _end(returned="-(-waves * cores // down) * columns"),
            "cores that rows of tiles do not divide (M 48, N 8, tiles 16 x 8, 8 cores)",
        ),
        (
            "swaps rows and columns",
            _end(down="-(-M // columns)", across="-(-N // rows)"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "begins a new wave always",
            _end(waves="down * across // cores + 1"),
            "a width at the end of its step (M 32, N 32, tiles 16 x 8, 8 cores)",
        ),
        (
            "the whole area",
            _end(returned="waves * cores * rows * columns // M"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "one column too many",
            _end(returned="waves * cores // down * columns + 1"),
            "tiles that are not full (M 37, N 11, tiles 16 x 8, 9 cores)",
        ),
        (
            "searches 512 columns",
            """
def end_of_step(M, N, rows, columns, cores):
    w = lambda n: -(-(-(-M // rows) * -(-n // columns)) // cores)
    last = N
    for n in range(N, N + 512):
        if w(n) == w(N): last = n
    return last
""",
            "a step of many thousands",
        ),
    ],
}

RIGHT_ANSWERS = {
    "softmax_kernel": [
        (
            "masks after loading",
            _softmax(x="tl.load(x_ptr + row + at, mask=at < M)", middle='x = tl.where(at < M, x, -float("inf"))'),
        ),
        ("exp2 of scaled numbers", _softmax(e="tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)")),
        (
            "multiplies by one over the sum",
            _softmax(store="tl.store(y_ptr + row + at, e * (1.0 / tl.sum(e, axis=0)), mask=at < M)"),
        ),
    ],
    "join": [
        (
            "nan_to_num",
            _join(
                shift="m",
                s=(
                    "s1 * torch.exp((m1 - m).nan_to_num(neginf=-math.inf)) "
                    "+ s2 * torch.exp((m2 - m).nan_to_num(neginf=-math.inf))"
                ),
            ),
        ),
        ("clamped", _join(shift="m.clamp(min=-1e30)")),
        (
            "by where",
            _join(
                shift="m",
                s="torch.where(s1 > 0, s1 * torch.exp(m1 - m), 0.0) + torch.where(s2 > 0, s2 * torch.exp(m2 - m), 0.0)",
            ),
        ),
        (
            "by logaddexp",
            """
def join(m1, s1, m2, s2):
    m = torch.maximum(m1, m2)
    total = torch.logaddexp(m1 + s1.log(), m2 + s2.log())
    return m, torch.exp(total - torch.where(m == -math.inf, 0.0, m))
""",
        ),
    ],
    "attend": [
        ("scales q", _attend(scores="(q / math.sqrt(d)) @ keys.T")),
        ("einsum", _attend(scores='torch.einsum("rd,nd->rn", q, keys) / math.sqrt(d)')),
        ("one over s", _attend(returned="o * (1 / s)")),
        (
            "joins the softmax of each tile by logaddexp",
            """
def attend(q, k, v, first, block):
    R, d = q.shape
    at = first + torch.arange(R)[:, None]
    lse, o = q.new_full((R, 1), -math.inf), torch.zeros_like(q)
    for start in range(0, first + R, block):
        scores = q @ k[start:start + block].T / math.sqrt(d)
        scores = scores.masked_fill(start + torch.arange(scores.shape[1]) > at, -math.inf)
        tile = scores.logsumexp(1, keepdim=True)
        share = torch.nan_to_num(scores.softmax(1))
        new = torch.logaddexp(lse, tile)
        o = o * torch.exp(lse - new) + torch.exp(tile - new) * (share @ v[start:start + block])
        lse = new
    return o
""",
        ),
    ],
    "end_of_step": [
        (
            "math.ceil",
            _end(down="math.ceil(M / rows)", across="math.ceil(N / columns)", waves="math.ceil(down * across / cores)"),
        ),
        (
            "by search",
            _end(
                returned="max(a for a in range(across, across + cores + 1) if -(-down * a // cores) == waves) * columns"
            ),
        ),
        ("divmod", _end(returned="columns * divmod(waves * cores, down)[0]")),
    ],
}
