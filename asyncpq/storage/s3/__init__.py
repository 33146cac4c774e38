"""S3: urls come in; signed range requests, listings and writes go out, and checked bytes come back.

``client`` gets credentials, endpoint and region from s3fs and botocore. ``store`` makes a bucket of these, for
objects, listings (``key_listing``) and writes (``writer``): ``direct`` signs with ``sigv4`` and corrects refused
requests; ``s3fs_fallback`` serves buckets whose options ``direct`` cannot honour.
"""
