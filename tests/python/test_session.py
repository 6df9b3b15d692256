"""Sessions: evaluating, logits, copies, threads, memory."""
import gc
import os
import pathlib
import resource
import signal
import subprocess
import threading
import time

import numpy
import pytest

import lowkey

TEXT = "the quick brown fox jumps over the lazy dog. " * 12


def test_sync_reuses(model, session):
    tokens = model.tokenize(TEXT)
    assert session.sync(tokens) == 0
    assert session.sync(tokens) == len(tokens)
    assert session.reusable(tokens + [1]) == len(tokens)
    assert session.sync(tokens + [1, 2]) == len(tokens)
    assert session.tokens == tokens + [1, 2]
    assert len(session) == session.n_tokens == len(tokens) + 2


def test_logits_is_a_view(model, session):
    session.sync(model.tokenize(TEXT))
    logits = session.logits
    assert logits.shape == (model.n_vocab,) and logits.dtype == numpy.float32
    assert not logits.flags.owndata and not logits.flags.writeable
    before = logits.copy()
    session.eval([5])
    assert numpy.shares_memory(logits, session.logits)
    assert not numpy.array_equal(logits, before)  # shows the last evaluation
    best = session.top(3)
    assert best[0].token == logits.argmax() and best[0].logprob >= best[1].logprob
    assert session.logprob(best[1].token) == pytest.approx(best[1].logprob)


def test_logits_outlive_the_session(model):
    session = lowkey.Session(model, "f16", n_ctx=64)
    session.sync([1, 2, 3])
    logits, copy = session.logits[2:9], session.logits[2:9].copy()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.eval([1])
    del session
    gc.collect()
    lowkey.Session(model, "f16", n_ctx=64).sync([4, 5, 6])
    assert numpy.array_equal(logits, copy)


def test_logits_do_not_move_under_a_view(model, session):
    session.sync([1, 2, 3])
    view = session.logits[:4]
    with pytest.raises(BufferError, match="copy them"):
        session.eval([4, 5, 6, 7], all=True)
    assert session.tokens == [1, 2, 3]
    del view
    session.eval([4, 5, 6, 7], all=True)
    assert session.all_logits.shape == (4, model.n_vocab)
    assert numpy.array_equal(session.all_logits[3], session.logits)


def test_all_logits_equal_single_steps(model):
    a, b = (lowkey.Session(model, "f16", n_ctx=64) for _ in range(2))
    a.eval([1, 2, 3, 4], all=True)
    rows = []
    for token in (1, 2, 3, 4):
        b.eval([token])
        rows.append(b.logits.copy())
    numpy.testing.assert_allclose(a.all_logits, rows, rtol=1e-3, atol=1e-3)


def test_long_eval_is_split(model, session):
    tokens = [i % 200 for i in range(600)]
    session.eval(tokens)
    assert session.tokens == tokens
    with pytest.raises(ValueError, match="512"):
        session.eval(tokens, all=True)


def test_errors_leave_the_session(model):
    session = lowkey.Session(model, "f16", n_ctx=8)
    with pytest.raises(ValueError, match="no logits"):
        _ = session.logits
    session.sync([1, 2, 3])
    with pytest.raises(lowkey.ArgumentError, match="id 99999"):
        session.eval([99999])
    with pytest.raises(lowkey.FullError):
        session.sync(list(range(9)))
    with pytest.raises(lowkey.ArgumentError):
        session.eval([])
    assert session.tokens == [1, 2, 3]
    with pytest.raises(lowkey.OutOfMemoryError) as caught:
        lowkey.Session(model, "f16", n_ctx=4096, max_bytes=1000).sync([1] * 4000)
    assert isinstance(caught.value, MemoryError)


def test_copy(model, session):
    tokens = model.tokenize(TEXT)
    session.sync(tokens)
    fork = session.copy()
    assert fork.tokens == tokens and numpy.array_equal(fork.logits, session.logits)
    fork.eval([7])
    session.eval([7])
    assert numpy.array_equal(fork.logits, session.logits)
    fork.eval([8])
    assert session.tokens == tokens + [7]
    other = lowkey.Session(model, "f16", n_ctx=64)
    with pytest.raises(lowkey.ArgumentError, match="same model, recipe and device"):
        other.copy_from(session)


@pytest.mark.parametrize("recipe", ["best-3", "sink 4: f16; keep 16 by h2o; window 8: f16"])
def test_save_and_load(model, recipe, tmp_path):
    session = lowkey.Session(model, recipe, n_ctx=1024)
    session.sync(model.tokenize(TEXT))
    session.eval([i % 200 for i in range(60)])
    session.save(tmp_path / "saved.lk")
    other = lowkey.Session(model, recipe, n_ctx=1024)
    other.load(tmp_path / "saved.lk")
    assert other.tokens == session.tokens
    for token in range(10):
        assert numpy.array_equal(other.logits, session.logits)
        other.eval([token])
        session.eval([token])
    with pytest.raises(lowkey.FormatError):
        lowkey.Session(model, "best-4", n_ctx=1024).load(tmp_path / "saved.lk")


def test_stats(model, session):
    session.sync([i % 200 for i in range(800)])
    stats = session.stats
    assert stats.n_tok == 800 and 0 < stats.bits_per_value < 16
    assert stats.cache_bytes == (stats.code_bytes + stats.scale_bytes + stats.exact_bytes
                                 + stats.padding_bytes + stats.state_bytes)
    assert sum(level.k_rows for level in session.levels) == 800
    session.clear()
    assert session.n_tokens == 0


def test_one_thread_at_a_time(model):
    session = lowkey.Session(model, "f16", n_ctx=4096)
    inside, errors = threading.Event(), []

    def progress(done, total):
        inside.set()
        return not stop.wait(20)

    def work():
        try:
            session.sync([i % 200 for i in range(3000)], progress)
        except lowkey.CancelledError as error:
            errors.append(error)

    stop = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(RuntimeError, match="another thread"):
        session.eval([1])
    stop.set()
    thread.join()
    assert len(errors) == 1
    session.sync([1, 2])


def test_other_threads_run_while_computing(model):
    """The GIL is released: this thread counts while another one prefills."""
    session = lowkey.Session(model, "best-3", n_ctx=4096)
    thread = threading.Thread(target=session.sync, args=([i % 200 for i in range(4000)],))
    thread.start()
    n = 0
    while thread.is_alive():
        n += 1
        time.sleep(0)
    assert n > 10 and session.n_tokens == 4000


def test_cancel_from_another_thread(model, session):
    session.cancel()
    with pytest.raises(lowkey.CancelledError):
        session.eval([1])
    session.eval([1])


def test_ctrl_c_ends_a_prefill(model):
    session = lowkey.Session(model, "f16", n_ctx=4096)
    tokens = [i % 200 for i in range(4000)]

    def interrupt(done, total):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        session.sync(tokens, interrupt)
    assert session.n_tokens < len(tokens)
    session.sync(tokens[:10])


def test_exception_of_a_progress_function(session):
    def fail(done, total):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        session.sync(list(range(200)), fail)
    session.sync([1, 2, 3])


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_sessions_do_not_leak(model):
    def use(n):
        for _ in range(n):
            session = lowkey.Session(model, "best-3", n_ctx=256)
            session.sync([1, 2, 3, 4])
            assert session.logits[0] is not None
            session.copy().generate([1, 2], max_tokens=2)

    use(100)
    gc.collect()
    before = resident()
    use(1000)
    gc.collect()
    assert resident() - before < 4 << 20


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def test_logits_equal_those_of_c(tiny_path, tmp_path):
    """Bit for bit: the hashes that a C program prints, which links the shared library."""
    root, build = pathlib.Path(__file__).resolve().parents[2], os.environ["LOWKEY_BUILD"]
    program = tmp_path / "dump_logits"
    subprocess.run(["cc", "-std=c11", f"-I{root}/include", f"{root}/tests/same_logits/dump_logits.c", "-o", program,
                    f"-L{build}", "-llowkey", f"-Wl,-rpath,{build}"], check=True)
    expected = {}
    for line in subprocess.run([program, tiny_path], check=True, capture_output=True, text=True).stdout.splitlines():
        name, recipe, stage, value = line.split(" | ")
        expected.setdefault((recipe, stage), value)

    model = lowkey.Model(tiny_path, threads=2)
    state, tokens = 12345, []
    for _ in range(min(700, model.n_ctx_train - 52)):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        tokens.append((state >> 33) % model.n_vocab)
    for recipe in ("f16", "best-4", "best-3", "best-2"):
        session = lowkey.Session(model, recipe, n_ctx=len(tokens) + 52)
        session.sync(tokens)
        assert f"{fnv(session.logits.tobytes()):016x}" == expected[recipe, "prompt"]
        total = 0
        for i in range(12):
            session.eval([tokens[(len(tokens) + i) % len(tokens)]])
            total = fnv(fnv(session.logits.tobytes()).to_bytes(8, "little"), total)
        session.eval(tokens[:40], all=True)
        total = fnv(fnv(session.all_logits.tobytes()).to_bytes(8, "little"), total)
        assert f"{total:016x}" == expected[recipe, "decode"]


def test_rows(model):
    tokens = (model.tokenize(TEXT) * 9)[:600]
    with lowkey.Session(model, "f16", n_ctx=700) as exact, lowkey.Session(
        model, "sink 4: f16; keep 32 by h2o: rot4; window 16: f16", n_ctx=700
    ) as session:
        exact.sync(tokens)
        session.sync(tokens)
        info = model.info
        for side in ("k", "v"):
            positions, rows = exact.rows(info.n_cached - 1, 0, side)
            assert positions.tolist() == list(range(len(tokens)))
            assert rows.shape == (len(tokens), info.d_head) and rows.dtype == numpy.float32
            kept, some = session.rows(0, info.n_head_kv - 1, side)
            assert len(kept) < len(tokens) and (numpy.diff(kept) > 0).all()
            full = exact.rows(0, info.n_head_kv - 1, side)[1][kept]
            assert 0 < ((some - full) ** 2).mean() < 0.05 * (full**2).mean()
        with pytest.raises(lowkey.ArgumentError, match="no layer"):
            exact.rows(99)
        with pytest.raises(lowkey.ArgumentError, match="no head"):
            exact.rows(0, 99)
        with pytest.raises(ValueError, match="'k' or 'v'"):
            exact.rows(0, 0, "q")


def test_probe(model):
    tokens = model.tokenize(TEXT)[:60]
    with lowkey.Session(model, "f16", n_ctx=128) as session:
        session.sync(tokens[:-1])
        with session.probe() as probe:
            with pytest.raises(lowkey.ArgumentError, match="nothing"):
                probe[0]
            session.eval(tokens[-1:])
            weights = probe[0]
            assert weights.shape == (model.info.n_head, len(tokens))
            assert weights.sum(axis=1) == pytest.approx(1, abs=1e-3)
            # A policy in numpy: the rows that get the most attention, by KV head.
            group = model.info.n_head // model.info.n_head_kv
            by_head = weights.reshape(-1, group, len(tokens)).sum(axis=1)
            assert by_head.argsort(axis=1)[:, -8:].shape == (model.info.n_head_kv, 8)
        with pytest.raises(ValueError, match="closed"):
            probe[0]


def test_wrong_forms(model, session):
    with pytest.raises(TypeError, match="give a list of messages"):
        session.chat("hi")
    with pytest.raises(TypeError, match="message 0 is 'hi'"):
        session.chat(["hi"])
    with pytest.raises(ValueError, match="message 1 has no text as its 'content'"):
        session.chat([{"role": "user", "content": "a"}, {"role": "user"}])
    with pytest.raises(TypeError, match="give a text, or a list of tokens"):
        session.generate(5)
    with pytest.raises(ValueError, match="temperature is -1; give 0 or more"):
        session.generate("a", temperature=-1)
    with pytest.raises(ValueError, match="top_p is 2; give 0 to 1"):
        session.generate("a", top_p=2)
    with pytest.raises(ValueError, match="not one of the vocabulary"):
        model.detokenize([10**6])
    with pytest.raises(lowkey.FileError, match=os.path.expanduser("~/absent.gguf")):
        lowkey.Model("~/absent.gguf")
