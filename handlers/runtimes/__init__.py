"""Runtimes: they run model files, arrays in and arrays out. One folder per runtime; imports core and `handlers.contract`."""
