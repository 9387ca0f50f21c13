"""The body of POST /v1/batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadParameter
from penstock.extensions.openai.gateway.batch_request import BatchRequest, ExpiresAfter, first_model, output_ttl_s, window_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("24h", 86_400), ("30d", 2_592_000), ("1h30m", 5_400)]
)
def test_a_window_is_written_in_seconds_minutes_hours_and_days(text: str, seconds: float) -> None:
    assert window_s(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "0s", "31d", "1w", "24h ", "-1h"])
def test_any_other_window_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="is not a duration from 1s to 30d"):
        window_s(text)


def test_output_files_expire_after_creation_only_and_within_limits() -> None:
    def request(expiry: ExpiresAfter | None) -> BatchRequest:
        return BatchRequest(input_file_id="f", endpoint="/v1/embeddings", completion_window="24h", output_expires_after=expiry)

    assert output_ttl_s(request(None)) is None
    assert output_ttl_s(request(ExpiresAfter("created_at", 3_600))) == 3_600
    for expiry in (ExpiresAfter("last_active_at", 3_600), ExpiresAfter("created_at", 3_599)):
        with pytest.raises(BadParameter, match="takes the anchor created_at"):
            output_ttl_s(request(expiry))


@pytest.mark.parametrize(
    ("content", "model"),
    [
        (b'{"body": {"model": "embedder"}}\n{"body": {"model": "other"}}\n', "embedder"),
        (b'{"body": {}}\n', ""),
        (b"[]\n", ""),
        (b"not json\n", ""),
        (b"", ""),
        (b'{"body": {"model": 7}}\n', ""),
        (b'{"body": {"model": "' + b"m" * 65 + b'"}}\n', ""),
    ],
)
def test_the_first_line_names_the_model(tmp_path: Path, content: bytes, model: str) -> None:
    (tmp_path / "input.jsonl").write_bytes(content)
    assert first_model(tmp_path / "input.jsonl") == model
