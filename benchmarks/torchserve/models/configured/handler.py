"""What stands in model-config.yaml reaches the handler."""


class ConfiguredService:
    def initialize(self, context):
        self.config = context.model_yaml_config
        self.initialized = True

    def handle(self, data, context):
        own = self.config["handler"]
        return [{"language": own["language"], "beams": own["beams"], "batch": self.config["batchSize"]} for _ in data]
