"""The diffusers engine on a real StableDiffusionPipeline, tiny and untrained, saved to and loaded from a folder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from transformers import CLIPConfig, CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from seesaw.actors.diffusers_engine import DiffusersEngine
from seesaw.actors.diffusers_settings import DiffusersSettings
from seesaw.actors.engines import TTI_ENGINES, Withheld
from seesaw.results.errors import ConfigError, EnvironmentFault
from seesaw.results.store.store import Store
from seesaw.runner.config import ModelConfig
from seesaw.runner.experiment import _resolve

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


def decoded(image: Image.Image | Withheld) -> np.ndarray:
    return np.asarray(image.image if isinstance(image, Withheld) else image, np.int16)


def same(some: list, others: list, grey: int = 0) -> bool:
    return all(np.abs(decoded(a) - decoded(b)).max() <= grey for a, b in zip(some, others, strict=True))


def test_images_follow_prompt_and_seed_alone_and_settings_reach_the_pipeline(folder):
    engine = DiffusersEngine({"repo": folder, "size": [24, 16], "steps": 2, "guidance": 2.0, "negative_prompt": "bad"})
    batch = engine.generate("a nurse", [5, 6, 7])
    assert [decoded(image).shape for image in batch] == [(16, 24, 3)] * 3
    assert same(batch, engine.generate("a nurse", [5, 6, 7]))
    alone = engine.generate("a nurse", [6])
    assert same(alone, batch[1:2], grey=2)  # the numerical noise of batching
    assert not same(batch[:1], batch[1:2], grey=20)
    more = DiffusersEngine({"repo": folder, "size": [24, 16], "steps": 4, "guidance": 2.0, "negative_prompt": "bad"})
    assert not same(more.generate("a nurse", [5]), engine.generate("a nurse", [5]))
    with pytest.raises(ConfigError, match="loads no adapters"):
        engine.generate("a nurse", [5], adapter="abc")


def test_a_prompt_is_encoded_once_a_cell_and_the_images_are_those_of_a_bare_pipeline(folder):
    engine = DiffusersEngine({"repo": folder, "size": 16, "steps": 2, "guidance": 2.0, "negative_prompt": "bad"})
    encoder, calls = engine._pipeline.text_encoder, []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    batches = [engine.generate("a nurse", seeds) for seeds in ([1, 2], [3, 4], [5, 6])]
    assert len(calls) == 2  # the prompt and the negative one
    engine.generate("a chef", [1, 2])
    assert len(calls) == 4
    bare = StableDiffusionPipeline.from_pretrained(folder)
    bare.set_progress_bar_config(disable=True)
    for seeds, batch in zip(([1, 2], [3, 4], [5, 6]), batches, strict=True):
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        made = bare(
            ["a nurse"] * 2, negative_prompt=["bad"] * 2, generator=generators, height=16, width=16,
            num_inference_steps=2, guidance_scale=2.0,
        ).images  # fmt: skip
        assert same(made, batch, grey=1)


def test_a_scheduler_of_one_s_own_starts_from_the_repository_s_configuration(folder):
    engine = DiffusersEngine(
        {"repo": folder, "scheduler": {"class": "EulerDiscreteScheduler", "timestep_spacing": "trailing"}}
    )
    scheduler = engine._pipeline.scheduler
    assert type(scheduler).__name__ == "EulerDiscreteScheduler"
    assert (scheduler.config.timestep_spacing, scheduler.config.steps_offset) == ("trailing", 1)
    for wrong, message in (
        ({"class": "EulerDiscretScheduler"}, "did you mean 'EulerDiscreteScheduler'"),
        ({"class": "EulerDiscreteScheduler", "spacing": 1}, "no option 'spacing'"),
    ):
        with pytest.raises(ConfigError, match=message):
            DiffusersEngine({"repo": folder, "scheduler": wrong})


def test_options_for_memory_change_no_image_and_no_identity(folder, tmp_path):
    plain = {"repo": folder, "size": 16, "steps": 2}
    sliced = {**plain, "vae_slicing": True, "offload": "model", "batch": 2}
    assert same(DiffusersEngine(plain).generate("a", [1, 2, 3]), DiffusersEngine(sliced).generate("a", [1, 2, 3]), 2)
    spec = ModelConfig(name="m", engine="diffusers", settings=plain)

    def identity(settings: dict) -> str:
        return _resolve(replace(spec, settings=settings), "images", TTI_ENGINES, [], Store(tmp_path)).identity

    same_thing = {**sliced, "dtype": "float32", "size": [16, 16], "call": {}, "variant": None, "safety": "drop"}
    assert identity(sliced) == identity(same_thing) == identity(plain)
    for other in ({"dtype": "bfloat16"}, {"size": 24}, {"steps": 3}, {"safety": "keep"}, {"call": {"eta": 0.5}}):
        assert identity({**plain, **other}) != identity(plain)


def test_a_lora_is_loaded_with_its_scale_and_is_part_of_the_identity(folder, tmp_path):
    pipeline = StableDiffusionPipeline.from_pretrained(folder)
    pipeline.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    StableDiffusionPipeline.save_lora_weights(
        tmp_path, unet_lora_layers=convert_state_dict_to_diffusers(get_peft_model_state_dict(pipeline.unet))
    )
    plain = {"repo": folder, "size": 16, "steps": 2}
    lora = {"repo": str(tmp_path), "weight_name": "pytorch_lora_weights.safetensors"}
    made = {
        scale: DiffusersEngine({**plain, "loras": [{**lora, "scale": scale}]}).generate("a nurse", [1, 2])
        for scale in (0.0, 1.0, 8.0)
    }
    base = DiffusersEngine(plain).generate("a nurse", [1, 2])
    assert same(made[0.0], base, grey=1)
    assert not same(made[1.0], base, grey=1)
    assert not same(made[8.0], made[1.0], grey=1)
    identities = [DiffusersEngine.identity({**plain, "loras": [{**lora, "scale": scale}]}) for scale in (1, 1.0, 2)]
    assert identities[0] == identities[1] != identities[2]
    with pytest.raises(EnvironmentFault, match=r"nothing.safetensors"):
        DiffusersEngine.preflight({**plain, "loras": [{**lora, "weight_name": "nothing.safetensors"}]})


def test_options_for_speed_that_a_pipeline_does_not_have_are_named(folder):
    fast = {"repo": folder, "size": 16, "steps": 2, "channels_last": True, "attention": "native", "vae_tiling": True}
    plain = DiffusersEngine({"repo": folder, "size": 16, "steps": 2}).generate("a nurse", [1, 2])
    assert same(DiffusersEngine(fast).generate("a nurse", [1, 2]), plain, grey=2)
    with pytest.raises(ConfigError, match=r"attention 'nativ'.*_native"):
        DiffusersEngine({**fast, "attention": "nativ"})


def test_noise_that_a_scheduler_draws_itself_is_the_same_again(folder):
    scheduler = {"class": "EulerAncestralDiscreteScheduler"}
    engine = DiffusersEngine({"repo": folder, "size": 16, "steps": 4, "scheduler": scheduler})
    step, plain = engine._pipeline.scheduler.step, []

    def without_generator(*args, **given):
        given.pop("generator", None)  # as the pipelines of SD3 and FLUX call it
        plain.append(1)
        return step(*args, **given)

    engine._pipeline.scheduler.step = without_generator
    first = engine.generate("a nurse", [1, 2])
    torch.rand(5)
    assert same(engine.generate("a nurse", [1, 2]), first)
    assert plain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 17}, "cannot make an image with these settings.*divisible by"),
        ({"steps": 5000}, "cannot make an image with these settings"),
        ({"call": {"clip_skip": 99}}, "cannot make an image with these settings"),
        ({"call": {"guidence": 3}}, "StableDiffusionPipeline is not called with 'guidence'"),
        ({"without": ["unett"]}, "no component 'unett'; did you mean 'unet'"),
        ({"without": ["unet"]}, "cannot"),
        ({"prior": {"repo": "FOLDER"}}, "a StableDiffusionPipeline takes none"),
        ({"scheduler": {"class": "EulerDiscreteScheduler", "beta_schedule": "bogus"}}, "bogus"),
    ],
)
def test_what_a_pipeline_cannot_do_is_said_when_it_is_loaded(folder, settings, message):
    settings = {key: {"repo": folder} if key == "prior" else value for key, value in settings.items()}
    with pytest.raises(ConfigError, match=message):
        DiffusersEngine({"repo": folder, "size": 16, "steps": 2, **settings})


def test_a_folder_that_is_no_pipeline_we_can_load_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "odd")
    index = json.loads((tmp_path / "odd/model_index.json").read_text())
    (tmp_path / "odd/model_index.json").write_text(json.dumps({**index, "_class_name": "FooPipeline"}))
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*FooPipeline"):
        DiffusersEngine({"repo": str(tmp_path / "odd"), "size": 16, "steps": 2})


def test_a_relative_folder_is_found_beside_the_config_and_means_the_same_from_everywhere(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "mine")
    found = DiffusersEngine.absolute({"repo": "mine", "loras": [{"repo": "./mine"}, {"repo": "a/b"}]}, [tmp_path])
    assert found == {"repo": f"{tmp_path}/mine", "loras": [{"repo": f"{tmp_path}/mine"}, {"repo": "a/b"}]}
    assert DiffusersEngine.absolute({"repo": "pictogram"}, [tmp_path]) == {"repo": "pictogram"}


def test_out_of_memory_halves_the_calls_for_good_and_changes_no_image(folder):
    engine = DiffusersEngine({"repo": folder, "size": 16, "steps": 2})
    seeds = list(range(8))
    whole = engine.generate("a nurse", seeds)
    sizes = []

    def scarce(_, inputs):
        sizes.append(len(inputs[0]))
        if len(inputs[0]) > 2 * 2:  # guidance doubles the batch
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    hook = engine._pipeline.unet.register_forward_pre_hook(scarce)
    assert same(engine.generate("a nurse", seeds), whole, grey=2)
    assert sizes == [
        16,
        8,
        4,
        4,
        4,
        4,
        4,
        4,
        4,
        4,
    ]  # fails at 8 and at 4 images, then four calls of two, two steps each
    sizes.clear()
    assert same(engine.generate("a nurse", seeds), whole, grey=2)
    assert sizes == [4] * 8  # remembered
    hook.remove()

    def none_left(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory")

    engine._pipeline.unet.register_forward_pre_hook(none_left)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        engine.generate("a nurse", seeds)


def test_nan_in_one_image_is_a_blank_and_the_others_are_right(folder):
    engine = DiffusersEngine({"repo": folder, "size": 16, "steps": 2})
    whole = engine.generate("a nurse", [1, 2, 3])
    decode = engine._pipeline.vae.decode

    def poisoned(latents, *args, **kwargs):
        latents = latents.clone()
        latents[1] = float("nan")
        return decode(latents, *args, **kwargs)

    engine._pipeline.vae.decode = poisoned
    first, second, third = engine.generate("a nurse", [1, 2, 3])
    assert isinstance(second, Withheld)
    assert second.reason == "blank"
    assert same([first, third], [whole[0], whole[2]])


def test_what_the_safety_checker_catches_is_flagged_and_not_blackened(folder, tmp_path):
    pipeline = StableDiffusionPipeline.from_pretrained(folder)
    torch.manual_seed(1)
    vision = {"hidden_size": 32, "intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 1,
              "image_size": 16, "patch_size": 8, "projection_dim": 16}  # fmt: skip
    checker = StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision, projection_dim=16))
    extractor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    plain = DiffusersEngine({"repo": folder, "size": 16, "steps": 2}).generate("a nurse", [1, 2, 3])
    with torch.no_grad():
        seen = checker.visual_projection(checker.vision_model(extractor(plain, return_tensors="pt").pixel_values)[1])
        checker.concept_embeds[:] = seen[1]  # what the second image shows is what it looks for
        likeness = torch.cosine_similarity(seen, seen[1][None])
        checker.concept_embeds_weights[:] = (1 + max(likeness[0], likeness[2])) / 2
        checker.special_care_embeds_weights[:] = 2
    pipeline.register_modules(safety_checker=checker, feature_extractor=extractor)
    pipeline.save_pretrained(tmp_path / "safe")
    engine = DiffusersEngine({"repo": str(tmp_path / "safe"), "size": 16, "steps": 2})
    made = engine.generate("a nurse", [1, 2, 3])
    assert [image.reason if isinstance(image, Withheld) else "" for image in made] == ["", "flagged", ""]
    assert same(made, plain)
    kept = DiffusersEngine({"repo": str(tmp_path / "safe"), "size": 16, "steps": 2, "safety": "keep"})
    assert same(kept.generate("a nurse", [1, 2, 3]), plain)
    assert not any(isinstance(image, Withheld) for image in kept.generate("a nurse", [1, 2, 3]))


def test_identity_follows_the_weights_in_the_folder(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "unet").rename(tmp_path / "elsewhere")  # weights on another disk are weights too
    (copy / "unet").symlink_to(tmp_path / "elsewhere")
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
        ({"repo": "x/y", "size": [512]}, "size must be"),
        ({"repo": "x/y", "guidance": "7"}, "guidance must be"),
        ({"repo": "x/y", "batch": 16}, "batch must be"),
        ({"repo": "x/y", "scheduler": "Euler"}, "scheduler must be a mapping"),
        ({"repo": "x/y", "call": {"height": 3}}, "call.height is not for"),
        ({"repo": "x/y", "offload": "modell"}, "did you mean 'model'?"),
        ({"repo": "x/y", "trust_remote_code": True}, "needs a pinned revision"),
        (
            {"repo": "x/y", "loras": [{"path": "z"}]},
            "no setting 'loras.path'; known: repo, revision, scale, weight_name",
        ),
        ({"repo": "x/y", "loras": [{"weight_name": "z"}]}, "loras needs a 'repo'"),
        ({"repo": "x/y", "loras": [{"repo": "z"}]}, "loras needs a 'weight_name'"),
        ({"repo": "x/y", "scheduler": {"type": "Euler"}}, "scheduler must be a mapping with a 'class', for example"),
        ({"repo": "x/y", "revision": 12}, "revision must be text; a number needs quotes there, got 12"),
        ({"repo": "x/y", "steps": True}, "steps must be a whole number of at least 1, got True"),
        ({"repo": "x/y", "size": [512, 0]}, "size must be pixels a side, or .width, height., got .512, 0."),
        ({"repo": "x/y", "loras": [{"repo": "z", "weight_name": "w", "scale": "much"}]}, "scale must be a number"),
        ({"repo": "x/y", "loras": [{"repo": "z", "weight_name": "w", "revision": 3}]}, "revision must be text"),
        ({"repo": "x/y", "prior": {"repo": ""}}, "prior needs a 'repo'"),
        ({"repo": "x/y", "guidance": float("inf")}, "guidance must be"),
        ({"repo": "x/y", "token": "hf_abc"}, "no setting 'token'"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        DiffusersSettings.read(settings)


def test_missing_weights_are_said_with_the_command_that_mends_it(tmp_path):
    with pytest.raises(EnvironmentFault, match="hf download nobody/nothing --revision v1"):
        DiffusersEngine.preflight({"repo": "nobody/nothing", "revision": "v1"})
    with pytest.raises(EnvironmentFault, match="does not exist"):
        DiffusersEngine.identity({"repo": str(tmp_path / "nowhere")})
