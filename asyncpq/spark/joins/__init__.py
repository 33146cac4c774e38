"""Joins of a few keys with a large lake."""
