"""Explanations by a method of the handler's own."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class ExplainedHandler(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.device = torch.device("cpu")
        self.initialized = True

    def preprocess(self, data):
        return torch.tensor([row["body"]["values"] for row in data])

    def inference(self, data, *args, **kwargs):
        return data.float().mean(dim=1)

    def postprocess(self, data):
        return [{"mean": value} for value in data.tolist()]

    def get_insights(self, tensor_data, _, target=0):
        return [{"shares": [value / sum(row) for value in row], "target": target} for row in tensor_data.tolist()]
