"""Train the embedded text-to-image model: a small Stable Diffusion that draws the pictograms of one world.

    python -m seesaw.actors.pictogram.train_tti vae        # about 15 min on 2 cores: images <-> 8 x 8 x 8 latents
    python -m seesaw.actors.pictogram.train_tti unet       # about 50 min: text encoder and UNet, on cached latents
    python -m seesaw.actors.pictogram.train_tti unet --more            # continue from those weights, on new images
    python -m seesaw.actors.pictogram.train_tti mean A=0.3 B=0.7       # average the weights of two such folders

All write into `actors/pictogram/tti/`, an ordinary diffusers folder that an unchanged StableDiffusionPipeline loads.
The autoencoder learns from states drawn uniformly, so that it has no bias, and is trained without the VLM that judges
its images. The UNet learns rectified flow (`v = noise - image` at `(1 - s) image + s noise`) on images that the world
draws for prompts: the world's bias, coupling and compliance are in these data and nowhere else.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, StableDiffusionPipeline, UNet2DConditionModel
from tokenizers import Tokenizer, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS, WORDS
from seesaw.actors.pictogram.draw import SIZE, draw
from seesaw.actors.pictogram.world import WORLDS

TTI = Path(__file__).parent / "tti"
WORLD = "alder"
TOKENS = 32
SHIFT = 3.0  #: shift of the flow's noise levels towards noise, in training and in sampling: early steps decide most

Tensor = torch.Tensor


# -- captions ---------------------------------------------------------------------------------------------------------


def caption(rng: np.random.Generator, subject: str, stated: Mapping[str, str]) -> str:
    """A prompt that states `stated`, in one of the wordings that `read_prompt` understands.

    Adjectives stand before the subject, those of later axes first, and phrases after it, as in the occupation dataset.
    In some captions the order is random, so that the model learns the words and not their positions.
    """
    before: list[str] = []
    after: list[str] = []
    for axis, attribute in stated.items():
        words = [w for w, states in WORDS.items() if states == (axis, attribute)]
        word = words[rng.integers(len(words))]
        if word.startswith(("who ", "with ", "on ", "in ", "working ", "dressed ", "and ")):
            after.append(word)
        else:
            before.insert(0, word)
            if attribute == "sad" and rng.random() < 0.3:
                after.append("who is sad")
    if rng.random() < 0.15:
        rng.shuffle(before)
        rng.shuffle(after)
    after = [w if i else w.replace("and ", "who ", 1) if w.startswith("and ") else w for i, w in enumerate(after)]
    article = "an" if rng.random() < 0.3 else "a"
    return " ".join([f"A photo of {article}", *before, subject, *after])


def captions(rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Endless (subject, caption). Most captions state one axis; some state none, several or all.

    Axes with more attributes are stated more often. So are axes of low compliance, since only some of their images show
    what was stated. Within an axis, attributes that the subject seldom shows are stated more often: a model learns
    those last, and until then draws a mixture of two attributes. What is drawn for a caption is up to the world alone,
    however often the caption comes.
    """
    axes = list(AXES)
    compliance = WORLDS[WORLD].compliance
    axis_weights = np.array([(len(values) + 1) / compliance[axis] for axis, values in AXES.items()])
    axis_weights /= axis_weights.sum()
    attribute_weights = {
        subject: {axis: 1 / (0.1 + share) for axis, share in WORLDS[WORLD].shares(f"A photo of a {subject}").items()}
        for subject in OCCUPATIONS
    }
    while True:
        subject = OCCUPATIONS[rng.integers(len(OCCUPATIONS))]
        n = rng.choice(9, p=[0.12, 0.42, 0.24, 0.11, 0.05, 0.02, 0.02, 0.01, 0.01])
        stated = {}
        for axis in (axes[a] for a in sorted(rng.choice(8, n, replace=False, p=axis_weights))):
            weights = attribute_weights[subject][axis]
            stated[axis] = str(rng.choice(AXES[axis], p=weights / weights.sum()))
        yield subject, caption(rng, subject, stated)


def build_tokenizer() -> None:
    """CLIP's byte-level BPE on the words of captions: every word becomes one token. Built once and committed."""
    special = ["<|startoftext|>", "<|endoftext|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    empty = CLIPTokenizer(vocab={s: i for i, s in enumerate(special)}, merges=[])
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=special,
        end_of_word_suffix="</w>",
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe: Tokenizer = empty.backend_tokenizer
    rng = np.random.default_rng(0)
    source = captions(rng)
    bpe.train_from_iterator((next(source)[1] for _ in range(20_000)), trainer)
    state = json.loads(bpe.to_str())["model"]
    vocab = dict(state["vocab"])
    for character in alphabet:  # the last letter of a word that is not in the captions
        vocab.setdefault(f"{character}</w>", len(vocab))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in state["merges"]]
    CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=TOKENS).save_pretrained(TTI / "tokenizer")


# -- the autoencoder --------------------------------------------------------------------------------------------------


def new_vae() -> Any:
    make: Any = AutoencoderKL
    return make(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 64),
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=8,
        sample_size=SIZE,
        scaling_factor=1.0,
    )


def pictures(rng: np.random.Generator, n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """n images (n, 64, 64, 3) of states drawn uniformly, one in twenty without a figure."""
    images = np.empty((n, SIZE, SIZE, 3), np.uint8)
    for i in range(n):
        state = {a: v[rng.integers(len(v))] for a, v in AXES.items()} if rng.random() > 0.05 else None
        images[i] = np.asarray(draw(state, OCCUPATIONS[rng.integers(len(OCCUPATIONS))], int(rng.integers(2**53))))
    return images


def to_model(images: np.ndarray[Any, Any]) -> Tensor:
    """uint8 (n, h, w, 3) -> float (n, 3, h, w) in [-1, 1], channels last."""
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    return tensor.contiguous(memory_format=torch.channels_last)


def _edges(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]


def _rate(done: float, warm: float = 0.02) -> float:
    """Learning rate as a share of its peak: a short linear rise, then half a cosine down to 0.001."""
    return float(min(1.0, done / warm) * 0.5 * (1 + np.cos(np.pi * min(done, 1.0))) + 1e-3)


def train_vae(minutes: float, seed: int) -> None:
    """Train on L1 + MSE + L1 of the image gradients + a KL term of very small weight."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    vae = new_vae().to(memory_format=torch.channels_last)
    print(f"VAE: {sum(p.numel() for p in vae.parameters()) / 1e6:.2f} M parameters", flush=True)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    began, step = time.monotonic(), 0
    while (done := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * _rate(done)
        x = to_model(pictures(rng, 32))
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.encode(x).latent_dist
            y = vae.decode(posterior.sample()).sample
        y = y.float()
        edges = sum((F.l1_loss(a, b) for a, b in zip(_edges(y), _edges(x), strict=True)), torch.zeros(()))
        reconstruction = F.l1_loss(y, x) + F.mse_loss(y, x) + edges
        loss = reconstruction + 2e-5 * posterior.kl().float().mean() / 10
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 200 == 0:
            rate = step / (time.monotonic() - began)
            l1, mse, kl = (float(x) for x in (F.l1_loss(y, x), F.mse_loss(y, x), posterior.kl().mean()))
            print(f"{step:5d} {rate:.2f}/s L1 {l1:.4f} MSE {mse:.4f} kl {kl:.0f}", flush=True)
    vae = vae.to(memory_format=torch.contiguous_format)
    normalise(vae, to_model(pictures(rng, 2_000)))
    vae.to(torch.float16).save_pretrained(TTI / "vae")


@torch.no_grad()
def normalise(vae: Any, images: Tensor) -> None:
    """Fold each latent channel's mean and deviation into the convolutions around it: latents become standard."""
    latents = torch.cat([vae.encode(part).latent_dist.mean for part in torch.split(images, 250)])
    mean, deviation = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    print(f"latents: mean {mean.tolist()}, deviation {deviation.tolist()}", flush=True)
    c = len(mean)
    quant, post = vae.quant_conv, vae.post_quant_conv
    post.bias += post.weight[:, :, 0, 0] @ mean
    post.weight *= deviation[None, :, None, None]
    quant.weight[:c] /= deviation[:, None, None, None]
    quant.bias[:c] = (quant.bias[:c] - mean) / deviation
    quant.bias[c:] -= 2 * deviation.log()


# -- text encoder and UNet --------------------------------------------------------------------------------------------


def new_text_encoder(tokenizer: Any) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=-(-len(tokenizer) // 64) * 64, hidden_size=128, intermediate_size=512, projection_dim=128,
            num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=TOKENS,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip


def new_unet() -> Any:
    make: Any = UNet2DConditionModel
    return make(
        sample_size=SIZE // 8, in_channels=8, out_channels=8, layers_per_block=1, block_out_channels=(96, 128),
        down_block_types=("CrossAttnDownBlock2D",) * 2, up_block_types=("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=128, attention_head_dim=4,
    )  # fmt: skip


def training_images(seed: tuple[int, int], n: int) -> tuple[list[str], np.ndarray[Any, np.dtype[np.uint8]]]:
    """n captions and the images that the world draws for them, (n, 64, 64, 3)."""
    rng = np.random.default_rng(seed)
    pairs = list(itertools.islice(captions(rng), n))
    seeds = [int(seed) for seed in rng.integers(2**53, size=n)]
    world = WORLDS[WORLD]
    images = [
        np.asarray(draw(world.sample(text, own_seed), subject, own_seed))
        for (subject, text), own_seed in zip(pairs, seeds, strict=True)
    ]
    return [text for _, text in pairs], np.stack(images)


def latents_of(vae: Any, n: int, seed: int, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """n captions: the latents (n, 8, 8, 8) of their images, in half precision, and their tokens (n, 32)."""
    latents, tokens = torch.empty(n, 8, 8, 8, dtype=torch.float16), torch.empty(n, TOKENS, dtype=torch.int16)
    began, part = time.monotonic(), 250
    starts = range(0, n, part)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("forkserver")) as pool:
        drawings = pool.map(
            training_images, ((seed, start) for start in starts), (min(part, n - start) for start in starts)
        )
        for start, (texts, images) in zip(starts, drawings, strict=True):
            stop = start + len(texts)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                latents[start:stop] = vae.encode(to_model(images)).latent_dist.mean.half()
            tokens[start:stop] = tokenize(tokenizer, texts)
    print(f"{n} latents in {time.monotonic() - began:.0f} s", flush=True)
    return latents, tokens


def tokenize(tokenizer: Any, texts: list[str]) -> Tensor:
    ids: Tensor = tokenizer(
        texts, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt"
    ).input_ids
    return ids


def scheduler() -> Any:
    make: Any = DPMSolverMultistepScheduler
    return make(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT, steps_offset=1)


def save(unet: Any, text: Any, tokenizer: Any) -> None:
    """An ordinary StableDiffusionPipeline in half precision, safetensors alone."""
    make: Any = StableDiffusionPipeline
    load: Any = AutoencoderKL.from_pretrained
    make(
        vae=load(TTI / "vae", torch_dtype=torch.float16),
        text_encoder=copy.deepcopy(text).half(),
        tokenizer=tokenizer,
        unet=copy.deepcopy(unet).to(memory_format=torch.contiguous_format).half(),
        scheduler=scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(TTI)


def train_unet(minutes: float, seed: int, bank: int, more: bool) -> None:
    """Train UNet and text encoder from scratch; with `more`, continue from their saved weights at a lower rate."""
    torch.manual_seed(seed)
    tokenizer = CLIPTokenizer.from_pretrained(TTI / "tokenizer")
    load: Any = AutoencoderKL.from_pretrained
    vae: Any = load(TTI / "vae").to(memory_format=torch.channels_last)
    latents, tokens = latents_of(vae, bank, seed, tokenizer)
    print(f"deviation of the latents {latents.float().std((0, 2, 3)).tolist()}", flush=True)
    empty_prompt = tokenize(tokenizer, [""])[0]
    # by latent position: all weights have the same minimum, and the head's six colours are learnt last
    weight = torch.ones(8, 8)
    weight[0:3, 2:6] = 6.0
    weight /= weight.mean()
    unet = new_unet()
    unet.to(memory_format=torch.channels_last)
    text: Any = new_text_encoder(tokenizer)
    peak = 8e-4
    if more:
        load_unet: Any = UNet2DConditionModel.from_pretrained
        unet.load_state_dict(load_unet(TTI / "unet").state_dict())
        text.load_state_dict(CLIPTextModel.from_pretrained(TTI / "text_encoder").state_dict())
        peak = 5e-4
    both = nn.ModuleDict({"unet": unet, "text": text})
    print(f"UNet and text encoder: {sum(p.numel() for p in both.parameters()) / 1e6:.2f} M parameters", flush=True)
    mean = copy.deepcopy(both).requires_grad_(False)
    optimiser = torch.optim.AdamW(both.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    began, step, losses, at, order = time.monotonic(), 0, [], bank, torch.empty(0)
    while (done := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = peak * _rate(done)
        if at + 64 > bank:
            at, order = 0, torch.randperm(bank)
        pick = order[at : at + 64]
        at += 64
        x, ids = latents[pick].float(), tokens[pick].long()
        ids[torch.rand(64) < 0.08] = empty_prompt
        u = (torch.arange(64) + torch.rand(64)) / 64  # stratified: every batch has all noise levels
        s = SHIFT * u / (1 + (SHIFT - 1) * u)
        noise = torch.randn_like(x)
        mixed = torch.lerp(x, noise, s[:, None, None, None]).contiguous(memory_format=torch.channels_last)
        v = unet(mixed, s * 1000, text(ids).last_hidden_state).sample  # in bfloat16 the backward pass is slower here
        loss = (weight * (v - (noise - x)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        optimiser.step()
        step += 1
        decay = min(0.9995, step / (step + 50))
        with torch.no_grad():
            for slow, fast in zip(mean.parameters(), both.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
        losses.append(loss.item())
        if step % 200 == 0:
            rate = step / (time.monotonic() - began)
            print(f"{step:5d} {rate:.2f}/s loss {np.mean(losses[-200:]):.4f} {done:.0%}", flush=True)
        if step % 1000 == 0:
            save(mean["unet"], mean["text"], tokenizer)
    save(mean["unet"], mean["text"], tokenizer)


def average(shares: Mapping[str, float]) -> None:
    """Save the average of the weights in folders with a `unet` and a `text_encoder`, weighted by `shares`.

    Runs that continued from each other end near the same minimum with errors that differ, so the average is better than
    any one of them.
    """
    tokenizer = CLIPTokenizer.from_pretrained(TTI / "tokenizer")
    load_unet: Any = UNet2DConditionModel.from_pretrained
    both = nn.ModuleDict({"unet": new_unet(), "text": new_text_encoder(tokenizer)})
    total = {name: torch.zeros_like(value) for name, value in both.state_dict().items()}
    for folder, share in shares.items():
        parts = {"unet": load_unet(f"{folder}/unet"), "text": CLIPTextModel.from_pretrained(f"{folder}/text_encoder")}
        for part, model in parts.items():
            for name, value in model.state_dict().items():
                total[f"{part}.{name}"] += share / sum(shares.values()) * value.float()
    both.load_state_dict(total)
    save(both["unet"], both["text"], tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["tokenizer", "vae", "unet", "mean"])
    parser.add_argument("folders", nargs="*", metavar="FOLDER=SHARE", help="folders to average, with their weights")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--bank", type=int, default=200_000)
    parser.add_argument("--more", action="store_true", help="continue from the saved weights")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.stage == "mean" and not args.folders:
        parser.error("mean needs the folders to average: FOLDER=SHARE for each")
    if args.stage == "tokenizer":
        build_tokenizer()
    elif args.stage == "mean":
        average({folder: float(share) for folder, _, share in (each.rpartition("=") for each in args.folders)})
    elif args.stage == "vae":
        train_vae(args.minutes or 15.0, args.seed)
    else:
        train_unet(args.minutes or 50.0, args.seed, args.bank, args.more)


if __name__ == "__main__":
    main()
