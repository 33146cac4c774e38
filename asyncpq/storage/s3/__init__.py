"""S3: urls come in; signed range requests, listings and writes go out, and checked bytes come back.

``client`` asks s3fs and botocore for credentials, endpoint and region; ``requests`` holds a bucket's route, signs with
``sigv4`` and corrects refused requests; ``store`` reads objects, ``listing`` and ``key_listing`` list them, ``writer``
writes them. Options that this path cannot honour send the bucket through ``s3fs_fallback``.
"""
