"""The Redis users of a gateway, a worker, Flower and what extensions serve, each with only the rights that it needs.

An administrator loads the functions.

A user's rights hold inside the functions too, so each user has the commands that the functions call, on our keys alone. Left
out on purpose: EVAL, SCRIPT, FUNCTION, CONFIG, KEYS, SCAN, FLUSHALL, REPLICAOF, ACL, DEBUG, and every other key.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.extension import installed, load_part

ADMIN, GATEWAY, WORKER, FLOWER = "penstock-admin", "penstock-gateway", "penstock-worker", "penstock-flower"
# The user of Celery's clients, which an extension brings.
CELERY = "penstock-celery"
_OF_PENSTOCK = "penstock-"
_PASSWORD_BYTES = 24

# The commands that the Lua functions call; a test compares them with the source.
CALLED_BY_FUNCTIONS = (
    "del exists get hdel hexists hget hgetall hincrby hkeys hlen hmget hrandfield hset hsetnx lindex llen lpos lpush "
    "lrange lrem mset pexpire publish pubsub|shardnumsub rpop rpush sadd set smembers spublish srem time zadd zcard "
    "zcount zrange zrangebylex zrangebyscore zrank zrem zrevrangebylex zscore"
)
# The commands that every client sends while it connects.
CONNECTED = "ping client|setname client|setinfo hello quit"
# The commands that our clients send besides. Answers wait for a replica by WAITAOF, and blobs until an end is safe.
_OURS = f"fcall fcall_ro waitaof subscribe unsubscribe ssubscribe sunsubscribe cluster|slots {CONNECTED}"
# For the gateway's metrics, the state of the server's memory and log; at every start, whether the server would delete jobs.
_ASKED = "info"
_OUR_KEYS = ("ps:*", "penstock*", "celery-task-meta-*")
# API keys that were made at run time: a user who can write them can call the gateway as any owner.
_API_KEYS = ("pk:*",)
_OUR_CHANNELS = ("ps:*", "celery-task-meta-*")
# Celery's remote control and events as kombu does them; celery_app keeps kombu from using EVALSHA. A pattern that is
# subscribed to must stand here letter by letter.
_CELERYS = "psubscribe punsubscribe blmove brpop srem multi exec discard"
_CELERY_KEYS = ("_kombu.binding.*", "_kombu.binding_permanent.*", "*.celery.pidbox*")
_CELERY_CHANNELS = ("/0.celery*", "/0.celery.pidbox", "/0.celeryev/*", "/0.celeryev/worker.*")
# Flower listens to events, asks workers and counts waiting jobs; it reads our keys and writes none. Like every client of remote
# control it can also order a worker to stop, which no rule of Redis can tell from a question.
_FLOWERS = f"{_CELERYS} subscribe unsubscribe publish sadd smembers exists del llen hkeys hvals {CONNECTED}"
_READ_BY_FLOWER = ("penstock.*", "ps:{registry}:models")
_FLOWER_KEYS = (*_CELERY_KEYS, "celeryev.*")


def _rules(commands: str, keys: tuple[str, ...], channels: tuple[str, ...]) -> str:
    allowed = " ".join(f"+{command}" for command in dict.fromkeys(commands.split()))
    # A key that begins with % brings its own rights.
    patterns = (key if key.startswith("%") else f"~{key}" for key in keys)
    return " ".join([*patterns, *(f"&{channel}" for channel in channels), "-@all", allowed])


RULES = {
    ADMIN: "~* &* +@all",
    GATEWAY: _rules(f"{_OURS} {_ASKED} {CALLED_BY_FUNCTIONS}", (*_OUR_KEYS, *_API_KEYS), _OUR_CHANNELS),
    WORKER: _rules(
        f"{_OURS} {_ASKED} {CALLED_BY_FUNCTIONS} {_CELERYS}", (*_OUR_KEYS, *_CELERY_KEYS), (*_OUR_CHANNELS, *_CELERY_CHANNELS)
    ),
    FLOWER: _rules(_FLOWERS, (*(f"%R~{key}" for key in _READ_BY_FLOWER), *_FLOWER_KEYS), _CELERY_CHANNELS),
}


@cache
def rules() -> dict[str, str]:
    """The rules of all users, by name: ours, and those that extensions bring."""
    return RULES | {user: load_part(part) for one in installed() for user, part in one.store_users.items()}


@dataclass(frozen=True, slots=True)
class Passwords:
    """Passwords by user. Their file names each user by the last word of its name."""

    by_user: Mapping[str, str]

    def __repr__(self) -> str:
        return "Passwords(***)"

    def of(self, user: str) -> str:
        return self.by_user[user]


def passwords_in(path: Path) -> Passwords:
    """The passwords of this store: made at the first start, or for the new user of a version. Only the owner reads them."""
    known: dict[str, str] = json.loads(path.read_text("ascii")) if path.exists() else {}
    short = {user: user.removeprefix(_OF_PENSTOCK) for user in rules()}
    missing = {name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in short.values() if name not in known}
    passwords = known | missing
    if missing:
        write_private(path, json.dumps(passwords))
    return Passwords({user: passwords[name] for user, name in short.items()})


def acl_lines(passwords: Passwords) -> str:
    """A Redis ACL file: every user needs a password, and the file holds only hashes."""
    lines = [f"user {name} on sanitize-payload #{_hash(passwords.of(name))} {rule}" for name, rule in rules().items()]
    return "\n".join(["user default off resetchannels -@all", *lines, ""])


def write_private(path: Path, text: str) -> None:
    """Readable by this user from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def setuser_lines(passwords: Mapping[str, str]) -> list[str]:
    """Commands with which an administrator sets the users up in an own Redis."""
    return [f"ACL SETUSER {name} reset on >{passwords[name]} {rule}" for name, rule in rules().items() if name != ADMIN]


def _hash(password: str) -> str:
    return hashlib.sha256(password.encode("ascii")).hexdigest()
