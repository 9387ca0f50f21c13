"""Which handlers take one row at a time only, in the ways that public handlers are written."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from penstock.extensions.torchserve.child.reads_first import why_one_by_one

CLASS = "class Mine(BaseHandler):\n"


def of_preprocess(body: str) -> str:
    method = "def preprocess(self, data):\n" + indent(dedent(body), "    ")
    return CLASS + indent(method, "    ")


def of_handle(body: str) -> str:
    return "def handle(data, context):\n" + indent(dedent(body), "    ")


READ_FIRST = [
    'return self.read(data[0]["body"])',
    'text = data[0].get("data") or data[0].get("body")\nreturn self.tokenizer(text)',
    'row = data[0]\nreturn row.get("body")',
    'data = data[0]\nreturn data.get("data") or data.get("body")',
    'body = data[0].get("body")\nreturn [one["x"] for one in body["instances"]]',
    'data = data[0]["body"]\nout = []\nfor one in data:\n    out.append(one)\nreturn out',
    "return self.read(data.pop(0))",
    'row = data.pop()\nreturn row["body"]',
    'row = next(iter(data))\nreturn row["body"]',
    "return next(iter(data), None)",
    '(row,) = data\nreturn row["body"]',
    '[row] = data\nreturn row["body"]',
    'row, *_ = data\nreturn row["body"]',
    'return data[:1][0]["body"]',
    'return data[-1]["body"]',
    'requests = data\nreturn requests[0]["body"]',
    'data = data or []\nreturn data[0]["body"]',
    "rows = list(data)\nreturn rows[0]",
    'if data is None or len(data) == 0:\n    return None\nreturn data[0]["body"]',
    'logger.info("got %s of %d", data, len(data))\nreturn data[0]["body"]',
    'image = data[0].get("body")\nreturn [image] * len(data)',
    'images = [row.get("body") for row in data]\nreturn self.read(images[0])',
    'for row in data:\n    return row.get("body")',
    'for row in data:\n    image = row.get("body")\n    break\nreturn image',
    'for row in data:\n    image = row.get("data") or row.get("body")\n    image = self.read(image)\nreturn image',
    'inputs = data[0] if isinstance(data, list) else data\nreturn inputs.get("body")',
    'try:\n    text = data[0]["body"]["text"]\nexcept KeyError:\n    text = ""\nreturn text',
    'self.text = data[0].get("data")\nreturn self.text',
    'for row in data:\n    if not row.get("body"):\n        raise ValueError("empty")\nreturn data[0]["body"]',
]

READ_ALL = [
    'return [row["body"] for row in data]',
    'images = []\nfor row in data:\n    images.append(self.read(row.get("body")))\nreturn torch.stack(images)',
    "images = []\nfor index, row in enumerate(data):\n    images.append(row)\nreturn images",
    'out = []\nfor i in range(len(data)):\n    out.append(data[i]["body"])\nreturn out',
    'kind = data[0].get("kind")\nreturn [self.read(row, kind) for row in data]',
    'if isinstance(data[0].get("body"), str):\n    data = [self.decode(row) for row in data]\nreturn data',
    "return torch.as_tensor(data)",
    "return super().preprocess(data)",
    'texts = [row["body"] for row in data]\nlogger.info(texts[0])\nreturn self.tokenizer(texts)',
    'names = [row["name"] for row in data]\nkind = names[0]\nreturn [self.read(row, kind) for row in data]',
    "return list(map(self.read, data))",
    "return [self.read(a, b) for a, b in zip(data, self.others)]",
    "found = None\nfor row in data:\n    one = self.read(row)\n    found = found and cat([found, one])\nreturn found",
    "out = {}\nfor i, row in enumerate(data):\n    out[i] = row\nreturn out",
    "rows = iter(data)\nreturn [next(rows) for _ in data]",
    "first, *rest = data\nreturn [first, *rest]",
    "total = 0\nfor row in data:\n    total += len(row)\nreturn total, data",
    'for row in data:\n    if row.get("skip"):\n        continue\n    return self.pair(row, data)',
    "while data:\n    self.take(data.pop(0))\nreturn self.taken",
    "self.rows = data\nreturn self.rows[0]",
    "return self.helper.convert(data, data[0])",
    "return data",
    "return [self.read(data[0]), self.read(data[1])]",
    "for row in data:\n    self.queue(row)\nreturn self.results",
    "return (self.read(row) for row in data)",
]


@pytest.mark.parametrize("body", READ_FIRST)
@pytest.mark.parametrize("written", [of_preprocess, of_handle])
def test_a_handler_that_reads_one_row_is_found(written: object, body: str) -> None:
    assert callable(written)
    found = why_one_by_one([(written(body), "Mine")], "handle" if written is of_handle else "")
    assert "one request of a batch only (line " in found


@pytest.mark.parametrize("body", READ_ALL)
@pytest.mark.parametrize("written", [of_preprocess, of_handle])
def test_a_handler_that_goes_through_its_batch_is_not_accused(written: object, body: str) -> None:
    assert callable(written)
    assert why_one_by_one([(written(body), "Mine")], "handle" if written is of_handle else "") == ""


RETURN_ONE = {
    "a list of one": "def postprocess(self, output):\n        return [output.tolist()]",
    "by a variable": "def postprocess(self, output):\n        result = [{'label': int(output)}]\n        return result",
    "appended once": "def postprocess(self, output):\n        out = []\n        out.append(output.item())\n        return out",
    "in handle": "def handle(self, data, context):\n        return [self.model(torch.cat([row['body'] for row in data]))]",
    "handed on": "def handle(self, data, context):\n        rows = [row['body'] for row in data]\n"
    "        return self.postprocess(self.model(rows))\n    def postprocess(self, output):\n        return [output]",
}
RETURN_ALL = {
    "a list of all": "def postprocess(self, output):\n        return [one.item() for one in output]",
    "unpacked": "def postprocess(self, output):\n        return [*output]",
    "repeated": "def postprocess(self, output):\n        return [output] * self.size",
    "appended in a loop": "def postprocess(self, output):\n        out = []\n        for one in output:\n"
    "            out.append(one)\n        return out",
    "one if it failed": "def postprocess(self, output):\n        try:\n            return output.tolist()\n"
    "        except ValueError:\n            return ['failed']",
    "unknown": "def postprocess(self, output):\n        return output.tolist()",
    "none at first": "def handle(self, data, context):\n        if data is None:\n            return None\n"
    "        return [row['body'] for row in data]",
}


@pytest.mark.parametrize("body", RETURN_ONE.values(), ids=RETURN_ONE.keys())
def test_a_handler_that_returns_one_entry_is_found(body: str) -> None:
    assert "a list of one entry (line " in why_one_by_one([(f"{CLASS}    {body}\n", "Mine")])


@pytest.mark.parametrize("body", RETURN_ALL.values(), ids=RETURN_ALL.keys())
def test_a_handler_that_may_return_as_many_as_it_got_is_not_accused(body: str) -> None:
    assert why_one_by_one([(f"{CLASS}    {body}\n", "Mine")]) == ""


ASKS = [
    'context.get_request_header(0, "language")',
    "context.get_all_request_header(0)",
    'self.context.get_request_header(idx=0, key="language")',
    'context.set_response_content_type(0, "image/png")',
    'context.set_response_header(0, "x-model", "a")',
    'context.set_response_status(422, "Bad Thing")',
    'context.set_response_status(422, "Bad Thing", 0)',
]
ASKS_ALL = [
    'context.get_request_header(0, "explain")',
    "[context.get_all_request_header(idx) for idx in range(len(data))]",
    'context.set_response_status(422, "Bad Thing", idx)',
    'context.set_response_status(422, "Bad Thing", idx=place)',
    "context.set_all_response_status(404)",
    'context.get_request_header(0, "a"), context.get_request_header(idx, "a")',
    "get_request_header(0)",
]


@pytest.mark.parametrize("line", ASKS)
def test_a_handler_that_asks_or_answers_for_the_first_request_only_is_found(line: str) -> None:
    assert "one request of a batch only (line 3)" in why_one_by_one([(of_all(line), "Mine")])


@pytest.mark.parametrize("line", ASKS_ALL)
def test_a_handler_that_asks_and_answers_for_each_request_is_not_accused(line: str) -> None:
    assert why_one_by_one([(of_all(line), "Mine")]) == ""


def of_all(line: str) -> str:
    return f"{CLASS}    def handle(self, data, context):\n        {line}\n        return [row['body'] for row in data]\n"


SERVICE = """
class Service:
    def initialize(self, context): ...
    def preprocess(self, data): return {read}
    def handle(self, data, context): return self.preprocess(data)
_service = Service()
def handle(data, context):
    if data is None:
        return None
    data = _service.preprocess(data)
    return _service.run(data)
"""


def test_a_module_that_hands_its_batch_to_an_object_is_followed() -> None:
    assert "line 4" in why_one_by_one([(SERVICE.format(read="data[0]"), "")], "handle")
    assert why_one_by_one([(SERVICE.format(read="[row for row in data]"), "")], "handle") == ""


def test_a_function_may_hand_on_what_a_method_of_its_name_returns() -> None:
    own = (
        "class Service:\n    def handle(self, rows):\n        return [[row for row in rows]]\n"
        "_service = Service()\ndef handle(data, context):\n    return _service.handle(data)\n"
    )
    assert "a list of one entry (line 3)" in why_one_by_one([(own, "")], "handle")


def test_a_base_class_of_the_archive_is_read_and_overridden() -> None:
    base = "class Base:\n    def preprocess(self, data):\n        return data[0]\n"
    bare = "from base import Base\nclass Mine(Base):\n    pass\n"
    own = "class Mine(Base):\n    def preprocess(self, data):\n        return [row for row in data]\n"
    assert "line 3" in why_one_by_one([(base, "Base"), (bare, "Mine")])
    assert why_one_by_one([(base, "Base"), (own, "Mine")]) == ""


def test_handle_of_the_base_class_begins_with_preprocess() -> None:
    own = (
        f"{CLASS}    def handle(self, data, context):\n        return super().handle(data, context)\n"
        "    def preprocess(self, rows):\n        return rows[0]\n"
    )
    assert "line 5" in why_one_by_one([(own, "Mine")])


def test_a_helper_gets_the_batch_by_name_and_a_static_method_has_no_self() -> None:
    own = (
        f"{CLASS}    def preprocess(self, data):\n        return self.read(kind=1, rows=data)\n"
        "    @staticmethod\n    def read(rows, kind):\n        return rows[0]\n"
    )
    assert "line 6" in why_one_by_one([(own, "Mine")])


def test_functions_that_call_each_other_for_ever_end_the_search() -> None:
    own = "def handle(data, context):\n    return again(data)\ndef again(data):\n    return handle(data, None)\n"
    assert why_one_by_one([(own, "")], "handle") == ""


def test_a_source_is_read_in_little_time_however_its_functions_call_each_other() -> None:
    calls = "\n    ".join(["again{}(data)"] * 12)
    functions = [f"def again{n}(data):\n    {calls.replace('{}', str(n + 1))}" for n in range(40)]
    own = "\n".join(["def handle(data, context):\n    again0(data)", *functions, "def again40(data):\n    return data[0]\n"])
    assert "line" in why_one_by_one([(own, "")], "handle")


def test_source_that_is_no_python_says_nothing() -> None:
    assert why_one_by_one([("def handle(:", "")], "handle") == ""
    assert why_one_by_one([], "handle") == ""
    assert why_one_by_one([("def handle(data, context):\n    return " + "+".join(["data"] * 50_000), "")], "handle") == ""
