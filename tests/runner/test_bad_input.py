"""Bad input (exit code 2) and what a machine cannot do (4): one message, no traceback, nothing overwritten."""

import os
import subprocess

import pytest

from tests.conftest import SEESAW

GOOD = """
models: [{name: tti, engine: simulated}]
vqa: simulated
subjects: [nurse]
images: 8
"""

CONFIGS = {
    "unknown key": ("imges: 3", "unknown key 'imges'; did you mean 'images'?"),
    "unknown nested key": ("cluster: {adress: local}", "unknown key 'cluster.adress'; did you mean 'address'?"),
    "wrong type": ("images: many", "images must be at least 1 and at most 100,000 a prompt, got 'many'"),
    "a fraction of an image": ("images: 2.5", "images must be at least 1 and at most 100,000 a prompt, got 2.5"),
    "a boolean for a number": ("images: true", "images must be at least 1 and at most 100,000 a prompt, got True"),
    "no image": ("images: 0", "images must be at least 1 and at most 100,000 a prompt, got 0"),
    "a slip of the keyboard": ("images: 1000000000", "at most 100,000 a prompt, got 1000000000"),
    "no image of the initial prompt": (
        "images: {initial: 0, counterfactual: 8}",
        "images.initial must be at least 1 and at most 100,000 a prompt, got 0",
    ),
    "a negative number of images": ("images: {counterfactual: -8}", "images.counterfactual must be at least 1"),
    "a word for images": ("images: {initial: many}", "images.initial must be at least 1"),
    "a slip in a key of images": ("images: {inital: 8}", "images has no key 'inital'; did you mean 'initial'?"),
    "images as a list": ("images: [192, 48]", "images must be at least 1 and at most 100,000 a prompt, got [192, 48]"),
    "fewer images of the initial prompt": (
        "images: {initial: 16}",
        "images: 16 of the initial prompt and 48 of each counterfactual; the initial prompt, with which all of them",
    ),
    "negative seed": ("seed: -1", "seed must be a whole number of at least 0, got -1"),
    "unknown subject": ("subjects: [nurs]", "no subject 'nurs'; did you mean 'nurse'?"),
    "no subject": ("subjects: []", "subjects: expected 'all' or a list of names"),
    "unknown axis": ("axes: [gendr]", "no axis 'gendr'; did you mean 'gender'?"),
    "unknown model": ("models: [pictogram-adler]", "no model 'pictogram-adler' in models/; did you mean"),
    "no model": ("models: []", "models: expected a list"),
    "a model twice": ("models: [pictogram-elm, pictogram-elm]", "'pictogram-elm' is there twice"),
    "a model without engine": ("models: [{name: x}]", "needs a 'engine'"),
    "unknown engine": ("models: [{name: x, engine: diffusrs}]", "engine 'diffusrs' is unknown"),
    "engine in no module": ("models: [{name: x, engine: 'nowhere.at_all:E'}]", "no module 'nowhere' can be imported"),
    "unknown engine setting": (
        "models: [{name: x, engine: pictogram-draw, settings: {wrld: elm}}]",
        "no setting 'wrld'",
    ),
    "unknown truth": (
        "models: [{name: tti, engine: simulated, truth: aldr}]",
        "tti: truth: no pictogram world 'aldr'; did you mean 'alder'?",
    ),
    "unknown vlm": ("vqa: pictogram-vlmm", "no vlm 'pictogram-vlmm' in vlms/; did you mean 'pictogram-vlm'?"),
    "unknown metric": ("metric: nominl", "did you mean 'nominal'?"),
    "unknown intervention": ("intervention: none", "intervention"),
    "target that does not sum to one": ("targets: {gender: [0.5, 0.6]}", "gender"),
    "target without an attribute": ("targets: {gender: {male: 1.0}}", "female"),
    "target of an unknown axis": ("targets: {gendr: [0.5, 0.5]}", "gendr"),
    "unknown dataset": ("dataset: ocupation", "did you mean 'occupation'?"),
    "address of a client": ("cluster: {address: 'ray://head:10001'}", "ray job submit"),
    "replicas of nobody": ("cluster: {replicas: {ttj: 2}}", "did you mean 'tti'?"),
    "no replicas": (
        "cluster: {replicas: {tti: 0}}",
        "cluster.replicas.tti must be a whole number of at least 1, got 0",
    ),
    "a port that is none": ("cluster: {metrics: '127.0.0.1:99999'}", "expected HOST:PORT"),
    "no address": ("cluster: {metrics: ''}", "expected HOST:PORT"),
    "a host that is none": (f"cluster: {{metrics: '{'h' * 70}:9400'}}", "expected HOST:PORT"),
    "an endless object store": (
        "cluster: {object_store_gb: .inf}",
        "cluster.object_store_gb must be at least 0.075, got inf",
    ),
    "no patience": ("cluster: {wait_seconds: -1}", "must be a number of seconds above 0"),
    "a dataset that is a number": ("dataset: 5", "dataset must be a name, a path or a mapping, got 5"),
    "a run that is a URI": ("run: s3://bucket/run", "a run directory is a local one"),
    "a VLM with a model's name": ("vqa: {name: tti, engine: simulated}", "both called 'tti'"),
    "a question that a VLM was not made for": (
        "vqa: pictogram-vlm\ndataset: {extends: occupation, axes: {gender: {question: Man or woman?}}}",
        "was made for certain questions, and 'Man or woman?' is none",
    ),
    "infinite CPUs": ("vqa: {name: v, engine: simulated, cpus: .inf}", "cpus must be"),
    "not YAML": ("images: [1", "not valid YAML"),
    "a key twice": ("images: 3\nimages: 4", "images"),
    "a name that is a path": ("name: ../up", "name must be usable as a folder's name"),
    "an undefined variable": ("store: ${oc.env:NO_SUCH_VARIABLE_HERE}", "NO_SUCH_VARIABLE_HERE"),
}


def refused(command) -> str:
    """The one message of a refused command."""
    assert command.code == 2, (command.code, command.err)
    assert "Traceback" not in command.err
    assert command.err.strip()
    return command.err


def with_keys(text: str) -> str:
    new = {line.split(":")[0] for line in text.splitlines()}
    return "\n".join(line for line in GOOD.splitlines() if line.split(":")[0] not in new) + "\n" + text + "\n"


@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_config_is_refused_with_what_would_be_right(case, tmp_path, monkeypatch):
    from seesaw.results.errors import InputError
    from seesaw.runner.experiment import load_experiment

    text, message = CONFIGS[case]
    (tmp_path / "config.yaml").write_text(with_keys(text))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_experiment("config.yaml")
    assert message in str(caught.value)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\x89PNG\r\n\x1a\n\x00\xff", "not a text file"), (b"just words", "no mapping")],
)
def test_a_file_that_is_no_config_is_refused(content, message, tmp_path, seesaw):
    (tmp_path / "config.yaml").write_bytes(content)
    assert message in refused(seesaw("plan", "config.yaml"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan"], "Missing argument"),
        (["swep", "demo"], "did you mean 'sweep'?"),
        (["plan", "dmo"], "did you mean 'demo'?"),
        (["plan", "nowhere/x.yaml"], "there is no folder 'nowhere'"),
        (["plan", "."], "is a directory"),
        (["plan", "demo", "images"], "'images' is not an override"),
        (["plan", "demo", "imges=3"], "unknown key 'imges'; did you mean 'images'?"),
        (["plan", "demo", "images=three"], "images must be at least 1 and at most 100,000 a prompt, got 'three'"),
        (["plan", "demo", "images.initial=0"], "images.initial must be at least 1"),
        (["plan", "demo", "images.inital=64"], "images has no key 'inital'; did you mean 'initial'?"),
        (["plan", "demo", "images.counterfactual=256"], "192 of the initial prompt and 256 of each"),
        (["plan", "demo", "--jsn"], "--json"),
        (["status", "nowhere"], "no run.json"),
        (["report", "nowhere"], "no run.json"),
        (["verify", "nowhere"], "no such directory"),
        (["analyze", "nowhere.csv", "--out", "out"], "nowhere.csv"),
        (["analyze", "nowhere.csv"], "--out"),
    ],
)
def test_bad_usage_is_refused(args, message, seesaw, tmp_path):
    assert message in refused(seesaw(*args))
    assert list(tmp_path.iterdir()) == []


HEADER = "model,subject,source_axis,source_value,image,axis,answer\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("m,nurse,,,0,gender,mal\n", "did you mean 'male'?"),
        ("m,nurse,,,0,gendr,male\n", "did you mean 'gender'?"),
        ("m,nurse,bodytype,obese,0,gender,male\n", "fat"),
        ("m,nurse,,,0,gender,male\nm,nurse,,,0,gender,female\n", "row 2"),
        ("m,nurse,,,0,person,no\nm,nurse,,,0,gender,male\n", "no person"),
        ("m,nurse,gender,,0,gender,male\n", "source_value"),
        ("", "nurse.csv"),
    ],
)
def test_a_bad_answers_table_is_refused_and_writes_nothing(rows, message, tmp_path, seesaw):
    (tmp_path / "nurse.csv").write_text(HEADER + rows)
    assert message in refused(seesaw("analyze", "nurse.csv", "--out", "out"))
    assert not (tmp_path / "out").exists()


def test_the_readme_s_cluster_command_is_understood(seesaw):
    counts = ("cluster.replicas.flux1-dev=4", "cluster.replicas.qwen2.5-vl-7b=2")
    command = seesaw("plan", "paper", "cluster.address=auto", *counts)
    assert command.code == 0, command.err
    assert "flux1-dev: 4 x" in command.out
    assert "qwen2.5-vl-7b: 2 x" in command.out


def test_words_are_words_whatever_yaml_or_variables_make_of_them(tmp_path, monkeypatch):
    """What a run writes as its config reads back as the experiment that it was."""
    import yaml

    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.jobs.sweep import SweepJob
    from seesaw.runner.rundir import RunDirectory

    monkeypatch.chdir(tmp_path)
    subjects = ["1e5", "yes", "dollar \\${name}", "colon: and # hash", "007", "\u00e9t\u00e9"]
    (tmp_path / "odd.yaml").write_text(
        with_keys("subjects: all")
        + yaml.safe_dump({"dataset": {"extends": "occupation", "subjects": subjects}}, default_style='"')
    )
    experiment = load_experiment("odd.yaml")
    assert experiment.dataset.subjects == ("1e5", "yes", "dollar ${name}", "colon: and # hash", "007", "\u00e9t\u00e9")
    directory = RunDirectory(SweepJob(experiment))
    with directory.claimed():
        directory.write_config()
    again = load_experiment(str(directory.path / "config.yaml"))
    assert again.dataset == experiment.dataset
    assert again.fingerprint() == experiment.fingerprint()


def test_help_answers_without_loading_anything_heavy(seesaw):
    command = seesaw("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert command.code == 0
    assert "sweep" in command.out
    for module in ("ray", "torch", "pandas", "pyarrow", "numpy", "scipy"):
        assert f" {module}\n" not in command.err


def test_the_paper_plan_has_the_papers_figures_and_needs_no_weights(seesaw):
    command = seesaw("plan", "paper")
    assert command.code == 0, command.err
    lines = {line.split()[0]: line for line in command.out.splitlines() if line.strip()}
    for model in ("sd14", "sd35-large-turbo", "flux1-dev", "playground-v2.5", "kandinsky-2.2"):
        assert " 33,696 " in lines[model]
        assert " 269,568 " in lines[model]
    assert " 168,480 " in lines["all"]


def test_a_user_adds_an_axis_and_a_subject_by_yaml_alone(tmp_path, seesaw):
    (tmp_path / "mine.yaml").write_text(
        """
models: [{name: tti, engine: simulated}]
vqa: simulated
subjects: [baker]
axes: [gender, glasses]
images: 8
dataset:
  extends: occupation
  add_subjects: [baker]
  axes:
    glasses:
      attributes: [with, without]
      question: Does the person wear glasses (with, without)?
      counterfactuals:
        with: {phrase: wearing glasses}
        without: {phrase: without glasses}
"""
    )
    command = seesaw("plan", "mine.yaml", "--json")
    assert command.code == 0, command.err
    assert '"cells": 5' in command.out


@pytest.mark.slow  # starts Ray
def test_a_gpu_that_is_not_there_and_a_full_disk_end_a_run_with_exit_code_4(tmp_path, seesaw):
    (tmp_path / "big.yaml").write_text(
        with_keys("models: [{name: tti, engine: simulated, gpus: 1, image_kb: 1.0e+15}]")
    )
    full = seesaw("sweep", "big.yaml")
    assert full.code == 4, full.err
    assert "GB of images, and the file system of the store" in full.err
    (tmp_path / "gpu.yaml").write_text(with_keys("models: [{name: tti, engine: simulated, gpus: 1}]"))
    none = seesaw("sweep", "gpu.yaml", "cluster.gpus=0")
    assert none.code == 4, none.err
    assert "needs 1 GPUs, and Ray finds none here" in none.err
    assert "tti: 1 x (1 GPU, 1 CPU)" in none.err
    assert "Traceback" not in full.err + none.err


@pytest.mark.parametrize(
    ("model", "vlm", "message"),
    [
        ("memory_gb: 36, gpus: 1", "", "tti: it takes 36 GB on 1 GPU, and the largest GPU here has 26 GB"),
        ("memory_gb: 36, gpus: 2", "", "settings.offload=model"),  # two GPUs do not make a model fit into one
        ("memory_gb: 14, gpus: 0.5", "", "tti: it takes 14 GB on 0.5 GPU"),
        ("memory_gb: 24, gpus: 1", "memory_gb: 44, gpus: 1", "vlm: it takes 44 GB on 1 GPU"),
        ("memory_gb: 24, gpus: 1", "memory_gb: 44, gpus: 2", ""),  # spread over both
        ("memory_gb: 900000", "", "tti: it takes 900,000.0 GB of memory, and this machine has"),
    ],
)
def test_a_model_that_does_not_fit_into_memory_is_found_before_work(model, vlm, message, tmp_path, monkeypatch):
    from seesaw.results.errors import EnvironmentFault
    from seesaw.runner.cluster import preflight
    from seesaw.runner.experiment import load_experiment
    from seesaw.runner.scheduling.resources import Node

    def nodes(reports=None):  # what Ray would say of this machine
        return [
            Node("here", 2, reports["here"].gpu_gb, memory_gb=reports["here"].memory_gb) if reports else Node("here", 2)
        ]

    monkeypatch.setattr(preflight, "nodes", nodes)
    smi = tmp_path / "nvidia-smi"  # a machine with one GPU of 16 GiB and one of 24
    smi.write_text("#!/bin/sh\n[ \"$1\" = --query-gpu=memory.total ] && printf '16384\\n24564\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    text = f"models: [{{name: tti, engine: simulated, {model}}}]\nvqa: {{name: vlm, engine: simulated, {vlm}}}\n"
    (tmp_path / "config.yaml").write_text(with_keys(text + "cluster: {replicas: {tti: 2}}"))
    experiment = load_experiment("config.yaml")
    if not message:
        assert preflight.preflight(experiment).reports["here"].lacks == {}
        return
    with pytest.raises(EnvironmentFault) as fault:
        preflight.preflight(experiment)
    assert message in str(fault.value)


ABORTS = "import atexit, os\natexit.register(os.abort)\n"


@pytest.mark.parametrize(("command", "code"), [(("plan", "demo"), 0), (("plan", "dmo"), 2), (("verify", "store"), 2)])
def test_what_libraries_do_when_python_ends_does_not_change_how_a_command_ends(seesaw, tmp_path, command, code):
    """Seen: SIGABRT of `verify`, in a thread of Arrow's that let go of what it had read while Python ended."""
    (tmp_path / "sitecustomize.py").write_text(ABORTS)
    assert seesaw(*command, env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}).code == code


@pytest.mark.parametrize(
    ("command", "code", "said"), [("--version", 0, "seesaw, version"), ("nonsense", 2, "no command")]
)
def test_a_command_that_loads_neither_arrow_nor_ray_ends_as_python_programs_do(seesaw, tmp_path, command, code, said):
    (tmp_path / "sitecustomize.py").write_text("import atexit\natexit.register(print, 'at exit')\n")
    done = seesaw(command, env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert done.code == code
    assert said in done.out + done.err
    assert done.out.endswith("at exit\n")


def piped(tmp_path, line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `seesaw` is the command."""
    (tmp_path / "good.yaml").write_text(GOOD)
    text = f"set -o pipefail; seesaw() {{ '{SEESAW}' \"$@\"; }}; {line}"
    return subprocess.run(["bash", "-c", text], cwd=tmp_path, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("command", ["plan paper", "plan paper --json", "--help"])
def test_a_reader_that_goes_away_is_no_failure(tmp_path, command):
    done = piped(tmp_path, f"seesaw {command} | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("closed", "code"),
    [("plan good.yaml >&-", 0), ("plan good.yaml >&- 2>&- <&-", 0), ("--help >&-", 0), ("plan nothing >&- 2>&-", 2)],
)
def test_a_closed_stream_is_as_good_as_dev_null(tmp_path, closed, code):
    done = piped(tmp_path, f"seesaw {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.slow  # starts Ray
@pytest.mark.parametrize("how", ["", " --json"])
def test_a_sweep_whose_output_is_closed_runs(tmp_path, how):
    done = piped(tmp_path, f"seesaw sweep good.yaml axes=[gender] run=run{how} </dev/null >&-")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run/matrices.parquet").is_file()
