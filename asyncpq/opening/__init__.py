"""Open what users name: a url, list of urls or table comes in, a Dataset or Index goes out.

``targets`` decides whether a target (what the user names) is files or a table, and which index and view reads of it
use; ``datasets`` opens files and tables under one schema, with an index or without; ``indexes`` builds and opens
indexes. ``names`` says what the text of a url tells.
"""
