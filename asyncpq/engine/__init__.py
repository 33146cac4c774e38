"""What a door of another library is written with, beside the public interface.

``sources`` opens a target once or for each query, and streams it to any thread. ``predicates`` translates conditions of
another engine atom by atom, and hands back what it did not understand.
"""
