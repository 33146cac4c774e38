"""Reports: what files hold, what a read would fetch, and what it fetched, as JSON documents and text.

Footers, page indexes, plans and metrics come in; documents and texts go out, which ``asyncpq.page_map`` draws. The way
through: ``documents.py`` gives the shapes of all documents, which the command line prints; ``inspection.py`` describes
files, ``lint.py`` finds what makes lookups slow, ``why.py`` tells the story of one read, ``diagnosis.py`` describes how
a store answers, ``row_writers.py`` writes rows.
"""
