"""Lakes rewritten for lookups."""
