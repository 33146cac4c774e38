"""Reads of a lake as Spark's own reader gives them.

In: a target, a condition and Spark settings. Out: batches of Spark types. ``scan`` uses ``opened_lake`` (open the
dataset, infer Spark's columns; ``lake_types``), ``predicates`` and ``pruning_terms`` (translate the condition), then
``planning`` (prune files and row groups), which packs ``splits``. Tasks run ``reading``; ``file_reads`` maps the lake's
columns to those of each file.
"""
