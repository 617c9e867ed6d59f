"""The four formats of shards by name, side by side.

                 unit of damage      truncated file      record at random        overhead a record
    parquet      a row group         no record           reads its row group     about 25 bytes
    webdataset   a record            records before it   after a look at all     1.5 to 2 kB
    tfrecord     a record            records before it   after a look at all     about 90 bytes
    memory-map   a record            records before it   one step                32 bytes

Compressed as a whole (webdataset and tfrecord in gzip), a shard loses all records after a damage, and has no random
access.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lablib.data.formats.memory_map import MEMORY_MAP
from lablib.data.formats.parquet import PARQUET
from lablib.data.formats.records import ShardFormat
from lablib.data.formats.tfrecord import TFRECORD
from lablib.data.formats.webdataset import WEBDATASET

_ALL = (PARQUET, WEBDATASET, TFRECORD, MEMORY_MAP)
FORMATS: Mapping[str, ShardFormat] = MappingProxyType({one.name: one for one in _ALL})
