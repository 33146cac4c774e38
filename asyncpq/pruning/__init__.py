"""Which files, row groups, pages and rows of a read can match. Predicates, statistics and access plans come in, sets of
rows go out; no bytes are fetched here.

``literals`` makes keys of literals, ``zones`` searches bounds for the values that the analysis of a predicate wants,
``zone_maps`` makes the zones of a dataset, a file and a chunk. ``bloom_filters`` makes probes of the same values.
``row_ranges`` is the algebra of the answers, ``access_plan`` the rows that a read may touch at all.
"""
