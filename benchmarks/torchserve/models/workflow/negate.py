"""One node of the workflows: a number times a factor."""

import json

FACTOR = -1


def handle(data, context):
    if data is None:
        return None
    values = [json.loads(row["body"]) for row in data]
    if any(value["n"] == 666 for value in values):
        raise ValueError("not this one")
    return [{"n": value["n"] * FACTOR} for value in values]
