"""The store: images and answers by content, in Parquet shards."""
