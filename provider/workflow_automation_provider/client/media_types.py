"""
Media types by the ending of a name, the same on each machine.

``mimetypes`` reads files of the system, such as ``/etc/mime.types``, which not every image has.
"""

from __future__ import annotations

import mimetypes

_UNKNOWN = "application/octet-stream"

_TYPES = {
    # Text and data
    "avro": "application/vnd.apache.avro",
    "arrow": "application/vnd.apache.arrow.file",
    "css": "text/css",
    "csv": "text/csv",
    "feather": "application/vnd.apache.arrow.file",
    "geojson": "application/geo+json",
    "htm": "text/html",
    "html": "text/html",
    "ics": "text/calendar",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "ndjson": "application/x-ndjson",
    "orc": "application/vnd.apache.orc",
    "parquet": "application/vnd.apache.parquet",
    "sql": "application/sql",
    "sqlite": "application/vnd.sqlite3",
    "toml": "application/toml",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "vcf": "text/vcard",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    # Documents
    "doc": "application/msword",
    "docm": "application/vnd.ms-word.document.macroEnabled.12",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "eml": "message/rfc822",
    "epub": "application/epub+zip",
    "msg": "application/vnd.ms-outlook",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "pdf": "application/pdf",
    "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "rtf": "application/rtf",
    "xls": "application/vnd.ms-excel",
    "xlsb": "application/vnd.ms-excel.sheet.binary.macroEnabled.12",
    "xlsm": "application/vnd.ms-excel.sheet.macroEnabled.12",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    # Images, audio and video
    "avi": "video/x-msvideo",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "flac": "audio/flac",
    "gif": "image/gif",
    "heic": "image/heic",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "m4a": "audio/mp4",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "png": "image/png",
    "svg": "image/svg+xml",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    # Archives, and what is compressed: it is sent as it is
    "7z": "application/x-7z-compressed",
    "br": _UNKNOWN,
    "bz2": "application/x-bzip2",
    "gz": "application/gzip",
    "jar": "application/java-archive",
    "rar": "application/vnd.rar",
    "svgz": "application/gzip",
    "tar": "application/x-tar",
    "tbz2": "application/x-bzip2",
    "tgz": "application/gzip",
    "txz": "application/x-xz",
    "xz": "application/x-xz",
    "z": _UNKNOWN,
    "zip": "application/zip",
    "zst": "application/zstd",
}


def media_type(name: str) -> str:
    """
    Return the media type of a file with this name.

    Where the ending is unknown here, that of the machine counts.
    """
    _, dot, ending = name.rpartition(".")
    known = _TYPES.get(ending.lower()) if dot else None
    if known:
        return known

    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _UNKNOWN

    return guessed or _UNKNOWN
