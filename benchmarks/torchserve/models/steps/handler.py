"""Answers that begin before the end."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for step in range(3):
        send_intermediate_predict_response([f"step {step}\n"] * len(data), context.request_ids, "step", 200, context)
    return ["end\n"] * len(data)
