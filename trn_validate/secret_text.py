"""What a secret looks like in a text."""

from __future__ import annotations

import re

REDACTED = "<redacted>"

# Lower-case names ending in _token are mostly a tokenizer's (pad_token), so these are listed.
_NAME = (
    r"(?:_TOKEN|_SECRET|_PASSWORD|_PASSWD|_API_?KEY|(?i:secret_?(?:access_)?key|private_key"
    r"|(?:session|access|auth|hf|hub|refresh|api|security|github|gh)_token"
    r"|password|passwd|api_key))"
)
_QUOTE = r"\\*[\"']?"
_VALUE = r"(?:(?<=[\"'])[^\"'\n\\]+|[^\s\"'\\,;}]+)"
# After a colon these are values of JSON, which would not be JSON without them.
_NO_SECRET = r"(?!(?:null|none|true|false|-?[\d.]+)(?![^\s,;}\]]))"

_IS_NAME = re.compile(_NAME + r"$")

# No pattern begins with an open repeat: a line may be a megabyte without a break.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![0-9A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])", REDACTED),
        (r"gh[pousr]_[0-9A-Za-z]{16,}", REDACTED),
        (r"github_pat_[0-9A-Za-z_]{16,}", REDACTED),
        (r"(?<![0-9A-Za-z_])hf_[0-9A-Za-z]{16,}", REDACTED),
        (
            rf"(?i)(authorization{_QUOTE}\s*[:=]\s*{_QUOTE}"
            r"(?:(?:bearer|basic|token|digest) +)?)[^\s\"'\\,;}]+",
            r"\1" + REDACTED,
        ),
        (r"(?i)(bearer +)[0-9a-z._~+/=-]{8,}", r"\1" + REDACTED),
        (rf"({_NAME}{_QUOTE}\s*=\s*{_QUOTE}){_VALUE}", r"\1" + REDACTED),
        (rf"({_NAME}{_QUOTE}\s*:\s*{_QUOTE})(?i:{_NO_SECRET}){_VALUE}", r"\1" + REDACTED),
        (r"(?<=://)[^/\s:@\"']{1,256}:[^/\s@\"']{1,256}@", REDACTED + "@"),
        (r"(?<![0-9A-Za-z-])i-[0-9a-f]{8,17}(?![0-9A-Za-z])", REDACTED),
        (
            r"(arn:aws[a-z-]{0,16}:[^:\s]{0,64}:[^:\s]{0,64}:)\d{12}(?!\d)",
            r"\1" + REDACTED,
        ),
        (r"(?<![0-9A-Za-z])ip-\d{1,3}(?:-\d{1,3}){3}(?!\d)", REDACTED),
    )
)


def without_secrets(text: str) -> str:
    """Replace everything in a text that looks like a secret."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret."""
    return _IS_NAME.search(name) is not None
