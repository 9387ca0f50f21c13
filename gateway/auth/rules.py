"""The rules of one part's routes: who may call them, and which calls the audit log records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from penstock.access import Role
from penstock.errors import ConfigError, WrongRole
from penstock.gateway.auth.keys import Caller

Roles = tuple[Role, ...]
# A method, and the template of a path.
RouteKey = tuple[str, str]

# D15: docs/design/gateway.md
ANY: Roles = tuple(Role)
SUBMIT: Roles = (Role.SUBMIT,)
SEE: Roles = (Role.READ, Role.MANAGE)
STOP: Roles = (Role.SUBMIT, Role.MANAGE)
MANAGE: Roles = (Role.MANAGE,)


@dataclass(frozen=True)
class RouteRules:
    """`roles`: a caller needs one of a route's roles. `acts`: the names of audited routes in the log.

    `probes` are public paths that need no permit. `public` paths need no key, for any value of a parameter at their end.
    `strict`: under paths with these prefixes, unknown query parameters are refused.
    """

    roles: Mapping[RouteKey, Roles] = field(default_factory=dict)
    acts: Mapping[RouteKey, str] = field(default_factory=dict)
    probes: Set[str] = frozenset()
    public: Set[str] = frozenset()
    strict: tuple[str, ...] = ()

    def roles_of(self, method: str, route: str) -> Roles:
        """Empty for a public route. A route without a rule needs the role `manage`, so that a forgotten route is closed."""
        return () if route in self.probes or route in self.public else self.roles.get((method, route), MANAGE)

    def is_public(self, path: str) -> bool:
        return path in self.probes or path in self.public or path.startswith(self._public_below)

    @cached_property
    def _public_below(self) -> tuple[str, ...]:
        return tuple(route.partition("{")[0] for route in self.public if "{" in route)


def joined(parts: Sequence[RouteRules]) -> RouteRules:
    """The rules of all parts. Raises `ConfigError` if two parts have rules for one route: each decides only about its own."""
    opened = [path for part in parts for path in (*part.probes, *part.public)]
    stated = [route for part in parts for route in part.roles]
    twice = [" ".join(route) for route, count in Counter(stated).items() if count > 1 or route[1] in opened]
    twice += [path for path, count in Counter(opened).items() if count > 1]
    if twice:
        raise ConfigError(f"two extensions say who may call {', '.join(twice)}; uninstall one of them")
    return RouteRules(
        {route: roles for part in parts for route, roles in part.roles.items()},
        {route: act for part in parts for route, act in part.acts.items()},
        frozenset().union(*(part.probes for part in parts)),
        frozenset().union(*(part.public for part in parts)),
        tuple(prefix for part in parts for prefix in part.strict),
    )


class WrongToken(WrongRole):
    """The token is of another kind than the route takes."""


def require_role(caller: Caller, roles: Roles) -> None:
    """Raises `WrongRole` unless the caller has one of the roles, or there are none."""
    if roles and caller.roles.isdisjoint(roles):
        kind = WrongToken if caller.has_token else WrongRole
        raise kind(
            f"this API key may not do that: it needs the role {' or '.join(roles)}",
            hint="Use a key with that role; `penstock keys new NAME --role ...` makes one.",
        )


def security(roles: Roles) -> list[dict[str, Any]]:
    """A route's security requirement in OpenAPI 3.1: alternatives, one per role."""
    return [{"key": [role.value]} for role in roles]
