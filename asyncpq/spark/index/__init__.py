"""External indexes built by Spark's executors."""
