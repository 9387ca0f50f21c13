"""Model files made runnable: arrays in, arrays out, one module per runtime. Imports core and `handlers.handler`."""
