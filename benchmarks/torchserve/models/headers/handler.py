"""Request headers and ids in, status, headers and media type out."""

import json


def handle(data, context):
    if data is None:
        return None
    answers = []
    for index in range(len(data)):
        wanted = context.get_request_header(index, "x-answer")
        body = {
            "tenant": context.get_request_header(index, "x-tenant"),
            "has_id": bool(context.get_request_id(index)),
            "ids": len(context.request_ids),
            "url_path": context.get_request_header(index, "url_path"),
            "processors": len(context.request_processor),
            "property": context.request_processor[index].get_request_property("x-tenant"),
        }
        context.set_response_header(index, "x-made-by", "headers")
        context.set_response_content_type(index, "application/json")
        if wanted == "teapot":
            context.set_response_status(418, "A Teapot", index)
        if wanted == "text":
            context.set_response_content_type(index, "text/csv")
            answers.append("a,b\n1,2\n")
            continue
        answers.append(json.dumps(body, sort_keys=True))
    return answers
