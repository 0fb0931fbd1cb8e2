"""Tiny untrained pipelines of the classes that the shipped models have, built and saved without any download.

`save(name, folder)` writes what loads as that model's own repository does: the same class of pipeline, the same kinds
of text encoders, tokenizers and schedulers, less than 2 MB. The VAEs shrink an image more than the real ones do, so
that all steps at 1024 pixels take a CPU core a second or two.
"""

import string
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    DDPMScheduler,
    DiffusionPipeline,
    EDMDPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    KandinskyV22Pipeline,
    KandinskyV22PriorPipeline,
    PNDMScheduler,
    PriorTransformer,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UnCLIPScheduler,
    UNet2DConditionModel,
    VQModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from tokenizers import pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

WIDTH = 32  # of every text encoder


def _clip_tokenizer() -> CLIPTokenizer:
    tokens = [
        "<|startoftext|>",
        "<|endoftext|>",
        *string.ascii_lowercase,
        *(c + "</w>" for c in string.ascii_lowercase),
    ]
    return CLIPTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[], model_max_length=77)


def _clip_text(projected: bool = True) -> CLIPTextModel | CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=54, hidden_size=WIDTH, intermediate_size=32, num_attention_heads=4, num_hidden_layers=2,
        max_position_embeddings=77, projection_dim=WIDTH, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)


def _clip_vision() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=32, num_attention_heads=4, num_hidden_layers=1, image_size=32,
        patch_size=8, projection_dim=WIDTH,
    )  # fmt: skip


def _t5_tokenizer() -> T5TokenizerFast:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\N{LOWER ONE EIGHTH BLOCK}", -2.0)]
    letters = [(c, -3.0) for c in string.ascii_letters]
    return T5TokenizerFast(vocab=pieces + letters, extra_ids=0, model_max_length=512)


def _t5(width: int) -> T5EncoderModel:
    return T5EncoderModel(T5Config(vocab_size=56, d_model=width, d_ff=32, d_kv=8, num_heads=4, num_layers=1))


def _qwen_tokenizer() -> Qwen2Tokenizer:
    characters = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    return Qwen2Tokenizer(
        vocab=characters, merges=[], extra_special_tokens=["<|im_start|>", "<|im_end|>"], chat_template=template
    )


def _vae(channels: int, blocks: int) -> AutoencoderKL:
    """Shrinks a side by 2 ** (blocks - 1)."""
    return AutoencoderKL(
        block_out_channels=(4,) * (blocks - 1) + (8,), latent_channels=channels, norm_num_groups=2, sample_size=1024,
        layers_per_block=1, down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks, mid_block_add_attention=False,
        shift_factor=0.1 if channels == 16 else None, use_quant_conv=channels == 4, use_post_quant_conv=channels == 4,
    )  # fmt: skip


def _unet(**more: object) -> UNet2DConditionModel:
    settings = {
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 4,
    }
    return UNet2DConditionModel(**{**settings, **more})


def stable_diffusion(folder: Path) -> None:
    StableDiffusionPipeline(
        vae=_vae(4, 8),
        text_encoder=_clip_text(projected=False),
        tokenizer=_clip_tokenizer(),
        unet=_unet(sample_size=4),
        scheduler=PNDMScheduler(beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1),
        safety_checker=StableDiffusionSafetyChecker(
            CLIPConfig(vision_config=_clip_vision().to_dict(), projection_dim=WIDTH)
        ),
        feature_extractor=CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    ).save_pretrained(folder)


def stable_diffusion_3(folder: Path) -> None:
    pipeline = StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=32, in_channels=16, num_layers=1, attention_head_dim=8, num_attention_heads=4,
            joint_attention_dim=2 * WIDTH, caption_projection_dim=32, pooled_projection_dim=2 * WIDTH, out_channels=16,
            pos_embed_max_size=32, qk_norm="rms_norm",
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(16, 6),
        text_encoder=_clip_text(),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip_text(),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=_t5(2 * WIDTH),
        tokenizer_3=_t5_tokenizer(),
    )  # fmt: skip
    pipeline.to(torch.bfloat16).save_pretrained(folder)  # as the repository's


def flux(folder: Path) -> None:
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=_vae(16, 6),
        text_encoder=_clip_text(projected=False),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_t5(WIDTH),
        tokenizer_2=_t5_tokenizer(),
        transformer=FluxTransformer2DModel(
            in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
        ),
    ).save_pretrained(folder)  # fmt: skip


def playground(folder: Path) -> None:
    StableDiffusionXLPipeline(
        vae=_vae(4, 8),
        text_encoder=_clip_text(projected=False),
        text_encoder_2=_clip_text(),
        tokenizer=_clip_tokenizer(),
        tokenizer_2=_clip_tokenizer(),
        unet=_unet(
            sample_size=8, cross_attention_dim=2 * WIDTH, addition_embed_type="text_time", addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + WIDTH, transformer_layers_per_block=(1, 1),
        ),
        scheduler=EDMDPMSolverMultistepScheduler(),
    ).save_pretrained(folder, variant="fp16")  # fmt: skip


def kandinsky(folder: Path) -> None:
    """The decoder in `folder`, its prior in `folder`-prior. As on the hub, the decoder's card names the hub's prior."""
    KandinskyV22Pipeline(
        unet=_unet(
            sample_size=48, block_out_channels=(4, 8), norm_num_groups=2, out_channels=8, addition_embed_type="image",
            encoder_hid_dim_type="image_proj", encoder_hid_dim=WIDTH, resnet_time_scale_shift="scale_shift",
            down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
            up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
            mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        ),
        scheduler=DDPMScheduler(
            beta_schedule="linear", beta_end=0.012, beta_start=0.00085, variance_type="learned_range",
            thresholding=True, clip_sample=False,
        ),
        movq=VQModel(
            block_out_channels=(4, 4, 4, 4, 8), down_block_types=("DownEncoderBlock2D",) * 5,
            up_block_types=("UpDecoderBlock2D",) * 5, latent_channels=4, norm_num_groups=2, num_vq_embeddings=16,
            vq_embed_dim=4, mid_block_add_attention=False,
        ),
    ).save_pretrained(folder)  # fmt: skip
    (folder / "README.md").write_text("---\nprior:\n- kandinsky-community/kandinsky-2-2-prior\n---\n")
    prior = PriorTransformer(num_attention_heads=2, attention_head_dim=12, embedding_dim=WIDTH, num_layers=1)
    torch.nn.init.ones_(prior.clip_std)
    KandinskyV22PriorPipeline(
        prior=prior,
        image_encoder=CLIPVisionModelWithProjection(_clip_vision()),
        text_encoder=_clip_text(),
        tokenizer=_clip_tokenizer(),
        scheduler=UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", num_train_timesteps=1000, clip_sample_range=5.0
        ),
        image_processor=CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    ).save_pretrained(folder.with_name(f"{folder.name}-prior"))


def z_image(folder: Path) -> None:
    ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(16, 6),
        text_encoder=Qwen3Model(
            Qwen3Config(
                vocab_size=300, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, head_dim=16,
            )
        ),
        tokenizer=_qwen_tokenizer(),
        transformer=ZImageTransformer2DModel(
            dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=WIDTH,
            axes_dims=[4, 6, 6], axes_lens=[1024, 64, 64],
        ),
    ).save_pretrained(folder)  # fmt: skip


def qwen_image(folder: Path) -> None:
    text = {
        "vocab_size": 300, "bos_token_id": None, "eos_token_id": None, "hidden_size": WIDTH, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"}, "rope_theta": 1e6,
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH}
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=AutoencoderKLQwenImage(
            base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 2], num_res_blocks=1, temperal_downsample=[False, True, True]
        ),
        text_encoder=Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)),
        tokenizer=_qwen_tokenizer(),
        transformer=QwenImageTransformer2DModel(
            in_channels=64, out_channels=16, num_layers=1, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=WIDTH, axes_dims_rope=(4, 6, 6),
        ),
    ).save_pretrained(folder)  # fmt: skip


BUILDERS: dict[str, Callable[[Path], None]] = {
    "sd14": stable_diffusion,
    "sd35-large-turbo": stable_diffusion_3,
    "flux1-dev": flux,
    "playground-v2.5": playground,
    "kandinsky-2.2": kandinsky,
    "z-image-turbo": z_image,
    "qwen-image": qwen_image,
}


def save(name: str, folder: Path) -> None:
    """A tiny stand-in for the model `name` of configs/models; the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BUILDERS[name](folder)


def load(folder: Path) -> DiffusionPipeline:
    """What `save` wrote, as bare diffusers loads it: a decoder is joined to its prior."""
    from diffusers import AutoPipelineForText2Image  # its import warns, where pytest has no filter yet

    pipeline = DiffusionPipeline.from_pretrained(folder, variant="fp16" if any(folder.rglob("*.fp16.*")) else None)
    prior = folder.with_name(f"{folder.name}-prior")
    if prior.exists():
        parts = {f"prior_{name}": part for name, part in DiffusionPipeline.from_pretrained(prior).components.items()}
        pipeline = AutoPipelineForText2Image.from_pipe(pipeline, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(torch.float32)
