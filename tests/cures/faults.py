"""The cures of docs/why/guarantees.md: for each line of the table of faults, a line of code that the line rests on."""

from __future__ import annotations

from tests.cures.cure import Cure

_LUA = "broker/functions"
_SLOT = "workers/slot"
_MANAGER = f"{_SLOT}/child/manager.py"
_ENDING = f"{_SLOT}/child/ending.py"
_STORE_TESTS = "tests/integration/test_store_faults.py"
_SWEEPER = "workers/fleet/sweeper.py"
_SWEEPER_TESTS = "tests/unit/workers/fleet/test_sweeper.py"

FAULTS = (
    Cure("F1", f"{_SLOT}/slot.py", "                self._verdicts.on_lost(event)", "                pass", fault="F1"),
    Cure(
        "F2",
        f"{_LUA}/sweep.lua",
        "    set_state(p, serial, job, 'queued', todo) -- guard:sweep_token\n    requeue(p, serial, job)",
        "    set_state(p, serial, job, 'queued', todo) -- guard:sweep_token",
        fault="F2-one",
    ),
    Cure("F2", f"{_LUA}/presence.lua", "      gone[#gone + 1] = worker\n", "", fault="F2-one"),
    Cure(
        "F2-poison",
        f"{_LUA}/lines.lua",
        "  if job.crashes > 0 or job.losses >= SUSPECT_LOSSES then",
        "  if job.crashes > 0 then",
        fault="F2-poison",
    ),
    Cure("F3", f"{_LUA}/claim.lua", "  send('HSET', p .. 'held:' .. worker, held)\n", "", fault="F3"),
    Cure(
        "F4",
        f"{_SLOT}/slot.py",
        "            self._verdicts.give_back(self._slot_child.in_flight.disown(), ReleaseReason.DRAIN)",
        "            self._slot_child.in_flight.disown()",
        fault="F4",
    ),
    Cure(
        "F5",
        f"{_LUA}/ending.lua",
        "  if job.state ~= 'leased' then return 'stale' end -- guard:state\n"
        "  if job.token ~= token then return 'stale' end -- guard:fence\n",
        "",
        fault="F5-late",
    ),
    Cure("F6", _MANAGER, "self._end.is_hung or self.is_paused:", "True:", fault="F6"),
    Cure(
        "F7",
        _ENDING,
        "return Cause.TIMED_OUT if self.is_hung and in_flight.is_sole_suspect(batch) else Cause.CRASHED",
        "return Cause.CRASHED",
        fault="F7",
    ),
    Cure(
        "F8",
        "workers/child/calls/halving.py",
        "return self._run(values[:middle], first) + self._run(values[middle:], first + middle)",
        "return [refused.failure] * len(values)",
        fault="F8",
    ),
    Cure("F9", f"{_LUA}/ending.lua", "  enqueue_solo(p, serial, job)\n", "  enqueue(p, serial, job)\n", fault="F9"),
    Cure(
        "F10", "handlers/contract.py", '"oom" if is_out_of_memory(error) else "handler_error"', '"handler_error"', fault="F10"
    ),
    Cure(
        "F11",
        _ENDING,
        "        if self.fault and self.fault.broken:\n            return Cause.UNSTARTED\n",
        "",
        ("tests/integration/test_worker_faults.py::test_a_broken_device_costs_no_job_anything_and_is_shown_as_unhealthy",),
    ),
    Cure("F12", _ENDING, "return child.resident_bytes() > limit * _WORN_SHARE", "return False", fault="F12"),
    Cure(
        "F13",
        _MANAGER,
        "        self._start_at = now + max(self.restarts.on_failure(), self._rest_s(now, how))",
        '        self._start_at = float("inf")',
        fault="F13",
    ),
    Cure(
        "F14",
        f"{_LUA}/submit.lua",
        "call.keys[digest] or redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup",
        "call.keys[digest]",
        fault="F14",
    ),
    Cure(
        "F15",
        f"{_LUA}/submit.lua",
        "      set_later(todo, p .. 'idem:' .. args[at + @submit.key], serial .. args[at + @submit.fingerprint], kept)\n",
        "",
        fault="F15",
    ),
    Cure("F16", "gateway/asgi/server.py", "        self._lifetime.drain(self._settings.worker.grace_s)\n", "", fault="F16"),
    Cure(
        "F17",
        "broker/store/links/refusals.py",
        "AWAY = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError)",
        "AWAY = (redis.TimeoutError, redis.BusyLoadingError)",
        fault="F17",
    ),
    Cure(
        "F18",
        "embedded/server.py",
        '            "appendfsync": self._fsync,',
        '            "appendfsync": "everysec",',
        ("tests/integration/test_embedded.py::test_it_keeps_every_promise_of_its_settings",),
    ),
    Cure("F19", "broker/store/aio.py", "ANSWER_WITHIN_S = 1.5", "ANSWER_WITHIN_S = 15.0", fault="F19"),
    Cure(
        "F19",
        _SWEEPER,
        "        return now < self._quiet_until",
        "        return False",
        (f"{_SWEEPER_TESTS}::test_a_process_that_was_stopped_for_a_while_sweeps_nothing_for_one_beat",),
    ),
    Cure(
        "F19",
        _SWEEPER,
        "        if self._linked_at is None or now - self._linked_at <= self._lease_s * 2 / 3:\n            return Absent()\n",
        "",
        (f"{_SWEEPER_TESTS}::test_nobody_is_gone_right_after_the_store_came_back",),
    ),
    Cure(
        "F20",
        "broker/store/sync.py",
        '            if "Function not found" not in str(error):\n                raise',
        "            raise",
        fault="F20",
    ),
    Cure(
        "F21",
        "gateway/jobs/results.py",
        '    return NotFound(f"there is no job {job}")',
        '    return Gone(f"there is no job {job}")',
        fault="F21",
    ),
    Cure("F21", f"{_SLOT}/needless.py", "        if self._replicas is None:", "        if True:", fault="F21-files"),
    Cure(
        "F22",
        f"{_LUA}/finish.lua",
        "register('finish', finish, {'allow-oom'})",
        "register('finish', finish, {})",
        # The scenario alone does not decide: expired records may free room in time for an ending that was refused once.
        (f"{_STORE_TESTS}::test_at_the_limit_of_memory_no_job_is_admitted_and_every_accepted_one_ends",),
    ),
    Cure(
        "F23",
        "broker/store/links/refusals.py",
        '        return StoreUnavailable(f"the disk of the job store is full: {error}", hint="free some space on that disk")',
        "        return error",
        fault="F23",
    ),
    Cure("F24", "broker/blobs/segment_writer.py", "        path.unlink()\n", "        pass\n", fault="F24"),
    Cure("F25", "broker/store/connection.py", "            self._break(failure)\n", "", fault="F25"),
    Cure(
        "F26",
        f"{_SLOT}/feeds.py",
        "return now > self._confirmed_at + self._lease_s - min(_MARGIN_S, self._lease_s / 4)",
        "return False",
        fault="F26",
    ),
    Cure(
        "F27",
        "gateway/models/registry.py",
        "return await self._store.now()",
        "return time.time()",
        # The scenario cannot see every use of a wall clock: this one only shows wrong ages of workers on the dashboard.
        ("tests/unit/test_clocks.py::test_nobody_reads_the_wall_clock_without_a_reason",),
    ),
    Cure("F29", "broker/backlog.py", "if expected_s + safety_s > deadline_s:", "if False:", fault="F29"),
    Cure(
        "F31",
        "gateway/asgi/wire.py",
        "    parts: list[bytes] = []\n",
        '    kept = b"x" * limit\n    parts: list[bytes] = []\n    assert kept\n',
        fault="F31",
    ),
    Cure(
        "F33",
        "runs/driver.py",
        "self._ahead.take(self._limits.window_rows - self._window.rows)",
        "self._ahead.take(1_000_000)",
        fault="F33",
    ),
    Cure(
        "F34",
        f"{_LUA}/submit.lua",
        "return string.sub(first, 27) == fingerprint and 'existing' or 'key_reused', string.sub(first, 1, 26)",
        "return 'existing', string.sub(first, 1, 26)",
        fault="F34",
    ),
    Cure("F35", f"{_LUA}/finish.lua", "      if job.cancel == '1' then -- guard:cancel", "      if false then", fault="F35"),
    Cure(
        "F36",
        f"{_LUA}/sweep.lua",
        "    redis.call('SET', p .. 'tomb:' .. serial, owner, 'PX', math.min(TOMB_MAX_MS, math.max(TOMB_MIN_MS, kept)))\n",
        "",
        fault="F36",
    ),
    Cure("F37", "workers/fleet/fleet.py", "lambda *key: self._waiting(store, *key)", "lambda *key: 0", fault="F37"),
    Cure("F39", "runs/driver.py", "ReadAhead(source, checkpoint.after, rows", "ReadAhead(source, None, rows", fault="F39"),
    Cure(
        "F39-freeze",
        "runs/journal.py",
        "            if not _lock(file, self.path):",
        "            if False:",
        fault="F39-freeze",
    ),
    Cure("F40", f"{_SLOT}/batcher.py", "IDLE_POLL_S = 1.0", "IDLE_POLL_S = 60.0", fault="F40"),
    Cure("F41", f"{_LUA}/presence.lua", "      gone[#gone + 1] = worker\n", "", fault="F41"),
    Cure(
        "F41-freeze",
        f"{_SLOT}/claims.py",
        "message.nonce, asked_at=since, now=now)",
        "message.nonce, asked_at=now, now=now)",
        fault="F41-freeze",
    ),
    Cure(
        "F41-drain",
        f"{_SLOT}/claims.py",
        "            feed.end_offer(self._spec.version, now, can_claim=can_claim)\n",
        "",
        fault="F41-drain",
    ),
    Cure(
        "F32",
        "extensions/webhooks/gateway/attempts.py",
        "return EventOutcome.GONE if self.status == _GONE else EventOutcome.AGAIN",
        "return EventOutcome.GONE if self.status == _GONE else EventOutcome.DELIVERED",
        fault="F32",
    ),
    Cure(
        "F42",
        f"{_LUA}/report.lua",
        "local same = redis.call('LINDEX', key, 0) == mark -- guard:mark",
        "local same = redis.call('EXISTS', key) == 1",
        fault="F42",
    ),
    Cure(
        "F42-worker",
        "gateway/jobs/events/told.py",
        '            if is_restart:\n                yield self.seen.event("restart")\n',
        "",
        fault="F42-worker",
    ),
    Cure(
        "F42-gateway",
        "gateway/jobs/events/told.py",
        "self.seen = Seen.parse(last_event_id)",
        "self.seen = Seen()",
        fault="F42-gateway",
    ),
    Cure(
        "F42-store",
        f"{_SLOT}/settlement.py",
        "                self._settle(self._debts[0])\n                self._debts.popleft()\n",
        "                self._settle(self._debts.popleft())\n",
        fault="F42-store",
    ),
    Cure(
        "F42-freeze",
        f"{_LUA}/report.lua",
        "  if fence(job, token) ~= 'ok' then return 'stale' end -- guard:report\n",
        "",
        ("tests/contract/test_store_report.py::test_who_does_not_hold_the_job_reports_nothing",),
    ),
)
