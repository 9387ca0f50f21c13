"""A setup file, a package in a zip beside it, and the environment."""

import json
import os
import sys
from abc import ABC

from ts.torch_handler.base_handler import BaseHandler


class SettingsHandler(BaseHandler, ABC):
    def initialize(self, ctx):
        self.manifest = ctx.manifest
        properties = ctx.system_properties
        folder = properties.get("model_dir")
        with open(os.path.join(folder, "setup_config.json")) as file:
            self.setup = json.load(file)
        sys.path.insert(0, os.path.join(folder, "words.zip"))
        from words import greeting

        self.greeting = greeting
        self.facts = {
            "cwd_is_model_dir": os.path.realpath(os.getcwd()) == os.path.realpath(folder),
            "gpu_id": properties.get("gpu_id"),
            "batch_size": properties.get("batch_size"),
            "server_name": properties.get("server_name"),
            "model_name": self.manifest["model"]["modelName"],
            "version": self.manifest["model"]["modelVersion"],
            "has_path": bool(os.environ.get("PATH")),
        }
        self.initialized = True

    def handle(self, data, context):
        return [{"greeting": self.greeting(self.setup["name"]), **self.facts} for _ in data]
