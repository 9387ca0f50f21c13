"""All ways in which a handler refuses or fails."""

from ts.utils.util import PredictionException

FAULTS = {
    "refuse": PredictionException("the values are too small", 422),
    "refuse plainly": PredictionException("no reason given"),
    "raise": ValueError("a fault of the handler"),
    "memory": MemoryError("no room"),
}
ANSWERS = {
    "too many": ["one", "two", "three"],
    "no list": {"not": "a list"},
    "object": [object()],
    "none": [None],
    "number": [7],
}


class RefusingService:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        wanted = [row["body"]["wanted"] for row in data]
        for word, fault in FAULTS.items():
            if word in wanted:
                raise fault
        for word, answer in ANSWERS.items():
            if word in wanted:
                return answer
        return wanted
