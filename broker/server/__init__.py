"""The Valkey server that `penstock up` brings along, its users, and what a store server says of its health."""
