"""Expert parallelism: mixture-of-experts layers whose experts are spread over ranks.

routing      the router: experts of a token, their weights, capacity and dropped tokens
losses       balance losses, z-loss, and the bias that balances without a loss
products     one product per expert, or all in one grouped call
layer        a mixture-of-experts layer on one device
dispatch     tokens sorted by expert, and back
exchange     the all-to-all of tokens, with counts first
parallel     the layer with its experts on several ranks
parallelize  a plain model's experts spread over ranks
gradients    gradients of experts and of everything else, averaged over their own groups
overlap      the exchange at the same time as shared experts and other chunks
depth        experts in some layers only
balance      load of experts and ranks, and experts placed by load
bytes        bytes sent and stored per rank
"""
