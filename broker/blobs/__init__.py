"""Payloads too large for a record, and uploaded files: as files of a shared folder or as objects of an object store."""
