"""Configs as people write them: words that YAML takes for numbers, a ~, a hub repository, a list over a mapping."""

import json
import os

import pytest

GLASSES = """
name: glasses
template: A photo of a {subject}
subjects: [nurse]
axes:
  glasses:
    attributes: [yes, no]
    question: Does the person wear glasses (yes, no)?
    counterfactuals: {yes: {phrase: wearing glasses}, no: {phrase: without glasses}}
  country:
    attributes: [GB, NO]
    question: Which country (GB, NO) is it?
    counterfactuals: {GB: {phrase: in Britain}, NO: {phrase: in Norway}}
  decade:
    attributes: [20, 40]
    question: About how old (20, 40) is the person?
    counterfactuals: {20: {adjective: 20-year-old}, 40: {adjective: 40-year-old}}
"""
CONFIG = "models: [{name: simt, engine: simulated}]\nvqa: simulated\nsubjects: [nurse]\nimages: 8\n"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Load `text` as config.yaml with overrides, from the folder where it lies."""
    from seesaw.runner.experiment import load_experiment

    monkeypatch.chdir(tmp_path)
    (tmp_path / "glasses.yaml").write_text(GLASSES)

    def load(text: str = "", *overrides: str):
        (tmp_path / "config.yaml").write_text(CONFIG + text)
        return load_experiment("config.yaml", overrides)

    return load


@pytest.mark.parametrize("word", ["2024_05_01", "007", "12:30", "1e3", "0123", "yes", "null", "1.0"])
@pytest.mark.parametrize("key", ["name", "run", "store"])
def test_name_run_and_store_are_text_to_the_letter(config, tmp_path, key, word):
    for experiment in (config("", f"{key}={word}"), *([config(f"{key}: {word}\n")] if word != "null" else [])):
        place = {"name": experiment.name, "run": str(experiment.run), "store": experiment.store}[key]
        assert os.path.basename(place) == word


@pytest.mark.parametrize("key", ["run", "store"])
def test_a_tilde_is_the_home_directory(config, tmp_path, monkeypatch, key):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for experiment in (config(f"{key}: ~/there\n"), config("", f"{key}=~/there")):
        assert str(getattr(experiment, key)) == str(tmp_path / "home" / "there")


@pytest.mark.parametrize(
    ("axis", "target"),
    [("glasses", "yes: 0.6, no: 0.4"), ("country", "GB: 0.6, NO: 0.4"), ("decade", "20: 0.6, 40: 0.4")],
)
def test_targets_take_attributes_as_the_words_that_they_are(config, axis, target):
    settings = config(f"dataset: glasses.yaml\ntargets: {{{axis}: {{{target}}}}}\n").settings
    assert settings.targets[axis].tolist() == [0.6, 0.4]


def test_an_override_of_a_target_takes_a_number_as_a_word_and_says_how_to_write_yes(config):
    from seesaw.results.errors import ConfigError

    assert config("dataset: glasses.yaml\n", "targets.decade={20: 0.3, 40: 0.7}").settings.targets["decade"][0] == 0.3
    with pytest.raises(ConfigError, match="put it in quotes"):
        config("dataset: glasses.yaml\n", "targets.glasses={yes: 0.6, no: 0.4}")


def test_a_list_of_shares_may_replace_a_mapping_and_the_other_way_round(config):
    text = "targets: {age: {young: 0.2, middle: 0.3, old: 0.5}, gender: [0.3, 0.7]}\n"
    targets = config(text, "targets.age=[0.1,0.2,0.7]", "targets.gender={male: 0.4, female: 0.6}").settings.targets
    assert targets["age"].tolist() == [0.1, 0.2, 0.7]
    assert targets["gender"].tolist() == [0.4, 0.6]


def test_a_list_override_leaves_what_the_config_says_of_other_axes(config):
    text = "targets: {age: {young: 0.2, middle: 0.3, old: 0.5}, gender: [0.3, 0.7]}\n"
    assert config(text, "targets.age=[0.1,0.2,0.7]").settings.targets["gender"].tolist() == [0.3, 0.7]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "models=[someone/some-model]",
            "is a hub repository: write a YAML file with engine: diffusers, settings: {repo:",
        ),
        ("vqa=Qwen/Qwen2.5-VL-7B-Instruct", "say 'qwen2.5-vl-7b', which is shipped for it"),
        ("models=[black-forest-labs/FLUX.1-dev]", "say 'flux1-dev', which is shipped for it"),
    ],
)
def test_a_hub_repository_in_the_place_of_a_name_says_what_to_write(config, override, message):
    from seesaw.results.errors import ConfigError

    with pytest.raises(ConfigError, match="hub repository") as refused:
        config("", override)
    assert message in str(refused.value)


def test_deep_nesting_is_one_message(seesaw, tmp_path):
    (tmp_path / "deep.yaml").write_text("models: " + "[" * 400 + "]" * 400)
    command = seesaw("plan", "deep.yaml")
    assert (command.code, command.err) == (2, "seesaw: deep.yaml: is nested too deeply for a config\n")


def test_what_is_quoted_for_yaml_keeps_the_line_of_an_error(seesaw, tmp_path):
    (tmp_path / "twice.yaml").write_text("# infirmière —\nname: 007\nimages: 8\nimages: 9\n")
    assert "twice.yaml, line 4: not valid YAML: found duplicate key images" in seesaw("plan", "twice.yaml").err


def test_plan_of_a_config_that_names_its_folders_by_numbers(seesaw, tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG + "run: 007\nstore: 1e3\nname: 12:30\n")
    assert json.loads(seesaw("plan", "c.yaml", "--json").out)["name"] == "12:30"
