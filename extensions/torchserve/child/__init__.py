"""TorchServe's archives as models: a handler runs unchanged, and gets the rows and the context that it knows (D96)."""
