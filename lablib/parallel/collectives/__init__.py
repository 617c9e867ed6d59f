"""All-reduce from send and recv, three algorithms with the same arguments.

ring           chunks travel around a ring: the fewest bytes
tree           up a tree and down again: the fewest messages
hierarchical   within each node first: the fewest bytes between nodes
"""
