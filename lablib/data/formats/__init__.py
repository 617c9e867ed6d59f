"""Formats of shards: documents in files that can be read from any place.

records      what the formats share: from a stream of documents to files and back
parquet, webdataset, tfrecord, memory_map
             one format each
catalogue    all four by name
"""
