"""Data for training: text as batches, loaders that keep a device busy, and orders in which nothing is lost.

text            a corpus from what is on the machine or from the network, as bytes
batches         batches of it for data-parallel training
documents       where one document ends and the next begins
naive_bpe       byte-pair encoding, the algorithm
tokenizer       text as tokens, by a trained byte-pair tokenizer that knows its own tokens
token_file      tokens in a file that is mapped, in blocks or documents
record_format   documents in shards: what the formats share
parquet_format, webdataset_format, tfrecord_format, memory_map_format
                one format each; formats: all four by name
damage          damaged shards and full disks: named, counted, nothing else lost
object_store    shards behind a network: latency, requests in flight, whole shards or ranges
loader          how batches get to a device: workers, prefetch, copies, and times with jitter
loaded_run      what a loop fed by a loader did, and the cause of each gap
loader_timeline the loop, event by event
smallest_prefetch
                that hides a given jitter
queueing        how long the device waits, in closed form
shuffle_buffer  an order that is nearly random, from data that is read one after another
shuffle_quality how far it is from random
stale_epoch     find that every epoch has the same order
measured_loop   the same loop with torch's DataLoader on this machine
loader_ranks    loaders as ranks: the same loop as a program of torch.distributed
sharding        which rank and worker reads what: nothing lost, nothing twice
resumable_sampler
                stop at any sample, go on with other ranks and workers
resumable_shards
                the same for shards that are read from front to back
dead_worker     a worker that dies: named, and what is done after it
"""

from lablib.data.batches import Batch, batches
from lablib.data.cache import cache_folder
from lablib.data.documents import cut_documents, documents
from lablib.data.sources import CorpusUnavailableError
from lablib.data.text import CORPORA, Corpus, load_corpus, train_val_split

__all__ = [
    "Corpus",
    "CORPORA",
    "load_corpus",
    "train_val_split",
    "Batch",
    "batches",
    "documents",
    "cut_documents",
    "cache_folder",
    "CorpusUnavailableError",
]
