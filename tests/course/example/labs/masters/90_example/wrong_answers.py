"""Wrong answers to the example lab."""

WRONG_ANSWERS = {
    "mean": [
        (
            "forgets to divide",
            """
            def mean(values):
                return sum(values)
            """,
            "the mean of 1, 2, 6",
        ),
        ("walks twice", lambda values: sum(v for v in values) / sum(1 for _ in values), "passes over the values"),
    ],
    "size": [("counts bits", 320, "saw       320"), ("counts values", "size_bytes = 10", "saw       10")],
}

RIGHT_ANSWERS = {
    "mean": [
        (
            "adds with fsum",
            "from math import fsum\ndef mean(values):\n    v = list(values)\n    return fsum(v) / len(v)",
        )
    ],
    "size": [("counts bits first", "size_bytes = 10 * 32 // 8")],
}
