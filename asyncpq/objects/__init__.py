"""One version of one object: a url comes in; checked footers, indexes and pages of that version go out.

``runtime`` is shared by all reads of a session: stores, caches, limits, threads. ``opening`` makes of a url an
:class:`ObjectSource` (``source``), which finds the object's :class:`FileVersion` (``version``); ``freshness`` knows how
long that may be believed. ``parts`` takes parts from memory, running fetches, other cache tiers or the store, and
``coalesce`` merges the ranges that it asks for; ``page_indexes`` and ``bloom_filters`` go through it. ``read_plan``
says what a scan fetches, in units.
"""
