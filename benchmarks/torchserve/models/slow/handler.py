"""A model of 50 ms per call, so that requests wait while a process is killed."""

import time


def handle(data, context):
    if data is None:
        return None
    time.sleep(0.05)
    return [{"number": row["body"]["number"]} for row in data]
