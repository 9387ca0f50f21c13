"""A loop over the rows, with pictures as files, as base64 and as lists, read by PIL."""

import base64
import io

from PIL import Image
from ts.torch_handler.base_handler import BaseHandler


class PictureRowsHandler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def preprocess(self, data):
        pictures = []
        for row in data:
            picture = row.get("data") or row.get("body")
            if isinstance(picture, str):
                picture = base64.b64decode(picture)
            if isinstance(picture, dict):
                picture = base64.b64decode(picture["instances"][0]["b64"])
            pictures.append(Image.open(io.BytesIO(picture)).convert("RGB"))
        return pictures

    def inference(self, pictures):
        return [{"width": picture.width, "height": picture.height, "corner": picture.getpixel((0, 0))} for picture in pictures]

    def postprocess(self, found):
        return found
