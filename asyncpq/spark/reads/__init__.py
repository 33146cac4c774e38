"""Reads of a lake as Spark's own reader gives them.

In: a target, a condition and Spark settings. Out: batches of Spark types. ``scan`` uses ``opened_lake`` (open the
dataset, infer Spark's files and columns), ``conditions`` and ``pruning_terms`` (translate the condition), then
``lake_scan`` (plan tasks with ``asyncpq.distributed``, and read them) and ``reader_choice`` (choose who reads).
"""
