"""The job store on Redis: one function is one transition. `sync` serves workers and runs, `aio` serves gateways."""
