from __future__ import annotations

import msgspec

from penstock.tune.result import (
    BatchTime,
    Choice,
    Configuration,
    ConfigurationVerdict,
    EngineSettings,
    Figures,
    Goal,
    Measured,
    TuneResult,
    to_json,
)

_CHOICE = Choice(EngineSettings(precision="bf16", threads=2), batch_size=4)
_RESULT = TuneResult(
    model="m",
    version="1",
    goal=Goal(limit_s=0.05),
    space={"batch_size": [1, 4]},
    configurations=(
        Configuration(Choice(), ConfigurationVerdict.PRUNED, "one item alone takes too long"),
        Configuration(_CHOICE, ConfigurationVerdict.WINNER, "best", predicted=Figures(100.0, 99.0, 10.0, 40.0, 40.0)),
    ),
    measured=(Measured(EngineSettings(), times=(BatchTime(1, 0.01, quantiles_s=(0.009, 0.011)),)),),
)


def test_a_result_comes_back_from_its_json_as_it_was() -> None:
    assert msgspec.json.decode(to_json(_RESULT), type=TuneResult) == _RESULT


def test_the_winner_is_found_by_its_verdict() -> None:
    assert _RESULT.winner == _RESULT.configurations[1]


def test_a_label_tells_only_what_is_not_usual() -> None:
    assert _CHOICE.label == "batch 4, 1 x cpu bf16 2 threads, wait 10 ms"
