"""The store that `penstock up` starts for itself: a Valkey server as a child process, in a folder of its own."""
