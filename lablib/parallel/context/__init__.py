"""Context parallelism: every rank has all weights and some of the tokens of every sequence.

order              contiguous, zigzag, striped: which rank has which tokens, and its share of the work
blocks             kernel calls that remain of some queries and keys under a causal mask and documents
merge              attention over some of the keys, and parts merged by their log-sum-exp
ring               keys and values passed on round by round, during the attention to them
gather             keys and values of all ranks gathered first
ulysses            heads for tokens by an all-to-all, and back
ulysses_and_ring   Ulysses inside the ring
model              a plain GPT whose sequences are shared by ranks
bytes              bytes sent and stored by each way
"""
