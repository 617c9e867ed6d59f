"""Expert parallelism: mixture-of-experts layers with experts spread over ranks.

routing      the router: experts of a token, their weights, capacity and dropped tokens
losses       balance losses, z-loss, and the bias for balance without a loss
products     one product per expert, or one grouped call
layer        a mixture-of-experts layer on one device
dispatch     sort tokens by expert, and back
exchange     the all-to-all of tokens, with counts first
parallel     the layer with its experts on several ranks
parallelize  a plain model's experts spread over ranks
gradients    gradients of expert and dense parameters, averaged over their groups
overlap      overlap of the exchange with shared experts and other chunks
depth        mixture of depths: blocks that process only some tokens
balance      placement of experts on ranks by load
bytes        bytes sent and stored per rank
"""
