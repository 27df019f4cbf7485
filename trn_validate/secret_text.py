"""What a secret looks like in a text."""

from __future__ import annotations

import re
from typing import NamedTuple

REDACTED = "<redacted>"

# Lower-case names ending in _token are mostly a tokenizer's (pad_token), so these are listed.
_NAME = (
    r"(?:_TOKEN|_SECRET|_PASSWORD|_PASSWD|_API_?KEY|(?ai:secret_?(?:access_?)?key|private_?key"
    r"|(?:session|access|auth)_?token|(?:hf|hub|refresh|api|security|github|gh)_token"
    r"|password|passwd|api_?key))"
)
_NAME_NEEDLES = (
    "_token",
    "sessiontoken",
    "accesstoken",
    "authtoken",
    "secret",
    "passw",
    "apikey",
    "api_key",
    "privatekey",
    "private_key",
)
_QUOTE = r"\\*[\"']?"
_VALUE = r"(?:(?<=[\"'])[^\"'\n\\]+|[^\s\"'\\,;}]+)"
# After a colon these are values of JSON, which would not be JSON without them.
_NO_SECRET = r"(?!(?:null|none|true|false|-?[\d.]+)(?![^\s,;}\]]))"

_IS_NAME = re.compile(_NAME + r"$")
_JSON_PAIR = re.compile(rf'({_NAME}"\s*:\s*)' + r'"[^"\\]*(?:\\.[^"\\]*)*"')


class _Rule(NamedTuple):
    needles: tuple[str, ...]
    """Lower-case texts without any of which the pattern cannot be there: they are found fast."""
    pattern: re.Pattern[str]
    replacement: str


def _rule(needles: tuple[str, ...], pattern: str, *, after: str = "") -> _Rule:
    return _Rule(needles, re.compile(pattern), after + REDACTED)


# No pattern begins with an open repeat: a line may be a megabyte without a break.
_RULES = (
    _rule(("akia", "asia"), r"(?<![0-9A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _rule(("gh",), r"gh[pousr]_[0-9A-Za-z]{16,}"),
    _rule(("github_pat_",), r"github_pat_[0-9A-Za-z_]{16,}"),
    _rule(("hf_",), r"(?<![0-9A-Za-z_])hf_[0-9A-Za-z]{16,}"),
    _rule(
        ("authorization",),
        rf"(?ai)(authorization{_QUOTE}[ \t]*[:=][ \t]*{_QUOTE}"
        r"(?:(?:bearer|basic|token|digest) +)?)[^\s\"'\\,;}]+",
        after=r"\1",
    ),
    _rule(("bearer ",), r"(?ai)(bearer +)[0-9a-z._~+/=-]{8,}", after=r"\1"),
    _rule(_NAME_NEEDLES, rf"({_NAME}{_QUOTE}[ \t]*=[ \t]*{_QUOTE}){_VALUE}", after=r"\1"),
    _rule(
        _NAME_NEEDLES,
        rf"({_NAME}{_QUOTE}[ \t]*:[ \t]*{_QUOTE})(?ai:{_NO_SECRET}){_VALUE}",
        after=r"\1",
    ),
    _rule(("://",), r"(?<=://)[^/\s:@\"']{1,256}:[^/\s@\"']{1,256}(?=@)"),
    _rule(("i-",), r"(?<![0-9A-Za-z-])i-[0-9a-f]{8,17}(?![0-9A-Za-z])"),
    _rule(
        ("arn:aws",),
        r"(arn:aws[a-z-]{0,16}:[^:\s]{0,64}:[^:\s]{0,64}:)\d{12}(?!\d)",
        after=r"\1",
    ),
    _rule(("ip-",), r"(?<![0-9A-Za-z])ip-\d{1,3}(?:-\d{1,3}){3}(?!\d)"),
    _rule(
        ("account",),
        rf"(?ai)(account[_ -]?(?:id|number)?{_QUOTE}[ \t]*[:= ][ \t]*{_QUOTE})\d{{12}}(?!\d)",
        after=r"\1",
    ),
    _rule((".dkr.ecr",), r"(?<!\d)\d{12}(?=\.dkr\.ecr)"),
    _rule(
        ("private key-----",),
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END[^-]*-----)?",
    ),
    _rule(("xox",), r"(?<![0-9A-Za-z])xox[abeoprs]-[0-9A-Za-z-]{10,}"),
    _rule(("glpat-",), r"(?<![0-9A-Za-z])glpat-[0-9A-Za-z_-]{16,}"),
    _rule(("aiza",), r"(?<![0-9A-Za-z])AIza[0-9A-Za-z_-]{30,}"),
    _rule(
        ("eyj",), r"(?<![0-9A-Za-z])eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}"
    ),
    _rule(("sk-",), r"(?<![0-9A-Za-z-])sk-[0-9A-Za-z_-]{20,}"),
    _rule(("npm_", "pypi-"), r"(?<![0-9A-Za-z])(?:npm_|pypi-)[0-9A-Za-z_-]{30,}"),
    _rule(
        ("x-amz-",), r"(?ai)(x-amz-(?:signature|credential|security-token)=)[^\s&\"']+", after=r"\1"
    ),
)


def without_secrets(text: str) -> str:
    """Replace everything in a text that looks like a secret."""
    lower = text.lower()
    for rule in _RULES:
        if any(needle in lower for needle in rule.needles):
            text = rule.pattern.sub(rule.replacement, text)
    return text


def without_json_secrets(text: str) -> str:
    """Replace, in JSON, the texts whose keys are names of secrets."""
    return _JSON_PAIR.sub(rf'\1"{REDACTED}"', text)


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret."""
    return _IS_NAME.search(name) is not None
