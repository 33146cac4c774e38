"""Functions and classes with which doors are written, beside the public interface (docs/how-to/own-door.md has one).

A door is code that lets another library, such as Polars, read with asyncpq. ``sources`` opens a target once or for each
query, and streams it to any thread. ``foreign_predicates`` translates another engine's conditions, and returns the
terms that it does not understand; ``foreign_conditions`` prunes by conditions that another engine applies by its own
rules. ``byte_readers`` reads byte ranges of one version of an object, ``pinned_datasets`` fixes the versions that one
request reads, ``work`` shares threads and the event loop among users. ``array_conversions`` converts values, and
batches that leave the process. ``target_facts`` tells what a url names.
"""
