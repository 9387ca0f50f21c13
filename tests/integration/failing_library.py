"""The store's library with a fault in it: the n-th Redis command of a function, or every one from there on, raises an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from penstock.broker.store.library import body, library
from penstock.broker.store.sync import RedisStore

# `redis` is shadowed for the whole library. While the library loads, the global of this name is another table than while its
# functions run. What `arm` sets stays until it is called again.
_WRAPPER = """
local calls, fail_at, for_good = 0, 0, false
local function real() return redis end
local redis = {
  call = function(...)
    calls = calls + 1
    if calls == fail_at or for_good and calls > fail_at then return error({err = 'ERR injected'}) end
    return real().call(...)
  end,
  error_reply = function(text) return real().error_reply(text) end,
  sha1hex = function(text) return real().sha1hex(text) end,
  register_function = function(...) return real().register_function(...) end,
}
redis.register_function('penstock_arm_' .. SUFFIX, function(keys, args)
  local counted = calls
  calls, fail_at, for_good = 0, tonumber(args[1]), args[2] == '1'
  return counted
end)
"""
SOURCE = _WRAPPER + body()


class FailingLibrary:
    """`store` calls the library with the fault; `arm` decides where it is, and `calls` counts commands since."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, source=SOURCE)
        self.store.load_functions()
        self._redis = redis.Redis.from_url(url)
        self._suffix, _ = library(SOURCE)

    def close(self) -> None:
        self._redis.function_delete(f"penstock_{self._suffix}")
        self._redis.close()
        self.store.close()

    def arm(self, fail_at: int = 0, *, for_good: bool = False) -> int:
        """Fail at this command, counted from 1 (0: at none); returns how many were called since the last call of this."""
        return int(self._redis.fcall(f"penstock_arm_{self._suffix}", 0, fail_at, "1" if for_good else ""))

    @contextmanager
    def failing(self, fail_at: int, *, for_good: bool) -> Iterator[None]:
        self.arm(fail_at, for_good=for_good)
        try:
            yield
        finally:
            self.arm()

    def count(self) -> int:
        """How many commands the functions called since `arm`."""
        return self.arm()
