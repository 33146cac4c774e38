"""What a door of another library is written with, beside the public interface (docs/how-to/own-door.md has one).

``sources`` opens a target once or for each query, and streams it to any thread. ``foreign_predicates`` translates
conditions of another engine atom by atom, and hands back what it did not understand; ``foreign_conditions`` prunes by
conditions that another engine applies by its own rules. ``byte_readers`` reads byte ranges of one version of an object,
``pinned_datasets`` has handles for the requests of many people, ``work`` says whose work runs, and where.
``array_conversions`` converts values, and batches that leave the process. ``target_facts`` says what urls name.
"""
