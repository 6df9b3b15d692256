"""lowkey as a model of lm-eval, the language model evaluation harness.

    python -m lowkey.lm_eval run --model lowkey --model_args model=model.gguf,kv=best-3 --tasks arc_easy

lm-eval 0.4.13 knows the models of its own package only, so this module registers "lowkey" and then
runs lm-eval's command line. Programs import this module before lm_eval.simple_evaluate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lowkey import EVAL_MAX, Batch, Logits, Model, Session, Stream, version

Scored = tuple[float, bool]


@register_model("lowkey")
class LowkeyLM(TemplateLM):  # type: ignore[misc]
    """A GGUF model whose contexts are held by one recipe's cache.

    model         the GGUF file
    kv            the recipe, or a preset's name. Its semicolons are fine, its commas are not:
                  lm-eval separates arguments by commas
    n_ctx         maximum number of tokens; None: the context length of the training
    threads       processors to compute with
    sidecar       file with data made offline for this model
    weights       "shipped", or "f32": dequantized
    context       "prompt": a context is prefilled exactly and then compressed, as `lowkey eval`,
                  `lowkey run` and the server do. The first token after it does not depend on the
                  recipe, all others do. "steps": contexts are evaluated through the compressed
                  cache too, `step` tokens at a time, as `lowkey perplexity` does. Tasks whose
                  answers have one token, such as MMLU, measure the recipe only in this way
    step          tokens per evaluation of "steps", and of rolling log-likelihoods
    split_prompts honor `prompt_ends_before` (below). False: a context is one prompt, as for the server
    keep_spaces   spaces at the end of a context stay there, if they are tokens. lm-eval moves them to the choices
    reuse_prefix  keep the prefix that contexts share, such as few-shot examples: faster, but what
                  follows it is read through the compressed cache
    max_gen_toks  maximum length of an answer, unless a task says otherwise
    batch_size    answers that are generated together: the weights are read once for all of them. Each
                  has a cache of its own. Log-likelihoods are computed one after the other

    A document of a task may have a field `prompt_ends_before`: with context "prompt", only what precedes the last
    occurrence of this text in a context is prefilled. The rest, such as the question after a long document, and the
    answer are evaluated through the cache. A prefill attends exactly, so with the question in it the answer would be
    looked up in the full cache. Such answers are scored token by token, as a decoder runs.

    generation_kwargs may have `min_gen_toks`: the least length of an answer. Before that, the most probable token that
    does not end the answer is taken. A small chat model may end its turn at once.
    """

    def __init__(
        self,
        model: str,
        kv: str = "best-4",
        n_ctx: int | None = None,
        threads: int | None = None,
        sidecar: str | None = None,
        weights: str = "shipped",
        context: str = "prompt",
        step: int = 32,
        split_prompts: bool = True,
        keep_spaces: bool = False,
        reuse_prefix: bool = False,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # lm-eval passes these two; they have no meaning here
        device: str | None = None,
    ) -> None:
        super().__init__()
        if context not in ("prompt", "steps"):
            raise ValueError(f"context is {context!r}; give 'prompt' or 'steps'")
        if not 1 <= step <= EVAL_MAX:
            raise ValueError(f"step is {step}; give 1 to {EVAL_MAX}")
        if weights not in ("shipped", "f32"):
            raise ValueError(f"weights is {weights!r}; give 'shipped' or 'f32'")
        together = "1" if batch_size is None else str(batch_size)
        if not together.isdecimal() or int(together) < 1:
            raise ValueError(f"batch_size is {batch_size!r}; give a number from 1 on")
        opened = Model(
            model, threads, sidecar, weights="f32" if weights == "f32" else "shipped"
        )
        self.model = opened
        self.session = Session(opened, kv, n_ctx=n_ctx)
        self.saved = Session(opened, self.session.recipe, n_ctx=n_ctx)
        self.others = [Session(opened, self.session.recipe, n_ctx=n_ctx) for _ in range(1, int(together))]
        self.batch = Batch(opened)
        self.context, self.step = context, step
        self.split_prompts, self.keep_spaces = split_prompts, keep_spaces
        self.reuse_prefix = reuse_prefix and not self.session.recipe.evicts
        self.max_gen_toks = max_gen_toks
        self.bits_per_value: list[float] = []  # of the cache after each request

    # ---- what lm-eval asks for ----

    @property
    def max_length(self) -> int:
        return self.session.n_ctx

    @property
    def eot_token_id(self) -> int:
        eos = self.model.eos
        return eos if eos is not None else 0

    @property
    def prefix_token_id(self) -> int:
        bos = self.model.bos
        return bos if bos is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return f"lowkey-{version()}-{self.model.name}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.model.chat_template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text. An answer that lm-eval begins (`gen_prefix`) is continued."""
        messages = [
            {"role": message["role"], "content": message["content"]} for message in chat_history
        ]
        begun = "" if add_generation_prompt or messages[-1]["role"] != "assistant" else messages.pop()["content"]
        reply = add_generation_prompt or begun != ""
        return self.model.chat_format(messages, reply=reply) + begun  # type: ignore[arg-type]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Tokens of a text. lm-eval's prompts may hold control tokens of the chat template."""
        tokens = self.model.tokenize(string, begin=False, control=True)
        if add_special_tokens is False:
            return tokens
        begin = self.model.tokenize("", begin=True)
        return tokens if begin and tokens[: len(begin)] == begin else begin + tokens

    def tok_decode(self, tokens: Sequence[int]) -> str:
        return self.model.detokenize(tokens)

    # ---- requests ----

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Scored]:
        ends = [self._prompt_end(request) for request in requests]
        plain = [request for request, end in zip(requests, ends) if end is None]
        scored = iter(super().loglikelihood(plain, disable_tqdm) if plain else [])
        bar = tqdm(zip(requests, ends), total=len(ends), desc="answers", disable=disable_tqdm or None in ends)
        results = []
        for request, end in bar:
            context, continuation = request.args
            results.append(next(scored) if end is None else self._score_answer(context, continuation, end))
        return results

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Scored]:
        by_context: dict[tuple[int, ...], list[int]] = {}
        for i, (_, context, continuation) in enumerate(requests):
            context, _ = self._fit(context, continuation)
            by_context.setdefault(tuple(context), []).append(i)
        results: list[Scored] = [(0.0, True)] * len(requests)
        with tqdm(total=len(requests), desc="loglikelihood", disable=disable_tqdm) as bar:
            for context_tokens, which in by_context.items():
                for n, i in enumerate(which):
                    text, context, continuation = requests[i]
                    context, continuation = self._fit(context, continuation)
                    if self.context == "steps":
                        results[i] = self._score_steps(context + continuation, len(context))
                    else:
                        if n == 0:
                            self._prefill(self.session, context)
                            if len(which) > 1:
                                self.saved.copy_from(self.session)
                        else:
                            self.session.copy_from(self.saved)
                        results[i] = self._score_continuation(continuation)
                    self.bits_per_value.append(self.session.stats.bits_per_value)
                    self.cache_hook.add_partial("loglikelihood", text, results[i])
                    bar.update()
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        results = []
        for request in tqdm(requests, desc="loglikelihood_rolling", disable=disable_tqdm):
            (text,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,  # and one token before the window
                context_len=1,
            )
            total = 0.0
            for context, continuation in map(make_disjoint_window, windows):
                total += self._score_steps(context + continuation, len(context))[0]
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
            results.append(total)
        return results

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        results: list[str] = []
        encoded = [self.tok_encode(request.args[0]) for request in requests]
        shared = self._hold_prefix(encoded)
        sessions = [self.session, *self.others]
        with tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm) as bar:
            while len(results) < len(requests):
                some = requests[len(results) : len(results) + len(sessions)]
                tokens = encoded[len(results) : len(results) + len(sessions)]
                begun = [self._begin(*each, shared) for each in zip(sessions, some, tokens)]
                texts = iter(self.batch.finish([answer for answer in begun if isinstance(answer, Stream)]))
                answers = [answer if isinstance(answer, str) else next(texts) for answer in begun]
                for session, request, answer in zip(sessions, some, answers):
                    self.bits_per_value.append(session.stats.bits_per_value)
                    self.cache_hook.add_partial("generate_until", request.args, answer)
                results += answers
                bar.update(len(some))
        return results

    def _begin(self, session: Session, request: Any, tokens: list[int], shared: list[int]) -> str | Stream:
        """The answer to a request as a stream, after its context was read; or all of it."""
        context, options = request.args
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else list(until)
        max_tokens = int(options.get("max_gen_toks", self.max_gen_toks))
        room = max(1, self.max_length - max_tokens)
        tokens = tokens[-room:]
        if shared and tokens[: len(shared)] == shared:
            session.copy_from(self.saved)
        self._read(session, tokens, self._n_prompt(context, tokens, self._prompt_end(request)))
        temperature = float(options.get("temperature") or 0.0)
        if not options.get("do_sample", temperature > 0):
            temperature = 0.0
        if min_tokens := int(options.get("min_gen_toks") or 0):
            return self._generate_at_least(session, min_tokens, max_tokens, until)
        return session.stream(
            session.tokens,
            max_tokens=max_tokens,
            stop=until,
            temperature=temperature,
            top_p=float(options.get("top_p") or 0.0),
            top_k=int(options.get("top_k") or 0),
            seed=int(options.get("seed") or 0),
        )

    # ---- evaluating ----

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both. lm-eval moves spaces at the end of a context to the continuation."""
        begun, whole = self.tok_encode(context), self.tok_encode(context + continuation)
        if self.keep_spaces and context and 0 < len(begun) < len(whole) and whole[: len(begun)] == begun:
            return begun, whole[len(begun) :]
        return super()._encode_pair(context, continuation)  # type: ignore[no-any-return]

    def _fit(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Cut the context from the left, so that both fit the session."""
        continuation = continuation[-(self.max_length - 1) :]
        return context[len(continuation) - self.max_length :], continuation

    def _prompt_end(self, request: Any) -> str | None:
        """The field `prompt_ends_before` of the request's document."""
        doc = getattr(request, "doc", None)
        return doc.get("prompt_ends_before") if self.split_prompts and isinstance(doc, dict) else None

    def _n_prompt(self, context: str, tokens: list[int], end: str | None) -> int:
        """Number of tokens of a context that are prefilled, if it ends with the text `end` and more."""
        at = context.rfind(end) if end else -1
        if at < 0:
            return len(tokens)
        before, n = self.tok_encode(context[:at]), 0
        while n < min(len(before), len(tokens) - 1) and before[n] == tokens[n]:
            n += 1
        return max(n, 1)

    def _read(self, session: Session, context: list[int], n_prompt: int | None = None) -> None:
        """Evaluate a context, by the convention of the option; tokens from n_prompt on through the cache."""
        if self.context == "steps":
            session.clear()
            for at in range(0, len(context), self.step):
                session.eval(context[at : at + self.step])
        else:
            self._prefill(session, context[:n_prompt])
            rest = context[n_prompt:] if n_prompt is not None else []
            for at in range(0, len(rest), EVAL_MAX):
                session.eval(rest[at : at + EVAL_MAX])

    def _hold_prefix(self, contexts: list[list[int]]) -> list[int]:
        """Prefill what all contexts begin with into `saved`, with reuse_prefix. Returns these tokens."""
        shared = list(os.path.commonprefix(contexts)) if self.reuse_prefix and self.context == "prompt" else []
        shared = shared[: min(map(len, contexts), default=0) - 1]  # a context's last token is evaluated for its logits
        if shared:
            self.saved.sync(shared)
        return shared

    def _prefill(self, session: Session, context: list[int]) -> None:
        if not self.reuse_prefix:
            session.clear()
        session.sync(context)

    def _score_continuation(self, continuation: list[int]) -> Scored:
        """Log-likelihood of tokens after what the session holds, read through its cache."""
        total, greedy = _score(self.session.all_logits[-1:], continuation[:1])
        for at in range(0, len(continuation) - 1, EVAL_MAX):
            end = min(at + EVAL_MAX, len(continuation) - 1)
            self.session.eval(continuation[at:end], all=True)
            part, same = _score(self.session.all_logits, continuation[at + 1 : end + 1])
            total, greedy = total + part, greedy and same
        return total, greedy

    def _score_answer(self, context: str, continuation: str, end: str) -> Scored:
        """Log-likelihood of an answer whose question is evaluated through the cache, token by token."""
        context_tokens, tokens = self._fit(*self._encode_pair(context, continuation))
        self._read(self.session, context_tokens, self._n_prompt(context, context_tokens, end))
        total, greedy = 0.0, True
        for i, token in enumerate(tokens):
            part, same = _score(self.session.all_logits[-1:], [token])
            total, greedy = total + part, greedy and same
            if i + 1 < len(tokens):
                self.session.eval([token])
        return total, greedy

    def _generate_at_least(self, session: Session, min_tokens: int, max_tokens: int, until: list[str]) -> str:
        """A greedy answer in which nothing ends the first min_tokens tokens."""
        tokens: list[int] = []
        while len(tokens) < max_tokens:
            logits = session.logits.copy()
            while True:
                token = int(logits.argmax())
                text = self.model.detokenize(tokens + [token])
                is_mark = self.model.ends_answer(token)
                ends = is_mark or any(stop in text for stop in until)
                if not ends or len(tokens) >= min_tokens:
                    break
                logits[token] = -numpy.inf
            if not is_mark:
                tokens.append(token)
            if ends or len(tokens) == max_tokens:
                break
            session.eval([token])
        answer = self.model.detokenize(tokens)
        return answer[: min((answer.find(stop) for stop in until if stop in answer), default=len(answer))]

    def _score_steps(self, tokens: list[int], n_given: int) -> Scored:
        """Log-likelihood of tokens[n_given:]; all is evaluated in steps from an empty cache.

        The last token is evaluated too, although its prediction is not used: steps then have the
        same sizes as elsewhere, and with them the same rounding.
        """
        total, greedy = 0.0, True
        self.session.clear()
        for at in range(0, len(tokens), self.step):
            end = min(at + self.step, len(tokens))
            first = max(n_given - 1, at)  # the first token whose prediction is scored
            self.session.eval(tokens[at:end], all=end > first)
            if end > first:
                rows = self.session.all_logits[first - at :]
                part, same = _score(rows, tokens[first + 1 : end + 1])
                del rows  # the next step may need more rows
                total, greedy = total + part, greedy and same
        return total, greedy


def _score(logits: Logits, tokens: list[int]) -> Scored:
    """Sum of the log-probabilities of tokens [n] by logits [n][n_vocab], and if all are the best."""
    total, greedy = 0.0, True
    for row, token in zip(logits, tokens):
        best = float(row.max())
        log_sum = best + float(numpy.log(numpy.exp(row - best).sum(dtype=numpy.float64)))
        total += float(row[token]) - log_sum
        greedy = greedy and int(row.argmax()) == token
    return total, greedy


def main() -> None:
    """lm-eval's command line, which now knows the model "lowkey"."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
