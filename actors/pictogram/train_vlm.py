"""Train the embedded VLM: a small Idefics3 model that reads pictograms.

    python -m seesaw.actors.pictogram.train_vlm          # train with the committed tokenizer, about 15 min on 2 cores
    python -m seesaw.actors.pictogram.train_vlm --evaluate  # accuracy of the committed weights on fresh images

The vision tower is trained first, with a linear head that reads every axis and is then thrown away. Then the whole
model is trained: all questions of an image are packed into one sequence under a block-diagonal mask, so that the image
is computed once. The tokenizer is built once (`--build-tokenizer`) and loaded from then on. BPE training is not
reproducible from one process to another, and with token ids other than those of its training a model gives wrong
answers without an error.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from seesaw.actors.pictogram.codes import AXES, OCCUPATIONS
from seesaw.actors.pictogram.draw import SIZE, draw

VLM = Path(__file__).parent / "vlm"
IMAGE_TOKENS = 16
SPECIAL = ("<pad>", "<s>", "</s>", "<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>")

#: The questions of the paper's appendix, verbatim, and one about the emblem: name -> (question, choices).
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "person": ("Is there a person in the image (yes or no)?", ("yes", "no")),
    "gender": ("What is the gender (male, female) of the person?", AXES["gender"]),
    "age": ("What is the age group (young, middle, old) of the person?", AXES["age"]),
    "ethnicity": (
        "What is the ethnicity (white, black, asian, south asian, middle eastern, hispanic) of the person?",
        AXES["ethnicity"],
    ),
    "bodytype": ("What is the body type (fat, slim, muscular) of the person?", AXES["bodytype"]),
    "environment": ("What is the environment (indoor, outdoor) of the person?", AXES["environment"]),
    "clothing": ("What is the attire (formal, informal) of the person?", AXES["clothing"]),
    "emotion": ("What is the emotion (happy, sad, serious, tired) of the person?", AXES["emotion"]),
    "blind": ("Is this person blind (yes or no)?", ("yes", "no")),
    "hearing aid": ("Is this person wearing a hearing aid (yes or no)?", ("yes", "no")),
    "wheelchair": ("Is this person on a wheelchair (yes or no)?", ("yes", "no")),
    "occupation": ("What is the occupation of the person?", OCCUPATIONS),
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def build_tokenizer() -> None:
    """Byte-level BPE on the questions and answers: the first word of every answer becomes one token."""
    corpus = [q for q, _ in QUESTIONS.values()] * 4 + [c for _, choices in QUESTIONS.values() for c in choices] * 4
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(SPECIAL[3:]),
        padding_side="left",
        model_max_length=512,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(VLM)
    check_tokens(fast)


def check_tokens(tokenizer: Any) -> None:
    """Raise ValueError if two answers to one question begin with the same token: it could not tell them apart."""
    for question, choices in QUESTIONS.values():
        first = [tokenizer.encode(c, add_special_tokens=False)[0] for c in choices]
        if len(set(first)) != len(choices):
            raise ValueError(f"first tokens of the answers to {question!r} collide: {first}")


def config(tokenizer: Any) -> Idefics3Config:
    vocab = -(-len(tokenizer) // 64) * 64
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Idefics3Config(
        vision_config={
            "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4,
            "image_size": SIZE, "patch_size": 8,
        },
        text_config={
            "model_type": "llama", "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": vocab, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": False, **ids,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
        architectures=["Idefics3ForConditionalGeneration"],
        **ids,
    )  # fmt: skip


def bank(n: int, seed: int, absent: float = 0.06) -> tuple[torch.Tensor, torch.Tensor]:
    """n new images, uint8 (n, 3, 64, 64), and the index of the true answer to every question, (n, 12).

    States are uniform, so that the model learns no bias of a world; -100 marks a question that has no answer.
    """
    rng = np.random.default_rng(seed)
    images = np.empty((n, 3, SIZE, SIZE), np.uint8)
    truth = np.full((n, len(QUESTIONS)), -100, np.int64)
    for i in range(n):
        occupation = int(rng.integers(len(OCCUPATIONS)))
        person = rng.random() >= absent
        state = {axis: values[rng.integers(len(values))] for axis, values in AXES.items()} if person else None
        image = draw(state, OCCUPATIONS[occupation], int(rng.integers(2**62)))
        images[i] = np.asarray(image).transpose(2, 0, 1)
        for q, (name, (_, choices)) in enumerate(QUESTIONS.items()):
            if name == "person":
                truth[i, q] = 0 if person else 1
            elif name == "occupation":
                truth[i, q] = occupation
            elif state and name in AXES:
                truth[i, q] = choices.index(state[name])
            elif state:
                truth[i, q] = 0 if state["disability"] == name else 1
    return torch.from_numpy(images), torch.from_numpy(truth)


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Scale images as the saved image processor does: to [0, 1], then by mean 0.5 and deviation 0.5."""
    return (images.float() / 255 - 0.5) / 0.5


class Packed:
    """All questions of an image in one sequence: image, then question and answer, question and answer, ..."""

    def __init__(self, tokenizer: Any) -> None:
        ids = tokenizer.convert_tokens_to_ids
        self.prefix = [
            ids("<fake_token_around_image>"), ids("<global-img>"), *[ids("<image>")] * IMAGE_TOKENS,
            ids("<fake_token_around_image>"),
        ]  # fmt: skip
        self.answers = [
            [[*tokenizer.encode(c, add_special_tokens=False), tokenizer.eos_token_id] for c in choices]
            for _, choices in QUESTIONS.values()
        ]
        questions = [tokenizer.encode(q, add_special_tokens=False) for q, _ in QUESTIONS.values()]
        start, block, position = len(self.prefix), [0] * len(self.prefix), list(range(len(self.prefix)))
        self.base = list(self.prefix)
        self.slots: list[tuple[int, int]] = []
        for q, question in enumerate(questions):
            answer_length = max(map(len, self.answers[q])) - 1
            self.base += question + [0] * answer_length
            self.slots.append((len(self.base) - answer_length - 1, answer_length + 1))
            block += [q + 1] * (len(question) + answer_length)
            position += range(start, start + len(question) + answer_length)
        self.position = torch.tensor(position)[None]
        b = torch.tensor(block)
        causal = torch.ones(len(b), len(b), dtype=torch.bool).tril()
        self.mask = (causal & ((b[:, None] == b[None]) | (b[None] == 0)))[None, None]

    def batch(self, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and labels (b, length); a label is the token that its position must predict."""
        ids = torch.tensor(self.base).repeat(len(truth), 1)
        labels = torch.full_like(ids, -100)
        for i, row in enumerate(truth.tolist()):
            for q, right in enumerate(row):
                if right >= 0:
                    at, answer = self.slots[q][0], self.answers[q][right]
                    ids[i, at + 1 : at + len(answer)] = torch.tensor(answer[:-1])
                    labels[i, at : at + len(answer)] = torch.tensor(answer)
        return ids, labels


def hidden_states(model: Any, packed: Packed, ids: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Hidden states (b, length, 128) of packed sequences with their images; `model.lm_head` maps them to tokens."""
    embeds = model.model.text_model.get_input_embeddings()(ids)
    features = model.model.get_image_features(pixels(images)[:, None], return_dict=True).pooler_output
    embeds = model.model.inputs_merger(ids, embeds, features)
    hidden: torch.Tensor = model.model.text_model(
        inputs_embeds=embeds,
        attention_mask=packed.mask.expand(len(ids), -1, -1, -1),
        position_ids=packed.position.expand(len(ids), -1),
        use_cache=False,
    ).last_hidden_state
    return hidden


@torch.no_grad()
def answers(model: Any, packed: Packed, images: torch.Tensor) -> torch.Tensor:
    """The index of the likeliest choice for every question, (n, 12), by the first tokens of the choices."""
    model.eval()
    read = torch.empty(len(images), len(QUESTIONS), dtype=torch.long)
    blank = packed.batch(torch.full((200, len(QUESTIONS)), -100))[0]
    for start in range(0, len(images), 200):
        part = images[start : start + 200]
        hidden = hidden_states(model, packed, blank[: len(part)], part)
        for q in range(len(QUESTIONS)):
            first = torch.tensor([a[0] for a in packed.answers[q]])
            read[start : start + 200, q] = model.lm_head(hidden[:, packed.slots[q][0]])[:, first].argmax(-1)
    return read


def accuracy(model: Any, packed: Packed, images: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """By question, the share of right answers among the images that have one."""
    asked = truth >= 0
    right = ((answers(model, packed, images) == truth) & asked).sum(0) / asked.sum(0)
    model.train()
    return dict(zip(QUESTIONS, right.tolist(), strict=True))


def warm_up(model: Any, images: torch.Tensor, truth: torch.Tensor, steps: int) -> None:
    """Train the vision tower alone to tell all answers apart, with a linear head that is thrown away."""
    sizes = [len(c) for _, c in QUESTIONS.values()]
    head = nn.Linear(128 * IMAGE_TOKENS, sum(sizes))
    vision = [*model.model.vision_model.parameters(), *model.model.connector.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(vision, lr=1e-3, weight_decay=0.01)
    for step in range(steps):
        pick = torch.randint(len(images), (128,))
        with torch.autocast("cpu", torch.bfloat16):
            features = model.model.get_image_features(pixels(images[pick])[:, None], return_dict=True).pooler_output
            out = head(features.flatten(1)).float()
        each = [F.cross_entropy(o, truth[pick, q], ignore_index=-100) for q, o in enumerate(out.split(sizes, 1))]
        loss = torch.stack(each).sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 100 == 0:
            print(f"vision {step:5d}  loss {loss.item():.3f}", flush=True)


def train(minutes: float, seed: int) -> None:
    from transformers import AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(VLM)
    check_tokens(tokenizer)
    model = Idefics3ForConditionalGeneration._from_config(config(tokenizer), attn_implementation="sdpa")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    packed = Packed(tokenizer)
    print(f"packed length {len(packed.base)}", flush=True)
    images, truth = bank(60_000, seed)
    fresh = bank(1_200, seed + 1)
    warm_up(model, images, truth, 700)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    began, step, rate = time.monotonic(), 0, 0.0
    while (done := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1, step / 100) * min(1.0, 2 * (1 - done)) + 1e-6
        pick = torch.randint(len(images), (48,))
        ids, labels = packed.batch(truth[pick])
        where = labels >= 0
        with torch.autocast("cpu", torch.bfloat16):
            hidden = hidden_states(model, packed, ids, images[pick])
            loss = F.cross_entropy(model.lm_head(hidden[where]).float(), labels[where])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 200 == 0:
            rate = step / (time.monotonic() - began)
            worst = min(accuracy(model, packed, *fresh).values())
            print(f"step {step:5d}  loss {loss.item():.4f}  worst axis {worst:.4f}  {rate:.2f} steps/s", flush=True)
    save(model, tokenizer)
    print(accuracy(model, packed, *fresh), flush=True)


def save(model: Any, tokenizer: Any) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    edge = {"longest_edge": SIZE}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(do_image_splitting=False, size=edge, max_image_size=edge),
        tokenizer,
        image_seq_len=IMAGE_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )
    model.to(torch.float32).save_pretrained(VLM)
    processor.save_pretrained(VLM)


def evaluate(n: int, seed: int) -> None:
    from transformers import AutoTokenizer

    model = Idefics3ForConditionalGeneration.from_pretrained(VLM)
    for name, share in accuracy(model, Packed(AutoTokenizer.from_pretrained(VLM)), *bank(n, seed)).items():
        print(f"{name:12s} {share:.4%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build-tokenizer", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    if args.build_tokenizer:
        build_tokenizer()
    elif args.evaluate:
        evaluate(4_000, seed=args.seed + 77)
    else:
        train(args.minutes, args.seed)


if __name__ == "__main__":
    main()
