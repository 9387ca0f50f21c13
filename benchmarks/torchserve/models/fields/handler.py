"""Form fields by names of their own, and a picture that goes back as bytes with its media type."""


class FieldsService:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            name, count = row.get("name"), row.get("count")
            if row.get("echo"):
                context.set_response_content_type(index, "image/png")
                answers.append(bytes(row["echo"]))
                continue
            answers.append({"fields": sorted(row), "name": _text(name), "count": _text(count), "types": _types(row)})
        return answers


def _text(value):
    return value.decode() if isinstance(value, (bytes, bytearray)) else value


def _types(row):
    return {name: type(value).__name__ for name, value in sorted(row.items())}
