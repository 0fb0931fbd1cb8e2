"""Prompts are listed and counted before work starts, and one of which words would be lost is refused."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from seesaw.actors.engines import PromptLength
from seesaw.results.errors import ConfigError
from seesaw.runner.cli import main
from seesaw.runner.cluster.node_probe import probe_this_machine
from seesaw.runner.cluster.preflight import _lengths_there
from seesaw.runner.experiment import load_experiment
from seesaw.runner.jobs.mitigate import MitigateJob
from seesaw.runner.jobs.sweep import SweepJob
from seesaw.runner.prompts import foreign_syntax, length_notes, prompt_notes, texts_sent
from seesaw.runner.run import run as start

LONG = (
    "nurse, standing in a bright hospital corridor, holding a clipboard, visible face, sharp focus, highly detailed, "
    "studio lighting, solo"
)
CUTTING = {"name": "cutting", "engine": "diffusers", "settings": {"repo": "pictogram", "truncate": True}}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """`config(subject, **keys)` writes a config about one subject and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(subject: str, **keys: object) -> str:
        values = {
            "models": ["pictogram-sd"],
            "dataset": {"extends": "occupation", "add_subjects": [subject]},
            "subjects": [subject],
            "axes": ["gender", "environment"],
            "images": 8,
            "store": "store",
            "run": "run",
        }
        Path("one.yaml").write_text(yaml.safe_dump({**values, **keys}))
        return "one.yaml"

    return write


def run(*arguments: str) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments), standalone_mode=False)
    return end.value.code


@pytest.mark.parametrize("verb", ["plan", "prompts"])
def test_a_prompt_that_is_too_long_is_an_error_in_the_input(verb, config, capsys):
    assert run(verb, config(LONG)) == 2
    message = capsys.readouterr().err
    assert "pictogram-sd reads 32 tokens, and 5 of 5 prompts have more" in message
    assert f"'A photo of a {LONG}' has 89; lost would be '" in message
    assert "studio lighting, solo'" in message
    assert "truncate: true" in message


@pytest.mark.parametrize("job", [SweepJob, MitigateJob])
def test_no_run_begins_with_a_prompt_that_is_too_long(job, config):
    began = []
    with pytest.raises(ConfigError, match="pictogram-sd reads 32 tokens"):
        start(job(load_experiment(config(LONG))), lambda event, counts: began.append(event))
    assert not began


def test_prompts_are_listed_with_their_tokens(config, capsys):
    assert run("prompts", config("baker"), "--json") == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(p["axis"], p["attribute"]) for p in listed] == [
        ("", ""), ("gender", "male"), ("gender", "female"), ("environment", "indoor"), ("environment", "outdoor"),
    ]  # fmt: skip
    assert listed[0]["text"] == "A photo of a baker"
    assert listed[0]["tokens"]["pictogram-sd"] == {"used": 10, "limit": 32, "lost": ""}


def test_prompts_are_written_as_csv_blank_where_a_model_cuts_none(config):
    assert run("prompts", config("baker", models=["pictogram-sd", "pictogram-alder"]), "--csv", "prompts.csv") == 0
    table = pd.read_csv("prompts.csv", keep_default_na=False, dtype=str)
    assert list(table) == ["subject", "axis", "attribute", "text", "pictogram-sd", "pictogram-alder"]
    assert list(table["pictogram-sd"]) == ["10/32", "11/32", "11/32", "12/32", "12/32"]
    assert set(table["pictogram-alder"]) == {""}


def test_a_prompt_that_is_cut_on_purpose_is_noted_and_not_refused(config, capsys):
    assert run("plan", config(LONG, models=[CUTTING])) == 0
    assert "cutting: 5 of 5 prompts are cut to 32 tokens, as its settings say" in capsys.readouterr().err


def test_what_a_mitigation_may_compose_is_counted_too(config):
    """Nine words fit as a sweep states them; with five axes stated they do not."""
    path = config("nurse with a red hat and a blue bag and a dog", axes="all", priorities={"gender": 0.5, "age": 0.5})
    job = MitigateJob(load_experiment(path))
    assert prompt_notes(job.experiment, 1) == ([], {})
    with pytest.raises(ConfigError, match=r"1 of 28 prompts have more:\n.*african american"):
        prompt_notes(job.experiment, job.stated)
    assert MitigateJob(load_experiment(path, ["max_steps=1"])).stated == 1
    chosen = ["max_steps=chosen", "priorities={gender: 0.5, age: 0.3, emotion: 0.2}"]
    assert MitigateJob(load_experiment(path, chosen)).stated == 3
    assert MitigateJob(load_experiment(path, ["max_steps=null"])).stated == 8


def test_the_shipped_subjects_fit_the_embedded_model_with_every_axis_stated(config):
    experiment = load_experiment("demo", ["subjects=all", "store=store"])
    for stated in (1, 5, 8):
        assert prompt_notes(experiment, stated) == ([], {})
    assert len(texts_sent(experiment, 5)) == len(texts_sent(experiment, 1)) + 26


def test_one_of_several_encoders_that_cuts_is_a_note():
    lengths = {"sd3": [PromptLength(90, 256, cut_by=("tokenizer", "tokenizer_2")), PromptLength(20, 256)]}
    [note] = length_notes(["long", "short"], lengths)
    assert note.startswith("sd3: 1 of 2 prompts are longer than tokenizer, tokenizer_2 reads; no word is lost")


def test_a_node_counts_where_the_driver_has_no_tokenizer(config):
    model = load_experiment(config(LONG)).models[0]
    check = [(model.name, model.engine, model.spec.settings)]
    texts = {model.name: [f"A photo of a {LONG}"]}
    report = probe_this_machine(check, uncounted=texts)
    with pytest.raises(ConfigError, match="pictogram-sd reads 32 tokens"):
        _lengths_there({"node": report}, texts)
    wrong = [(model.name, model.engine, {**model.spec.settings, "negative_prompt": LONG})]
    assert "negative_prompt" in probe_this_machine(wrong, uncounted=texts).lacks[model.name]


@pytest.mark.parametrize(
    "words",
    [
        "<lora:add_detail:0.8>", "(nurse:1.3)", "((nurse))", "[red:blue:0.5]", "--ar", "--no", "embedding:bad",
        "nurse++", "{red|blue}", "__colour__",
    ],
)  # fmt: skip
def test_syntax_of_other_tools_is_taken_as_words_and_told_once(words):
    [note] = foreign_syntax([f"A photo of a nurse {words}", f"A photo of a male nurse {words}"])
    assert f"taken as words: '{words}'" in note


def test_ordinary_punctuation_is_no_syntax_of_other_tools():
    ordinary = [
        "A photo of a nurse (at work), smiling -- again", "A photo at 10:30 [sic]", "A 16:9 photo", "C++ programmer",
        "A photo of a follow-up: nurse", "self--made",
    ]  # fmt: skip
    assert foreign_syntax([text for text in ordinary if "++" not in text]) == []


OWN = """
from seesaw.actors.engines import PromptLength


class Own:
    @classmethod
    def prompt_lengths(cls, settings, prompts):
        how = settings["how"]
        if how == "raises":
            raise KeyError("vocabulary")
        lengths = [PromptLength(len(p.split()), 5, " ".join(p.split()[5:])) for p in prompts]
        return lengths[1:] if how == "too few" else lengths
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("counts", "own reads 5 tokens, and 4 of 5 prompts have more:\n.*lost would be 'baker'"),
        ("raises", "own: its engine cannot count tokens: KeyError: 'vocabulary'"),
        ("too few", "own: its engine's prompt_lengths gave 4 for 5 prompts"),
    ],
)
def test_an_engine_of_the_users_counts_in_its_own_way(how, message, config):
    Path("own.py").write_text(OWN)
    path = config("baker", models=[{"name": "own", "engine": "own:Own", "settings": {"how": how}}])
    with pytest.raises(ConfigError, match=message):
        prompt_notes(load_experiment(path), 1)
