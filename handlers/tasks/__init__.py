"""Built-in tasks: code around a model file so that it takes images or texts. Imports core, handlers and its runtimes."""
