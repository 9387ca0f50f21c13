"""The same archives and requests on TorchServe and on penstock: what differs, and what each costs."""
