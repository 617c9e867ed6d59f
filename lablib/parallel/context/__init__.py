"""Context parallelism: every rank has all weights and some of the tokens of every sequence.

order              contiguous, zigzag, striped: the tokens of each rank, and its share of the work
blocks             kernel calls for queries and keys under a causal mask and documents
merge              attention over parts of the keys, merged by their log-sum-exp
ring               keys and values passed on round by round, during the attention to them
gather             all-gather of keys and values before attention
ulysses            all-to-all between tokens and heads
ulysses_and_ring   Ulysses inside the ring
model              a plain GPT with sequences cut over ranks
bytes              bytes sent and stored by each way
"""
