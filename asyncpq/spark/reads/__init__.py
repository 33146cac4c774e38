"""Reads of a lake as Spark's own reader gives them.

In: a target, a condition and Spark settings. Out: batches of Spark types. ``scan`` uses ``opened_lake`` (open the
dataset, infer Spark's columns), ``predicates`` and ``pruning_terms`` (translate the condition), then ``planning``
(prune files and row groups, pack them). Tasks run ``splits``; ``file_reads`` maps the lake's columns to each file's.
"""
