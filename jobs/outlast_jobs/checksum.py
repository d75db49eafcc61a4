"""The crc32 of a zip's members, by the fastest way that is installed."""

try:  # several times as fast; where it can't be had the same is slower
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
