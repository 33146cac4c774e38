"""Reads planned on the driver, in splits that executors read."""
