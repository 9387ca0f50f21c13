"""The jobs API: submit, predict, read, cancel, replay, explain."""
