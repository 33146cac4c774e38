"""Translate error messages for the command line: names of its options replace Python's arguments."""

from __future__ import annotations

import re
from typing import Final

_KEYS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

#: What errors say to Python, and to the command line. Tests hold the first to the sources.
WORDS: Final[tuple[tuple[str, str], ...]] = (
    # S3 and other stores
    (
        "Check endpoint_url, and region_name in client_kwargs, of the storage_options for s3.",
        "Check --endpoint-url and --region, and what the environment sets: `asyncpq doctor URL` shows it.",
    ),
    (
        "Check key, secret and token in storage_options, or the credentials found in the environment.",
        "Check the credentials of --profile or the environment: `asyncpq doctor URL` says where they came from.",
    ),
    (
        "Pass key and secret (or profile) in storage_options, or anon=True for public objects.",
        f"Name a profile with --profile, or {_KEYS}; --no-sign-request reads public objects.",
    ),
    ("Pass key and secret in storage_options.", f"Name a profile with --profile, or {_KEYS}."),
    (
        "Name the bucket's own endpoint or region in storage_options.",
        "Name the bucket's own region with --region, or its endpoint with --endpoint-url.",
    ),
    ("the profile that storage_options or AWS_PROFILE names", "the profile that --profile or AWS_PROFILE names"),
    ("botocore refuses these storage_options or this bucket", "botocore refuses these options or this bucket"),
    (
        "Check endpoint_url, client_kwargs and config_kwargs, and the bucket's name.",
        "Check --endpoint-url, --region and the bucket's name.",
    ),
    (
        "the storage_options for s3 have an endpoint_url that does not begin with http:// or https://",
        "--endpoint-url does not begin with http:// or https://",
    ),
    ("write an endpoint_url that begins", "write an --endpoint-url that begins"),
    ("the storage_options for s3 have an endpoint_url with port 0", "--endpoint-url has port 0"),
    (
        "Write s3:// for a store with S3's protocol, and endpoint_url in storage_options.",
        "Write s3:// for a store with S3's protocol, and its --endpoint-url.",
    ),
    (
        "Pass account_name and account_key (or sas_token, or connection_string) in storage_options, or anon=True for "
        "public objects.",
        "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
    ),
    (
        "Install adlfs or obstore. To read through obstore, pass "
        'storage_options={"az": {"obstore": {"account_name": ..., "account_key": ...}}}.',
        "Install adlfs, and set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
    ),
    (
        "Install gcsfs or obstore. To read through obstore, pass "
        'storage_options={"gs": {"obstore": {"service_account": "key.json"}}}.',
        "Install gcsfs, and set GOOGLE_APPLICATION_CREDENTIALS to a file with a key.",
    ),
    (
        'Pass token="key.json" in storage_options, or token="anon" for public objects.',
        "Set GOOGLE_APPLICATION_CREDENTIALS to a file with a key.",
    ),
    (" with instance and token in storage_options.", " in Python, with its instance and token."),
    ("disk_cache= of the session to keep on disk what is read.", "--disk-cache FOLDER to keep on disk what is read."),
    (
        'name a private CA in storage_options: client_kwargs={"verify": "ca.pem"}.',
        "name a private CA in AWS_CA_BUNDLE.",
    ),
    (
        'name a private CA in storage_options: {"https": {"ssl": an ssl.SSLContext}}.',
        "name a private CA in SSL_CERT_FILE.",
    ),
    (
        'Pass credentials in storage_options, such as {"https": {"headers": {"Authorization": "Bearer ..."}}}; they '
        "are not sent to another origin that the url redirects to.",
        "The command line sends no credentials over http: use a presigned url.",
    ),
    (
        "If the store is slow or far, raise RetryOptions.max_attempts or its timeouts.",
        "The store may be slow or far, or its url needs the other of http:// and https://.",
    ),
    (
        "Lower LimitOptions.max_connections, or wait longer with RetryOptions.max_attempts and backoff_max_s.",
        "Try again later, or with fewer commands at once.",
    ),
    ("Raise RetryOptions.max_attempts to retry more often.", "Try again later."),
    ("Raise RetryOptions.read_timeout_s if the store is slow.", "The store may be slow: try again later."),
    (
        "Session.open_dataset reads all files of a bucket or prefix.",
        "End the url with / to read all files of the bucket: s3://bucket/.",
    ),
    ("Leave out LIMIT, and pass limit= for it.", "Leave out LIMIT, and add --limit N for it."),
    # indexes
    ("at: is missing, and", "--at is missing, and"),
    ("at: is inside the dataset", "--at is inside the dataset"),
    ("at: the index of one file", "--at: the index of one file"),
    ("at='s3://bucket/indexes/trips/'", "--at s3://bucket/indexes/trips/"),
    ("Leave out at= to use", "Leave out --at to use"),
    (
        "Build it: build_index(). By default, the index of a folder is in _asyncpq/ below it.",
        "`asyncpq index build` builds it.",
    ),
    (
        "Build it: build_index(). By default a folder's index is in _asyncpq/ below it.",
        "`asyncpq index build` builds it.",
    ),
    ("Build it with Session.build_index().", "`asyncpq index build` builds it."),
    ("Refresh the index: await index.refresh().", "`asyncpq index refresh` refreshes it."),
    ("Call build_index() again for ", "Repeat `asyncpq index build` for "),
    ("Open the index with the table: session.open_index(at, table=table).", "Name the url of the table."),
    ("Open the table, and pass the index as index=.", "Name the url of the table, and the index with --index."),
    ("Open the folder that the index covers, or pass view='listed'.", "Name the folder that the index covers."),
    (", or open the dataset without it (index=False)", ""),
    ("Set single_writer=True if only one process writes to this index.", "Keep the index in another store, with --at."),
    ("set BuildOptions.folder to another folder", "set TMPDIR to another folder"),
    (
        "If the file is as it must be, raise LimitOptions(",
        "If the file is as it must be, in Python, raise LimitOptions(",
    ),
    ("Raise LimitOptions.", "In Python, raise LimitOptions."),
    (
        'Set HF_TOKEN, run "hf auth login", or pass storage_options={"hf": {"token": ...}}; accept',
        'Set HF_TOKEN, or run "hf auth login"; accept',
    ),
    # files
    ('; pass on_bad_file="skip" to leave out files that are not Parquet.', "; a pattern of the others leaves it out."),
    (', or pass on_bad_file="skip" to leave out files that are not Parquet.', "."),
    ("Pass the folder that sessions use as disk_cache.", "Name the folder that other commands had as --disk-cache."),
    ('Leave out view= and index=; or add format="parquet" to read every file, committed or not.', "Leave out --index."),
    ('Open that folder by itself; or pass format="parquet", to read every file that is there.', "Name that folder."),
    ('Write them again; or pass format="parquet" to read every file that is there.', "Write them again."),
    ("To read the table, open ", "To read the table, name "),
    (' with format="delta"; or pass format="parquet" to read every listed file.', "."),
    (' with format="iceberg"; or pass format="parquet" to read every listed file.', "."),
    (
        'Open the table by its catalog, as a DuckLakeTable; or pass format="parquet" to read every listed file.',
        "Name the table by its catalog: ducklake:CATALOG#TABLE.",
    ),
    (
        'To ignore that, pass format="parquet" to read every listed file.',
        'In Python, format="parquet" reads every file anyway.',
    ),
    (
        'Open the dataset with schema_policy="permissive":',
        'In Python, open the dataset with schema_policy="permissive":',
    ),
    (
        "Read it with ReadOptions(validate_utf8=False), and cast the column to binary for its bytes.",
        "Leave the column out, with --columns.",
    ),
    ("; ReadOptions(validate_arrow_schema=False) reads it with the types of its Parquet schema.", "."),
    (
        'Pass ReadOptions(legacy_calendar="ignore") to read them as they are stored, or write the file again with a '
        "current Spark.",
        "Write the file again with a current Spark, or leave the column out, with --columns.",
    ),
    (
        "Give open_file its decryption_properties=.",
        "In Python, open_file takes decryption_properties=; the command line has no keys.",
    ),
    ("Leave the file's column out: pass columns=.", "Leave the column out, with --columns."),
    ("Open it again, or call await file.refresh(), to read the new version.", "Repeat the command."),
    ("Pass None for all rows.", "Leave out --where for all rows."),
)
_CLI_OF: Final = dict(WORDS)
#: Arguments of Python at the beginning of a message, whose options have their names.
_ARGUMENT: Final = re.compile(
    r"^(sort_by|zorder_by|columns|where|publish|compression|compression_level|page_rows|page_bytes|row_group_rows"
    r"|row_group_bytes|file_bytes|older_than|keep|sample|rows|seed)(?=[=:])"
)
_PYTHON: Final = re.compile("|".join(map(re.escape, sorted(_CLI_OF, key=len, reverse=True))))


def in_options(text: str) -> str:
    """Return an error's text with the command line's options instead of the arguments of Python's functions."""
    named = _ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')}", text)
    return _PYTHON.sub(lambda match: _CLI_OF[match[0]], named)
