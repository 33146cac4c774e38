"""From what a user names to open datasets and indexes: a url, list or table comes in, a Dataset or Index goes out.

``targets`` decides what a target is, and which index and view it is read with; ``datasets`` opens files and tables
under one schema, with an index or without; ``indexes`` builds and opens indexes; ``one_off`` opens one thing in a
session of its own.
"""
