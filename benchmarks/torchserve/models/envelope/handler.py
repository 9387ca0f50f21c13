"""Behind the envelope `json`: rows are the instances of the requests."""

from ts.torch_handler.base_handler import BaseHandler


class DoublingHandler(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True

    def handle(self, data, context):
        return [{"double": 2 * row["value"]} for row in data]
