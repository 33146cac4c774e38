"""The S3 store: urls and byte ranges come in, checked bytes of one version of an object come out.

``store`` opens objects, lists keys (``key_listing``) and writes (``writer``). ``config`` finds credentials, endpoint
and region. ``direct`` sends requests that ``sigv4`` signs, and sends them again where S3 refused region or clock;
``express`` opens the sessions of directory buckets. ``client`` does the same through s3fs and botocore, where a storage
option is one that ``config`` or ``direct`` does not have.
"""
