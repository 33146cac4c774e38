"""Decide which files, row groups, pages and rows of a read can match. Predicates, statistics and access plans come in,
sets of rows go out; no bytes are fetched here.

``literals`` converts literals to keys that compare with statistics. ``zones`` searches min/max bounds for the values
that a predicate needs; ``zone_maps`` collects these bounds of files, row groups and pages. ``bloom_hashes`` compiles
lookups of the same values in Bloom filters. ``row_ranges`` is the algebra of sets of rows. ``access_plan`` says which
rows a read may touch, whatever its predicate.
"""
