"""Classifies errors of object stores and file systems by their texts, for sinks that write through a library. Pure.

delta-rs and pyarrow have one class of errors for a store that does not answer and for one that refuses, so the text
decides. The text comes from the store (`NoSuchBucket`), from the Rust crate object_store, from the AWS SDK for C++ in
pyarrow (`AWS Error ACCESS_DENIED`), or from the operating system.
"""

from __future__ import annotations

import re

# A page of HTML from a proxy is no help in a log.
_LONGEST = 400

_ADVICE = (
    (
        r"no.?such.?bucket|specified bucket does not exist|container.{0,20}does not exist",
        "the bucket does not exist. Create it, or correct the URL",
    ),
    (
        r"access.?denied|permission.?denied|not authorized|necessary privileges|\b403 forbidden|HTTP status 403",
        "access is denied. The credentials need the right to list, read, write and delete objects (of a folder: its "
        "owner needs the right to write)",
    ),
    (
        r"invalid.?access.?key|signature.?does.?not.?match|valid authentication|unauthenticated|expired.?token|"
        r"\b401 unauthorized|HTTP status 401",
        "the credentials are not accepted. Check them, and that they have not expired",
    ),
    (
        r"could not create local directory|not a directory|read-only file system|unable to open database file",
        "the folder cannot be created or written. Correct the path or its rights",
    ),
)
# A bucket may have any name, also "no-such-bucket".
_NAMES = re.compile(r"\w+://\S+|'[^']*'")
# Addresses of the services that give credentials to machines in AWS and Google Cloud.
_WITHOUT_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google\.internal", re.IGNORECASE)


def advice_for(text: str) -> str | None:
    """Return what a person must correct, from the text of an error; None if asking again may help."""
    # The machine's service for credentials may only be slow.
    if _WITHOUT_CREDENTIALS.search(text):
        return None
    # Quoted names and URLs are cut out, because they may contain the words of the patterns.
    message = _NAMES.sub("", text)
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, message, re.IGNORECASE)), None)


def one_line(text: str) -> str:
    """Return the text of an error without colours, in one line of limited length.

    A service for the credentials of machines that does not answer means that no other credentials were found.
    """
    # delta-rs prints arrows and colours of Rust's error reports.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("↳", ":")
    plain = " ".join(plain.split()).replace(" :", ":")
    if _WITHOUT_CREDENTIALS.search(plain):
        plain = f"no credentials were found: set them in the environment or in the sink's options. {plain}"
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
