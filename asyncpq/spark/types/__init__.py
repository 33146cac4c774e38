"""Types and values: as Spark reads them from Parquet, and as it writes them."""
