"""Reports: what files hold, what a read would fetch, and what it fetched, as JSON documents and text.

Footers, page indexes, plans and metrics come in; documents and texts go out, which ``asyncpq.page_map`` draws.
``documents.py`` defines the JSON documents that the command line prints. ``inspection.py`` describes files, ``lint.py``
finds causes of slow lookups, ``why.py`` reports on one read, ``diagnosis.py`` measures how a store answers, and
``row_writers.py`` writes rows.
"""
