"""Data for training: text as batches, loaders that keep a device busy, and orders in which nothing is lost.

text               a corpus from this machine or from the network, as bytes
batches            batches of it for data-parallel training
documents          boundaries of documents
tokenizer          text as tokens, by a trained byte-pair tokenizer
token_file         tokens in a mapped file, in blocks or documents
formats            documents in shards: Parquet, WebDataset, TFRecord, memory maps
damage             damaged shards and full disks
object_store       shards behind a network: latency, requests in flight, whole shards or ranges
loading            how batches reach a device, and why the device waits
sharding           which rank and worker reads which samples
shuffle_buffer     an order that is nearly random, from data that is read sequentially
resumable_sampler  stop at any sample, go on with other ranks and workers
resumable_shards   the same for shards that are read from front to back
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
