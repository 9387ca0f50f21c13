"""A class without a base class."""


class NoopService:
    def __init__(self):
        self.context = None

    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        return ["OK"] * len(data)
