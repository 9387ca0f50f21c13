"""Answers that begin before the end: lines of text, or values that are written as JSON."""

from ts.handler_utils.utils import send_intermediate_predict_response

VALUE = {"größe": [1, 2.5, None, 1e22, 1e-7], "empty": {}, "not a number": float("nan")}


def handle(data, context):
    if data is None:
        return None
    wanted = [row.get("body") for row in data]
    is_json = [isinstance(one, dict) and one.get("chunks") == "json" for one in wanted]
    for step in range(3):
        chunks = [{**VALUE, "step": step} if json else f"step {step}\n" for json in is_json]
        send_intermediate_predict_response(chunks, context.request_ids, "step", 200, context)
    return [[VALUE] if json else "end\n" for json in is_json]
