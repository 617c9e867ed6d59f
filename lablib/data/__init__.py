"""Real text for training, as bytes: a corpus from what is on the machine or from the network, and batches of it."""

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
