"""BaseHandler with stages of its own, names of classes and a model file, as tutorials write it."""

import logging
import os

import torch
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import map_class_to_label

logger = logging.getLogger(__name__)


class DigitHandler(BaseHandler):
    topk = 2

    def initialize(self, context):
        super().initialize(context)
        properties = context.system_properties
        self.model_dir = properties.get("model_dir")
        self.serialized = os.path.join(self.model_dir, context.manifest["model"]["serializedFile"])
        logger.info("loaded %s on %s", self.serialized, self.device)
        self.initialized = os.path.isfile(self.serialized)

    def preprocess(self, data):
        values = []
        for row in data:
            value = row.get("data") or row.get("body")
            if isinstance(value, (bytes, bytearray)):
                value = [float(part) for part in value.decode("utf-8").split(",")]
            values.append(torch.tensor(value, dtype=torch.float32))
        return torch.stack(values).to(self.device)

    def inference(self, data, *args, **kwargs):
        with torch.no_grad():
            return torch.softmax(self.model(data), dim=1)

    def postprocess(self, data):
        best, classes = torch.topk(data, self.topk, dim=1)
        return map_class_to_label([[round(value, 5) for value in row] for row in best.tolist()], self.mapping, classes.tolist())
