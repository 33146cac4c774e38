"""The S3 store: urls and byte ranges come in, checked bytes of one version of an object come out.

``store`` opens objects, lists keys (``key_listing``) and writes (``writer``). ``client`` gets credentials, endpoint and
region from s3fs and botocore. ``direct`` sends requests that ``sigv4`` signs, and sends them again where S3 refused
region or clock; ``express`` opens the sessions of directory buckets; ``s3fs_fallback`` sends requests through s3fs
where a storage option is one that ``direct`` does not have.
"""
