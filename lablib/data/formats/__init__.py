"""Formats of shards: documents in files.

records      a stream of documents as shards with a manifest, and back
parquet, webdataset, tfrecord, memory_map
             one format each
catalogue    all four by name
"""
