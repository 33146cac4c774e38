"""S3: urls come in; signed range requests, listings and writes go out, and checked bytes come back.

``client`` asks s3fs and botocore for credentials, endpoint and region. ``store`` makes a bucket of them, for its
objects, listings (``key_listing``) and writes (``writer``): ``direct`` signs with ``sigv4`` and corrects refused
requests; ``s3fs_fallback`` serves options that it cannot honour.
"""
