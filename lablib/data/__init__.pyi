# ruff: noqa: I001  (in reading order)
from .text import CORPORA as CORPORA, Corpus as Corpus, load_corpus as load_corpus, train_val_split as train_val_split
from .batches import Batch as Batch, batches as batches, ResumableBatches as ResumableBatches
from .documents import documents as documents, cut_documents as cut_documents
from .tokenizer import (
    END_OF_DOCUMENT as END_OF_DOCUMENT,
    ForeignTokensError as ForeignTokensError,
    Tokenizer as Tokenizer,
    train_tokenizer as train_tokenizer,
    load_tokenizer as load_tokenizer,
    corpus_texts as corpus_texts,
)
from .token_file import (
    TokenFileError as TokenFileError,
    write_tokens as write_tokens,
    encode_to_file as encode_to_file,
    open_tokens as open_tokens,
)
from .formats.catalogue import FORMATS as FORMATS
from .formats.records import (
    Record as Record,
    Shard as Shard,
    Manifest as Manifest,
    Loss as Loss,
    DamagedDataError as DamagedDataError,
    NoRandomAccessError as NoRandomAccessError,
    read_manifest as read_manifest,
)
from .damage import read_shards as read_shards, flip_byte as flip_byte, cut_file as cut_file, FullDisk as FullDisk
from .object_store import (
    ObjectStore as ObjectStore,
    S3_10_GBIT as S3_10_GBIT,
    requests_per_second as requests_per_second,
    in_flight_to_fill as in_flight_to_fill,
)
from .loading.dead_worker import WorkerDiedError as WorkerDiedError, named_workers as named_workers
from .loading.loaded_run import Cause as Cause, LoadedRun as LoadedRun
from .loading.loader import Copy as Copy, Jitter as Jitter, Loader as Loader, draw_times as draw_times
from .loading.loader_ranks import train_with_loader_ranks as train_with_loader_ranks
from .loading.loader_timeline import run_loop as run_loop, steady_step_s as steady_step_s
from .loading.measured_loop import measure_loop as measure_loop
from .loading.queueing import (
    open_orders as open_orders,
    idle_share_exponential as idle_share_exponential,
    idle_share_constant as idle_share_constant,
)
from .loading.smallest_prefetch import idle_share as idle_share, smallest_prefetch as smallest_prefetch
from .sharding import Uneven as Uneven, epoch_order as epoch_order, rank_part as rank_part, count_seen as count_seen
from .shuffle_buffer import shuffle_buffer as shuffle_buffer
from .resumable_sampler import ResumableSampler as ResumableSampler, merge_states as merge_states
from .resumable_shards import (
    SampleRange as SampleRange,
    ShardProgress as ShardProgress,
    deal_pieces as deal_pieces,
    ShardReader as ShardReader,
)
from .cache import (
    cache_folder as cache_folder,
    read_entry as read_entry,
    write_entry as write_entry,
    replacing as replacing,
)
from .sources import CorpusUnavailableError as CorpusUnavailableError, standard_library as standard_library
