"""A description of its own."""

from ts.torch_handler.base_handler import BaseHandler


class DescribedHandler(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, data, *args, **kwargs):
        return data

    def postprocess(self, data):
        return [{"got": value} for value in data]

    def describe_handle(self):
        return {"labels": ["cat", "dog"], "input": "any JSON"}
