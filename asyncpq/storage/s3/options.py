"""Which of s3fs's options the direct path understands. Whatever is not listed goes through s3fs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncpq.errors import InvalidOptionError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoreLimits

#: Resolved by s3fs and botocore, seen in the probe request (SSE-C, requester pays), or about other
#: things than reading. ``session`` is missing: a session given may have hooks of its own.
OPTIONS = frozenset(
    [
        "anon",
        "endpoint_url",
        "key",
        "secret",
        "token",
        "username",
        "password",
        "use_ssl",
        "client_kwargs",
        "requester_pays",
        "default_block_size",
        "default_fill_cache",
        "default_cache_type",
        "version_aware",
        "config_kwargs",
        "s3_additional_kwargs",
        "cache_regions",
        "max_concurrency",
        "fixed_upload_size",
        "local_expiry_check",
        "profile",
        "use_listings_cache",
        "listings_expiry_time",
        "max_paths",
    ]
)
_CLIENT = frozenset(
    [
        "endpoint_url",
        "region_name",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "use_ssl",
        "verify",
        "api_version",
    ]
)
_CONFIG = frozenset(
    [
        "s3",
        "signature_version",
        "region_name",
        "connect_timeout",
        "read_timeout",
        "max_pool_connections",
        "retries",
        "user_agent",
        "user_agent_extra",
        "user_agent_appid",
        "tcp_keepalive",
        "parameter_validation",
        "use_dualstack_endpoint",
        "use_fips_endpoint",
        "request_checksum_calculation",
        "response_checksum_validation",
        "request_min_compression_size_bytes",
        "disable_request_compression",
        "ignore_configured_endpoint_urls",
        "inject_host_prefix",
    ]
)
_S3_CONFIG = frozenset(
    [
        "addressing_style",
        "payload_signing_enabled",
        "us_east_1_regional_endpoint",
        "use_accelerate_endpoint",
        "use_dualstack_endpoint",
    ]
)
_RETRIES = frozenset({"max_attempts", "total_max_attempts", "mode"})
#: All names, by the option that they are in.
NAMES: Mapping[str, frozenset[str]] = {
    "": OPTIONS,
    "client_kwargs": _CLIENT,
    "config_kwargs": _CONFIG,
    "config_kwargs.s3": _S3_CONFIG,
    "config_kwargs.retries": _RETRIES,
}


#: Headers of botocore's GET that S3Object sends too, or that change nothing about a ranged read.
KNOWN_HEADERS = frozenset(
    [
        "host",
        "range",
        "if-match",
        "user-agent",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "x-amz-checksum-mode",
    ]
)


def fallback_reason(options: Mapping[str, Any]) -> str | None:
    """The first option that only s3fs can honour, or None."""
    for option, known in NAMES.items():
        given = options
        for part in filter(None, option.split(".")):
            given = _mapping(given, part)
        for name in given:
            if name not in known:
                return f"option {option}.{name}" if option else f"option {name}"
    if _mapping(_mapping(options, "config_kwargs"), "retries").get("mode") == "adaptive":
        return "option config_kwargs.retries.mode=adaptive"
    return None


def retry_of(options: Mapping[str, Any], retry: RetryOptions) -> RetryOptions:
    """``retry`` with the timeouts and attempts that config_kwargs names."""
    config = _mapping(options, "config_kwargs")
    changes: dict[str, Any] = {}
    if config.get("connect_timeout") is not None:
        changes["connect_timeout_s"] = float(config["connect_timeout"])
    if config.get("read_timeout") is not None:
        changes["first_byte_timeout_s"] = changes["stall_timeout_s"] = float(config["read_timeout"])
    retries = _mapping(config, "retries")
    if retries.get("total_max_attempts") is not None:
        changes["max_attempts"] = int(retries["total_max_attempts"])
    elif retries.get("max_attempts") is not None:
        changes["max_attempts"] = int(retries["max_attempts"]) + 1
    return replace(retry, **changes)


def limits_of(options: Mapping[str, Any], limits: StoreLimits) -> StoreLimits:
    """``limits`` within the connections that config_kwargs allows."""
    most = _mapping(options, "config_kwargs").get("max_pool_connections")
    if most is None or int(most) >= limits.max_connections:
        return limits
    most = max(1, int(most))
    return StoreLimits(max_connections=most, scan_connections=max(1, min(limits.scan_connections, most - 1)))


def _mapping(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = options.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidOptionError(f"storage_options: {name} must be a mapping, not {type(value).__name__}")
    return value
