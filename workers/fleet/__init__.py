"""Which slots a worker process has and what it announces: starts, beats, sweeps, rollouts, profiles."""
