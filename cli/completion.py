"""Completes printed commands with the options by which this command found its store or gateway, so that they work.

Lower layers suggest a next step (`penstock run resume RUN`) without knowing about `--state-dir`. It is completed where it is
printed, from this process's own command line.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

from penstock.cli.verbs import verbs

# The options that name a store or a gateway; the short form is second.
_STORE = (("--config", "-c"), ("--state-dir", ""), ("--redis-url", ""))
_GATEWAY = (("--url", ""),)
# The end of a command in a sentence.
_COMMAND = re.compile(r"\bpenstock ([a-z]+)\b(?P<rest>[^`;,\n]*?)(?=`|;|,|\n|\.?$| or | \()", re.MULTILINE)


def completed(text: str, argv: Sequence[str] | None = None) -> str:
    """The text, in which each command has the options for its store or gateway from this process's command line."""
    given = sys.argv[1:] if argv is None else argv
    return _COMMAND.sub(lambda found: found[0] + _options(given, _options_of(found[1]), found[0]), text)


def _options_of(verb: str) -> Sequence[tuple[str, str]]:
    """The verb's options for a store or a gateway; empty for a verb without them and for an unknown verb."""
    entry = verbs().get(verb)
    return ((*_STORE, *_GATEWAY) if verb == "run" else _GATEWAY) if entry and entry.asks_gateway else ()


def gateway_option(url: str) -> str:
    return f" --url {shlex.quote(url)}"


def _options(given: Sequence[str], names: Sequence[tuple[str, str]], command: str) -> str:
    values = [(name, _value(given, name, short)) for name, short in names if name not in command]
    return "".join(f" {name} {shlex.quote(_public(value))}" for name, value in values if value)


def _value(given: Sequence[str], name: str, short: str) -> str:
    """The value of an option as typed; empty if it was not given."""
    for at, word in enumerate(given):
        if word in (name, short) and at + 1 < len(given):
            return given[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _public(value: str) -> str:
    """The value without a password, because printed text ends up in logs."""
    scheme, mark, rest = value.partition("://")
    login, at, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{mark}{user}{colon}PASSWORD{at}{host}" if at and colon else value
