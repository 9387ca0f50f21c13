"""The Redis users of a gateway and a worker, with no more power than they use; the admin loads the functions for them.

A user's rights hold inside the functions too, so each user has the commands that the functions call, on our keys alone. What is
missing on purpose: EVAL, SCRIPT, FUNCTION, CONFIG, KEYS, SCAN, FLUSHALL, REPLICAOF, ACL, DEBUG, and every key that is not ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ADMIN, GATEWAY, WORKER = "penstock-admin", "penstock-gateway", "penstock-worker"
_PASSWORD_BYTES = 24

# What the Lua functions call; a test compares it with their source.
CALLED_BY_FUNCTIONS = (
    "del exists get hdel hexists hget hgetall hincrby hkeys hlen hmget hset hsetnx llen lpush publish pubsub|numsub rpop "
    "sadd set smembers time zadd zcard zcount zrange zrangebylex zrangebyscore zrank zrem zrevrangebylex zscore"
)
# What our clients send beside them.
_OURS = "fcall fcall_ro ping subscribe unsubscribe client|setname client|setinfo hello quit"
_OUR_KEYS = ("ps:*", "penstock.*", "celery-task-meta-*")
_OUR_CHANNELS = ("ps:*", "celery-task-meta-*")
# Celery's remote control and events as kombu does them; celery_app keeps it from what takes EVALSHA. A pattern that is
# subscribed to must stand here letter by letter.
_CELERYS = "psubscribe punsubscribe brpop srem multi exec discard"
# The last one is the queue of whoever reads the events, as Flower does with the worker's user.
_CELERY_KEYS = ("_kombu.binding.*", "_kombu.binding_permanent.*", "*.celery.pidbox*", "celeryev.*")
_CELERY_CHANNELS = ("/0.celery*", "/0.celery.pidbox", "/0.celeryev/*", "/0.celeryev/worker.*")


def _rules(commands: str, keys: tuple[str, ...], channels: tuple[str, ...]) -> str:
    allowed = " ".join(f"+{command}" for command in dict.fromkeys(commands.split()))
    return " ".join([*(f"~{key}" for key in keys), *(f"&{channel}" for channel in channels), "-@all", allowed])


RULES = {
    ADMIN: "~* &* +@all",
    GATEWAY: _rules(f"{_OURS} {CALLED_BY_FUNCTIONS}", _OUR_KEYS, _OUR_CHANNELS),
    WORKER: _rules(
        f"{_OURS} {CALLED_BY_FUNCTIONS} {_CELERYS}", (*_OUR_KEYS, *_CELERY_KEYS), (*_OUR_CHANNELS, *_CELERY_CHANNELS)
    ),
}


@dataclass(frozen=True, slots=True)
class Passwords:
    admin: str
    gateway: str
    worker: str

    def __repr__(self) -> str:
        return "Passwords(***)"

    def of(self, user: str) -> str:
        return {ADMIN: self.admin, GATEWAY: self.gateway, WORKER: self.worker}[user]


def passwords_in(path: Path) -> Passwords:
    """Those of this store, made at the first start. The file is its owner's alone."""
    try:
        return Passwords(**json.loads(path.read_text("ascii")))
    except FileNotFoundError:
        made = Passwords(*(secrets.token_urlsafe(_PASSWORD_BYTES) for _ in range(3)))
        write_private(path, json.dumps(asdict(made)))
        return made


def acl_lines(passwords: Passwords) -> str:
    """A Redis ACL file: nobody without a password, and only hashes of those."""
    lines = [f"user {name} on sanitize-payload #{_hash(passwords.of(name))} {rules}" for name, rules in RULES.items()]
    return "\n".join(["user default off resetchannels -@all", *lines, ""])


def write_private(path: Path, text: str) -> None:
    """Readable by this user from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def setuser_lines(passwords: Mapping[str, str]) -> list[str]:
    """Commands for a Redis of one's own, where the administrator sets the users up."""
    return [f"ACL SETUSER {name} reset on >{passwords[name]} {RULES[name]}" for name in (GATEWAY, WORKER)]


def _hash(password: str) -> str:
    return hashlib.sha256(password.encode("ascii")).hexdigest()
