"""The diffusers engine on a real StableDiffusionPipeline, tiny and untrained, saved to and loaded from a folder."""

import io
import json

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from actors.diffusers_engine import DiffusersEngine, DiffusersSettings
from results.errors import ConfigError, EnvironmentFault

# diffusers imports parts of torch that torch is about to drop; that is theirs to mend
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    vocabulary = {
        token: i for i, token in enumerate(["<|startoftext|>", "<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz", "a</w>"])
    }
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    (path / "merges.txt").write_text("#version: 0.2\n")
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 16), latent_channels=4, norm_num_groups=8, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    text = CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=37, num_attention_heads=4, num_hidden_layers=1,
        max_position_embeddings=77, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        unet=unet,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        tokenizer=CLIPTokenizer(str(path / "vocab.json"), str(path / "merges.txt"), model_max_length=77),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(path / "pipeline")
    return str(path / "pipeline")


def decoded(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image)), np.int16)


def test_images_follow_prompt_and_seed_alone_and_settings_reach_the_pipeline(folder):
    engine = DiffusersEngine({"repo": folder, "size": 16, "steps": 2, "guidance": 2.0, "negative_prompt": "bad"})
    batch = engine.generate("a nurse", [5, 6, 7])
    assert [decoded(image).shape for image in batch] == [(16, 16, 3)] * 3
    assert batch == engine.generate("a nurse", [5, 6, 7])
    alone = engine.generate("a nurse", [6])[0]
    assert np.abs(decoded(alone) - decoded(batch[1])).max() <= 2  # the numerical noise of batching
    assert np.abs(decoded(batch[0]) - decoded(batch[1])).max() > 20
    more = DiffusersEngine({"repo": folder, "size": 16, "steps": 4, "guidance": 2.0, "negative_prompt": "bad"})
    assert more.generate("a nurse", [5]) != engine.generate("a nurse", [5])
    with pytest.raises(ConfigError, match="no adapters"):
        engine.generate("a nurse", [5], adapter="abc")


def test_identity_follows_the_weights_in_the_folder(folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    same = DiffusersEngine.identity({"repo": str(copy)})
    assert same == DiffusersEngine.identity({"repo": folder})
    weights = next((copy / "unet").glob("*.safetensors"))
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert DiffusersEngine.identity({"repo": str(copy)}) != same


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs the setting 'repo'"),
        ({"repo": "x/y", "step": 3}, "no setting 'step'; did you mean 'steps'?"),
        ({"repo": "x/y", "dtype": "float61"}, "did you mean 'float16'?"),
        ({"repo": "x/y", "steps": 0}, "steps must be"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        DiffusersSettings.read(settings)


def test_missing_weights_are_said_with_the_command_that_mends_it(tmp_path):
    with pytest.raises(EnvironmentFault, match="hf download nobody/nothing --revision v1"):
        DiffusersEngine.preflight({"repo": "nobody/nothing", "revision": "v1"})
    with pytest.raises(EnvironmentFault, match="is missing"):
        DiffusersEngine.identity({"repo": str(tmp_path / "nowhere")})
