"""Metrics of the model's own, by all calls that the documentation names."""

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler


class CountedHandler(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True
        self.lengths = context.metrics.add_metric_to_cache(
            metric_name="LengthOfRows", unit="count", dimension_names=["ModelName", "Level"], metric_type=MetricTypes.GAUGE
        )

    def handle(self, data, context):
        metrics = context.metrics
        metrics.add_counter("RowsSeen", len(data), None, [Dimension("Side", "left")])
        metrics.add_time("ReadingTime", 12.5, None, "ms")
        metrics.add_size("ReadBytes", 2, None, "kB")
        metrics.add_percent("Filled", 50)
        metrics.add_error("Oddities", 1)
        metrics.add_metric("Plain", 3, unit="count")
        self.lengths.add_or_update(len(data), [context.model_name, "Model"])
        return [{"counted": len(data)} for _ in data]
