"""How long to wait before the next attempt: a delay that grows with each failure, up to a limit. Pure: nothing here sleeps."""

from __future__ import annotations

from dataclasses import dataclass

# Larger exponents overflow a float, and every delay in use has reached its limit long before.
_LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of `first_s`, `first_s * factor`, `first_s * factor**2` ... `most_s`.

    `jitter` is the share of a delay that chance may take off, so that many callers do not return at the same moment: 0.0 keeps
    every delay whole, 0.5 leaves at least half of it, 1.0 may leave nothing.
    """

    first_s: float
    most_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay_s(self, failures: int, *, chance: float = 1.0) -> float:
        """Seconds to wait after `failures` failures in a row; 0.0 after none. `chance` is a random number in 0..1."""
        if failures < 1:
            return 0.0
        longest = min(self.most_s, self.first_s * self.factor ** min(failures - 1, _LARGEST_EXPONENT))
        return longest * (1.0 - self.jitter * (1.0 - chance))


class BackoffCounter:
    """Counts failures in a row and names the delay after each. Not thread-safe."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.failures = 0

    def count_failure(self, *, chance: float = 1.0) -> float:
        """Count one more failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        return self._backoff.delay_s(self.failures, chance=chance)

    def reset(self) -> None:
        """Start again from the first delay, because an attempt has succeeded."""
        self.failures = 0
