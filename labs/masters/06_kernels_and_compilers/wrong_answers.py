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
def attend_kernel(q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"):
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    m = {m}
    s = tl.zeros((BLOCK,), tl.float32)
    o = tl.zeros((BLOCK, D), tl.float32)
    for start in {loop}:
        keys = {keys}
        at, is_key = keys[:, None] * D + columns, {is_key}
        k = tl.load(k_ptr + at, mask=is_key, other=0.0)
        v = tl.load(v_ptr + at, mask=is_key, other={other})
        scores = {scores}
        scores = tl.where({seen}, scores, {hidden})
        new = {new}
        share, old = tl.exp(scores - new[:, None]), tl.exp(m - new)
        m, s = new, {s}
        o = {o}
    tl.store(o_ptr + own, {stored}, mask={mask})
"""


def _attend(
    m: str = "tl.full((BLOCK,), -float('inf'), tl.float32)",
    loop: str = "range(0, first + BLOCK, BLOCK)",
    keys: str = "start + tl.arange(0, BLOCK)",
    is_key: str = "keys[:, None] < N",
    other: str = "0.0",
    scores: str = "tl.dot(q, tl.trans(k)) * scale",
    seen: str = "keys <= rows[:, None]",
    hidden: str = "-float('inf')",
    new: str = "tl.maximum(m, tl.max(scores, axis=1))",
    s: str = "s * old + tl.sum(share, axis=1)",
    o: str = "o * old[:, None] + tl.dot(share, v)",
    stored: str = "o / s[:, None]",
    mask: str = "is_row",
) -> str:
    return _ATTEND.format(**locals())


_DQ = """
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"
):
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    do = tl.load(do_ptr + own, mask=is_row, other=0.0)
    lse = tl.load(lse_ptr + rows, mask=rows < N, other=0.0)
    delta = tl.load(delta_ptr + rows, mask=rows < N, other=0.0)
    dq = tl.zeros((BLOCK, D), tl.float32)
    for start in {loop}:
        keys = start + tl.arange(0, BLOCK)
        at, is_key = keys[:, None] * D + columns, keys[:, None] < N
        k = tl.load(k_ptr + at, mask=is_key, other=0.0)
        v = tl.load(v_ptr + at, mask=is_key, other=0.0)
        share = {share}
        share = {seen}
        dq {add} tl.dot({gradient}, {times})
    tl.store(dq_ptr + own, {stored}, mask=is_row)
"""


def _dq(
    loop: str = "range(0, first + BLOCK, BLOCK)",
    share: str = "tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None])",
    seen: str = "tl.where(keys <= rows[:, None], share, 0.0)",
    add: str = "+=",
    gradient: str = "share * (tl.dot(do, tl.trans(v)) - delta[:, None])",
    times: str = "k",
    stored: str = "dq * scale",
) -> str:
    return _DQ.format(**locals())


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
    "attend_kernel": [
        ("no scale", _attend(scores="tl.dot(q, tl.trans(k))"), "mean of the values (one tile;"),
        ("a scale of its own", _attend(scores="tl.dot(q, tl.trans(k)) / D**0.5"), ""),
        ("hidden scores are -10,000", _attend(hidden="-1e4"), ""),
        ("divides by D", _attend(scores="tl.dot(q, tl.trans(k)) / D"), "mean of the values (one tile;"),
        ("sees the future", _attend(seen="keys < N"), "mean of the values (one tile;"),
        ("does not see itself", _attend(seen="keys < rows[:, None]"), ""),
        ("sees the future alone", _attend(seen="keys >= rows[:, None]"), "mean of the values (one tile;"),
        (
            "forgets where the queries begin",
            _attend(seen="keys <= tl.arange(0, BLOCK)[:, None]"),
            "mean of the values (two tiles;",
        ),
        (
            "compares places in the tiles",
            _attend(seen="tl.arange(0, BLOCK) <= tl.arange(0, BLOCK)[:, None]"),
            "mean of the values (two tiles;",
        ),
        ("always loads the first keys", _attend(keys="tl.arange(0, BLOCK)"), ""),
        ("hidden scores are 0", _attend(hidden="0.0"), "mean of the values (one tile;"),
        ("hidden scores are -100", _attend(hidden="-100.0"), "mean of the values (scores f"),
        ("does not correct s", _attend(s="s + tl.sum(share, axis=1)"), "mean of the values (two tiles;"),
        ("does not correct o", _attend(o="o + tl.dot(share, v)"), "mean of the values (two tiles;"),
        ("corrects by the new maximum", _attend(o="o * tl.exp(-new)[:, None] + tl.dot(share, v)"), ""),
        ("forgets to divide", _attend(stored="o"), "mean of the values (one tile;"),
        (
            "divides in each tile",
            _attend(o="(o * old[:, None] + tl.dot(share, v)) / s[:, None]", stored="o"),
            "mean of the values (two tiles;",
        ),
        ("the maximum of the tile alone", _attend(new="tl.max(scores, axis=1)"), ""),
        ("no maximum", _attend(new="tl.zeros((BLOCK,), tl.float32)"), ""),
        ("begins with a maximum of 0", _attend(m="tl.zeros((BLOCK,), tl.float32)"), ""),
        ("loads every tile", _attend(loop="range(0, N, BLOCK)"), "and no others (program 0; two tiles;"),
        ("leaves its own tile out", _attend(loop="range(0, first, BLOCK)"), ""),
        ("one tile alone", _attend(loop="range(first, first + BLOCK, BLOCK)"), "mean of the values (two tiles;"),
        ("no mask for keys", _attend(is_key="keys[:, None] >= 0"), ""),
        ("one key too few", _attend(is_key="keys[:, None] < N - 1"), ""),
        ("writes one row less", _attend(mask="rows[:, None] < N - 1"), ""),
        ("no mask for rows", _attend(mask="rows[:, None] >= 0"), ""),
        (
            "two passes over the keys",
            """
def attend_kernel(q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"):
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + keys[:, None] * D + columns, mask=keys[:, None] < N, other=0.0)
        scores = tl.where(keys <= rows[:, None], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        m = tl.maximum(m, tl.max(scores, axis=1))
    s, o = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        at, is_key = keys[:, None] * D + columns, keys[:, None] < N
        k, v = tl.load(k_ptr + at, mask=is_key, other=0.0), tl.load(v_ptr + at, mask=is_key, other=0.0)
        scores = tl.where(keys <= rows[:, None], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        share = tl.exp(scores - m[:, None])
        s, o = s + tl.sum(share, axis=1), o + tl.dot(share, v)
    tl.store(o_ptr + own, o / s[:, None], mask=is_row)
""",
            "once (program 0; one tile;",
        ),
        (
            "keeps o in memory",
            """
def attend_kernel(q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"):
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    m, s = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    tl.store(o_ptr + own, tl.zeros((BLOCK, D), tl.float32), mask=is_row)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        at, is_key = keys[:, None] * D + columns, keys[:, None] < N
        k, v = tl.load(k_ptr + at, mask=is_key, other=0.0), tl.load(v_ptr + at, mask=is_key, other=0.0)
        scores = tl.where(keys <= rows[:, None], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        new = tl.maximum(m, tl.max(scores, axis=1))
        share, old = tl.exp(scores - new[:, None]), tl.exp(m - new)
        m, s = new, s * old + tl.sum(share, axis=1)
        o = tl.load(o_ptr + own, mask=is_row, other=0.0) * old[:, None] + tl.dot(share, v)
        tl.store(o_ptr + own, o, mask=is_row)
    o = tl.load(o_ptr + own, mask=is_row, other=0.0)
    tl.store(o_ptr + own, o / s[:, None], mask=is_row)
""",
            "a number of o is written",
        ),
        (
            "calls the library",
            """
def attend_kernel(q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"):
    from lablib.kernels.flash_attention import flash_attention
    return flash_attention
""",
            "your own code",
        ),
    ],
    "dq_kernel": [
        ("forgets scale at the end", _dq(stored="dq"), "each query's gradient (one tile;"),
        ("forgets scale in the scores", _dq(share="tl.exp(tl.dot(q, tl.trans(k)) - lse[:, None])"), ""),
        ("a scale of its own", _dq(stored="dq / D**0.5"), ""),
        ("forgets lse", _dq(share="tl.exp(tl.dot(q, tl.trans(k)) * scale)"), ""),
        ("divides by lse", _dq(share="tl.exp(tl.dot(q, tl.trans(k)) * scale) / lse[:, None]"), ""),
        ("sees the future", _dq(seen="share"), ""),
        ("does not see itself", _dq(seen="tl.where(keys < rows[:, None], share, 0.0)"), ""),
        ("hidden shares are -inf", _dq(seen="tl.where(keys <= rows[:, None], share, -float('inf'))"), ""),
        ("forgets delta", _dq(gradient="share * tl.dot(do, tl.trans(v))"), ""),
        ("adds delta", _dq(gradient="share * (tl.dot(do, tl.trans(v)) + delta[:, None])"), ""),
        ("delta per key", _dq(gradient="share * (tl.dot(do, tl.trans(v)) - delta)"), ""),
        ("forgets P", _dq(gradient="tl.dot(do, tl.trans(v)) - delta[:, None]"), ""),
        ("the gradient of P alone", _dq(gradient="share - delta[:, None]"), ""),
        ("times v", _dq(times="v"), ""),
        ("times q", _dq(times="q"), ""),
        ("keeps the last tile alone", _dq(add="="), "each query's gradient (two tiles;"),
        ("subtracts", _dq(add="-="), ""),
        ("loads every tile", _dq(loop="range(0, N, BLOCK)"), "and no others (program 0; two tiles;"),
        ("leaves its own tile out", _dq(loop="range(0, first, BLOCK)"), ""),
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
    "attend_kernel": [
        ("scales q", _attend(scores="tl.dot(q * scale, tl.trans(k))")),
        ("exp2", _attend().replace("tl.exp(scores - new[:, None])", "tl.exp2((scores - new[:, None]) * 1.44269504)")),
        ("one over s", _attend(stored="o * (1 / s)[:, None]")),
        ("from the last tile back", _attend(loop="range(tl.program_id(0) * BLOCK, -1, -BLOCK)")),
        ("counts tiles", _attend(loop="range(0, tl.program_id(0) + 1)", keys="start * BLOCK + tl.arange(0, BLOCK)")),
        (
            "a bias instead of where",
            _attend().replace(
                "tl.where(keys <= rows[:, None], scores, -float('inf'))",
                "scores + tl.where(keys <= rows[:, None], 0.0, -float('inf'))",
            ),
        ),
        (
            "no mask for hidden keys' scores, but for keys",
            _attend(is_key="(keys[:, None] < N) & (keys[:, None] < first + BLOCK)"),
        ),
    ],
    "dq_kernel": [
        ("scales k", _dq(share="tl.exp(tl.dot(q, tl.trans(k) * scale) - lse[:, None])")),
        ("scales in each tile", _dq(times="k * scale", stored="dq")),
        ("from the last tile back", _dq(loop="range(tl.program_id(0) * BLOCK, -1, -BLOCK)")),
        (
            "hides the scores",
            _dq(
                share="tl.exp(tl.where(keys <= rows[:, None], tl.dot(q, tl.trans(k)) * scale - lse[:, None], "
                "-float('inf')))",
                seen="share",
            ),
        ),
    ],
}
