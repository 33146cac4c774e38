"""Reports: what files hold, what a read would fetch, and what it fetched, as JSON documents, text and pictures.

Footers, page indexes, plans and metrics come in; documents go out, and the texts and pages made of them. The way
through: ``documents.py`` gives the shapes of all documents, which the command line prints; ``inspection.py`` describes
files, ``lint.py`` finds what makes lookups slow, ``why.py`` tells the story of one read, ``page_map.py`` draws it.
"""
