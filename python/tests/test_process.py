"""What a Python process does around calls: signals, event loops, forks, its own end; and errors as values."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorhub as th


def run(program: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def subscriber(server: th.ReferenceServer | str, replica: str = "rollout-0", words: int = 1000) -> th.Subscriber:
    out = th.Subscriber(server, "policy", replica)
    out.add("w", np.zeros(words, dtype=np.float32))
    return out


def publisher(server: th.ReferenceServer | str, words: int = 1000) -> th.Publisher:
    out = th.Publisher(server, "policy", "trainer-0")
    out.add("w", np.ones(words, dtype=np.float32))
    return out


def test_objects_that_a_program_keeps_to_its_end_are_no_leak() -> None:
    done = run(
        """
        import threading, time
        import tensorhub as th

        server = th.ReferenceServer()
        trainer = th.Publisher(server, "policy", "trainer-0")

        def forever():
            while True:
                time.sleep(1)
                trainer

        threading.Thread(target=forever, daemon=True).start()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_source_for_tenants_lets_nobody_attach_and_is_read() -> None:
    done = run(
        """
        import ctypes
        import numpy as np
        import tensorhub as th

        is_dumpable = lambda: ctypes.CDLL(None).prctl(3)
        source, target = np.arange(100_000, dtype=np.float32), np.zeros(100_000, dtype=np.float32)
        assert is_dumpable() == 1
        with (
            th.ReferenceServer() as server,
            th.Publisher(server, "m", "t", for_tenants=True) as trainer,
            th.Subscriber(server, "m", "r", for_tenants=True) as rollout,
        ):
            assert is_dumpable() == 0
            trainer.add("w", source)
            rollout.add("w", target)
            with trainer.published(1):
                path = rollout.update(timeout=20).sources[0].path
                assert path.startswith("same_host"), path
            assert np.array_equal(source, target)
            trainer.leave()
        """
    )
    assert done.returncode == 0, done.stderr


# ---- signals


def nobody() -> str:
    return "tcp://127.0.0.1:9"  # discard: nobody listens there


@contextlib.contextmanager
def interrupted_soon() -> Iterator[None]:
    interrupts = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupts.start()
    try:
        yield
    finally:
        interrupts.cancel()  # a call that has returned too early must not end the other tests, too
        interrupts.join()


@pytest.mark.parametrize("call", ["update", "wait", "models", "publish", "async", "seeder", "leave", "put", "held"])
def test_ctrl_c_ends_a_wait(server: th.ReferenceServer, call: str) -> None:
    asking = subscriber(nobody() if call == "models" else server)
    trainer = publisher(nobody())
    arena = th.ArenaPublisher(nobody(), "policy", "trainer-1", join_timeout=60)
    arena.declare("w", [1000], "f32")
    deserted = publisher(server)  # its server ends before it leaves, and it waits for another one
    if call in ("leave", "held"):
        deserted.publish(1, timeout=20)
    if call == "leave":
        server.close()
    calls = {
        "update": lambda: asking.update(5, timeout=60),
        "wait": lambda: asking.wait(5, timeout=60),
        "models": lambda: asking.models(timeout=60),
        "publish": lambda: trainer.publish(1, timeout=60),
        "async": lambda: asking.update_async(5, timeout=60).wait(60),
        "seeder": lambda: th.Seeder(server, "policy", "seed").wait(5, timeout=60),
        "leave": lambda: deserted.leave(grace=60),
        "put": lambda: arena.put("w", np.ones(1000, dtype=np.float32)),
        "held": lambda: deserted.wait_held(1, 1, timeout=60),
    }
    started = time.monotonic()
    with interrupted_soon(), pytest.raises(KeyboardInterrupt):
        calls[call]()
    assert time.monotonic() - started < 10
    # The worker is as it was after an error: another call can be made.
    if call in ("update", "wait", "async"):
        with pytest.raises(th.TimedOut):
            asking.update(5, timeout=0.1)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_a_signal_whose_handler_raises_is_no_other_error_when_the_call_fails_meanwhile(
    server: th.ReferenceServer, ending: type[BaseException]
) -> None:
    def stop(*_: object) -> None:
        raise ending

    def again_and_again() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(th.TimedOut):
                asking.update(9, timeout=0.03)

    asking = subscriber(server)
    before = signal.signal(signal.SIGINT, stop)
    try:
        for _ in range(10):
            with interrupted_soon(), pytest.raises(ending):
                again_and_again()
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_put_that_takes_the_last_version_back(server: th.ReferenceServer) -> None:
    weights = np.ones(1000, dtype=np.float32)
    with th.ArenaPublisher(server, "policy", "trainer-0") as arena:
        arena.declare("w", [1000], "f32")
        arena.put("w", weights)
        arena.commit(1)
        server.close()
        started = time.monotonic()
        with interrupted_soon(), pytest.raises(KeyboardInterrupt):
            arena.put("w", weights)
        assert time.monotonic() - started < 5


def test_ctrl_c_in_a_publish_leaves_nothing_published(server: th.ReferenceServer) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with publisher(server, 50_000_000) as trainer:
        started = time.monotonic()
        trainer.publish(1)
        took = time.monotonic() - started
        before = signal.signal(signal.SIGALRM, interrupt)
        met = 0
        try:
            for version in range(2, 42):
                trainer.unpublish()
                published = trainer.statistics()["publishes"].get("ok", 0)
                # Digests take the most of it, and nothing interrupts them.
                signal.setitimer(signal.ITIMER_REAL, took * (version % 9 + 1) / 10)
                try:
                    trainer.publish(version)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    assert trainer.held_version == 0
                    met += trainer.statistics()["publishes"].get("ok", 0) > published
                if met == 3:
                    break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert met, "no interrupt came while it published: this tests nothing"
        assert trainer.held_version == 0
        trainer.publish(100)


def test_ctrl_c_in_a_with_block_does_not_wait_long_for_a_server_that_is_gone() -> None:
    def work(server: th.ReferenceServer, trainer: th.Publisher) -> None:
        with trainer.published(1), interrupted_soon():
            server.close()
            time.sleep(60)

    with th.ReferenceServer() as server:
        trainer = publisher(server)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            work(server, trainer)
        assert time.monotonic() - started < 10


def test_ctrl_c_ends_an_attach_to_a_process_that_does_not_answer() -> None:
    name = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(f"\0tensorhub-copy/{name}")
        silent.listen()
        with pytest.raises(th.TimedOut):
            th.AttachedCopy(name, timeout=0.1)
        started = time.monotonic()
        with interrupted_soon(), pytest.raises(KeyboardInterrupt):
            th.AttachedCopy(name, timeout=20)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("call", ["rollout.update(5, timeout=60)", "time.sleep(60)"])
def test_sigterm_ends_a_program_with_the_recipe_of_the_readme_politely(server: th.ReferenceServer, call: str) -> None:
    program = f"""
        import signal, sys, time
        import numpy as np
        import tensorhub as th

        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        with th.Subscriber(sys.argv[1], "policy", "rollout-0") as rollout:
            rollout.add("w", np.zeros(1000, dtype=np.float32))
            rollout.join()
            try:
                print("joined", flush=True)
                {call}
            finally:
                rollout.leave(20)
        """
    command = [sys.executable, "-c", textwrap.dedent(program), server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "joined\n"
        time.sleep(0.3)  # it waits
        started = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert time.monotonic() - started < 10
    seen = server.statistics()
    assert (seen["workers"], seen["workers_left"], seen["workers_dead"]) == (0, 1, 0)


# ---- event loops


def test_an_update_can_be_awaited(server: th.ReferenceServer) -> None:
    trainer, rollouts = publisher(server), [subscriber(server, f"rollout-{i}") for i in range(3)]

    async def main() -> list[th.UpdateReport]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        waiting = [asyncio.ensure_future(_await(each.update_async(1))) for each in rollouts]
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in waiting)
        trainer.publish(1)
        reports = await asyncio.gather(*waiting)
        ticking.cancel()
        assert ticks > 1
        return list(reports)

    assert [each.version for each in asyncio.run(main())] == [1, 1, 1]


async def _await(update: th.Update) -> th.UpdateReport:
    return await update


def test_an_awaited_update_raises_its_error(server: th.ReferenceServer) -> None:
    async def main() -> None:
        with pytest.raises(th.TimedOut, match="exactly 5"):
            await subscriber(server).update_async(5, timeout=0.1)

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_update(server: th.ReferenceServer) -> None:
    rollout = subscriber(server)

    async def main() -> None:
        running = rollout.update_async(5, timeout=60)
        task = asyncio.ensure_future(_await(running))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running.done()
        with pytest.raises(th.Cancelled):
            running.wait(0)

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 10
    with pytest.raises(th.TimedOut):
        rollout.update(5, timeout=0.1)


def test_a_cancelled_task_leaves_no_cycle(server: th.ReferenceServer) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(asking.update_async(5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asking = subscriber(server)
    asyncio.run(cancelled())
    gc.collect()
    gc.disable()
    try:
        asyncio.run(cancelled())
        assert not [each for each in gc.get_objects() if isinstance(each, th.Update)]
    finally:
        gc.enable()


def test_progress_of_a_running_update(server: th.ReferenceServer) -> None:
    trainer, rollout = publisher(server), subscriber(server)
    running = rollout.update_async(1)
    before = running.progress()
    assert (before.version, before.bytes, before.done) == (0, 0, False)
    trainer.publish(1)
    assert running.wait().version == 1
    after = running.progress()
    assert (after.version, after.bytes, after.done) == (1, after.total_bytes, True)


# ---- forks


def test_after_a_fork_a_call_says_what_to_do() -> None:
    done = run(
        """
        import os, sys
        import numpy as np
        import tensorhub as th

        server = th.ReferenceServer()
        trainer = th.Publisher(server, "policy", "trainer-0")
        trainer.add("w", np.ones(1000, dtype=np.float32))
        rollout = th.Subscriber(server, "policy", "rollout-0")
        rollout.add("w", np.zeros(1000, dtype=np.float32))
        trainer.publish(1)
        running = rollout.update_async(9, timeout=60)
        address = server.address
        child = os.fork()
        if child == 0:
            for call in (lambda: trainer.publish(2), rollout.update, running.done, lambda: server.address):
                try:
                    call()
                    os._exit(1)
                except th.InvalidArgument as e:
                    if "before fork()" not in str(e):
                        os._exit(2)
            for each in (trainer, rollout, server):
                if "made before fork()" not in repr(each):  # as loggers and debuggers ask
                    os._exit(4)
            own = th.Subscriber(address, "policy", "rollout-1")  # another one works here
            own.add("w", np.zeros(1000, dtype=np.float32))
            if own.update(1, timeout=20).version != 1:
                os._exit(3)
            own.leave()
            sys.exit(0)  # through all destructors and atexit
        _, status = os.waitpid(child, 0)
        running.cancel()
        assert rollout.models()[0].latest == 1
        sys.exit(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_view_ends_nothing_in_a_forked_process() -> None:
    done = run(
        """
        import os, sys
        import numpy as np
        import tensorhub as th

        with th.ReferenceServer() as server, th.Publisher(server, "policy", "trainer-0") as trainer:
            trainer.add("w", np.ones(1000, dtype=np.float32))
            trainer.publish(1)
            rollout = th.Subscriber(server, "policy", "rollout-0", mode="double_buffered")
            rollout.allocate("w", [1000], "f32")
            rollout.update()
            view = rollout.tensor("w")
            del rollout
            child = os.fork()
            if child == 0:
                del view
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert np.asarray(view)[0] == 1
            sys.exit(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.returncode == 0, done.stderr


# ---- the interpreter's end


@pytest.mark.parametrize(
    "ending",
    ["pass", "raise SystemExit(0)", "del rollout, trainer, server", "import gc; running = None; gc.collect()"],
)
def test_an_interpreter_ends_in_the_middle_of_an_update(ending: str) -> None:
    started = time.monotonic()
    done = run(
        f"""
        import numpy as np
        import tensorhub as th

        server = th.ReferenceServer()
        trainer = th.Publisher(server, "policy", "trainer-0")
        trainer.add("w", np.ones(5_000_000, dtype=np.float32))
        rollout = th.Subscriber(server, "policy", "rollout-0")
        rollout.add("w", np.zeros(5_000_000, dtype=np.float32))
        trainer.publish(1)
        rollout.update()
        running = rollout.update_async(2, timeout=600)
        cycle = [rollout]
        cycle.append(cycle)
        {ending}
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert time.monotonic() - started < 30


def test_an_interpreter_ends_while_another_thread_waits() -> None:
    done = run(
        """
        import threading, time
        import numpy as np
        import tensorhub as th

        server = th.ReferenceServer()
        rollout = th.Subscriber(server, "policy", "rollout-0")
        rollout.add("w", np.zeros(1000, dtype=np.float32))
        threading.Thread(target=lambda: rollout.update(2, timeout=600), daemon=True).start()
        time.sleep(0.2)
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("start", "timeout"),
    [  # the library ends after the program's own function, and before it
        ("import tensorhub as th; atexit.register(stop)", 0.2),
        ("atexit.register(stop); import tensorhub as th", 600),
    ],
)
def test_a_daemon_thread_can_be_joined_while_the_interpreter_ends(start: str, timeout: float) -> None:
    done = run(
        f"""
        import atexit, threading, time
        import numpy as np

        stopping = threading.Event()
        lock = threading.Lock()

        def stop():
            stopping.set()
            thread.join(20)
            assert lock.acquire(timeout=1)
            print("joined:", not thread.is_alive())

        {start}
        server = th.ReferenceServer()
        rollout = th.Subscriber(server, "policy", "rollout-0")
        rollout.add("w", np.zeros(10, dtype=np.float32))

        def receive():
            while not stopping.is_set():
                try:
                    with lock:
                        rollout.update(5, timeout={timeout})
                except th.Error:
                    pass
            try:
                th.Subscriber(server, "policy", "rollout-1")
            except th.Error:
                pass

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        time.sleep(0.3)
        """
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "joined: True\n")


# ---- errors and logs


@pytest.mark.parametrize("call", ["rollout.update(at_least=10**6, timeout=0.01)", "subscriber().update(timeout=0.01)"])
def test_an_interpreter_ends_while_another_thread_repeats_a_call_that_fails(call: str) -> None:
    program = f"""
        import threading, time
        import numpy as np
        import tensorhub as th

        server = th.ReferenceServer()

        def subscriber():
            made = th.Subscriber(server, "policy", f"rollout-{{threading.get_ident()}}")
            made.add("w", np.zeros(10))
            return made

        rollout = subscriber()

        def again_and_again():
            while True:
                try:
                    {call}
                except th.Error:
                    pass

        for _ in range(4):
            threading.Thread(target=again_and_again, daemon=True).start()
        time.sleep(0.3)
        """
    for _ in range(5):
        done = run(program)
        assert (done.returncode, done.stderr) == (0, "")


def test_errors_are_a_hierarchy_that_pickles(server: th.ReferenceServer) -> None:
    with pytest.raises(TimeoutError) as caught:
        subscriber(server).update(5, timeout=0.1)
    failed = caught.value
    assert isinstance(failed, th.TimedOut)
    assert isinstance(failed, th.Error)
    assert (failed.code, failed.model, failed.replica, failed.shard) == ("timed_out", "policy", "rollout-0", 0)
    again = pickle.loads(pickle.dumps(failed))
    assert type(again) is th.TimedOut
    assert str(again) == str(failed)
    assert again.__dict__ == failed.__dict__


def test_every_code_has_a_class() -> None:
    from tensorhub import _core, errors

    names = {_core.error_name(code) for code in range(1, 200)} - {"unknown", "ok"}
    assert names == set(errors._CLASSES)
    for kind in errors._CLASSES.values():
        sample = kind("sentence", model="m", replica="r", shard=2, version=3, peer="p", chunk=4)
        again = pickle.loads(pickle.dumps(sample))
        assert type(again) is kind
        assert str(again) == str(sample)
        assert "model m, replica r, shard 2, version 3, peer p, chunk 4" in str(again)
        assert again.retryable == _core.is_retryable([*errors._CLASSES].index(sample.code) + 1)
    assert th.TimedOut("x").retryable
    assert not th.InvalidArgument("x").retryable


def test_what_cannot_be_sent_to_a_process_says_what_can(server: th.ReferenceServer) -> None:
    for each in (server, subscriber(server), th.Seeder(server, "policy", "seed")):
        with pytest.raises(TypeError, match=r"another process.*make one there"):
            pickle.dumps(each)


def test_reports_pickle(server: th.ReferenceServer) -> None:
    trainer, rollout = publisher(server), subscriber(server)
    published = trainer.publish(1)
    report = rollout.update()
    assert pickle.loads(pickle.dumps((published, report))) == (published, report)


def test_log_lines_come_to_logging(server: th.ReferenceServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="tensorhub"):
        trainer = publisher(server)
        trainer.publish(1)
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)
    assert any("trainer-0" in each.getMessage() for each in caplog.records)


class RaisingOnce(logging.Handler):
    """Raises for the first line that it gets, and counts all of them."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        if self.lines == 1:
            raise self.raised


@pytest.mark.parametrize("raised", [RuntimeError("the disk is full"), SystemExit("the disk is full")])
def test_a_log_handler_that_raises_gets_the_next_lines(
    server: th.ReferenceServer, capsys: pytest.CaptureFixture[str], raised: BaseException
) -> None:
    logger, handler = logging.getLogger("tensorhub"), RaisingOnce(raised)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        deadline = time.monotonic() + 10
        while handler.lines < 3 and time.monotonic() < deadline:
            publisher(server).publish(1)  # the process that joins replaces the one before it, which is a line
            time.sleep(0.05)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert handler.lines >= 3
    reported = capsys.readouterr().err
    assert reported.count("the disk is full") == 1
    assert "Logging error" in reported


def test_closed_objects_say_so(server: th.ReferenceServer) -> None:
    trainer = publisher(server)
    trainer.close()
    trainer.close()
    assert trainer.is_closed
    assert "closed" in repr(trainer)
    with pytest.raises(th.InvalidArgument, match="was closed"):
        trainer.publish(1)


def test_closing_beside_a_call_that_waits(server: th.ReferenceServer) -> None:
    rollout = subscriber(server)
    failures: list[th.Error] = []

    def update() -> None:
        try:
            rollout.update(5, timeout=60)
        except th.Error as e:
            failures.append(e)

    waiting = threading.Thread(target=update)
    waiting.start()
    time.sleep(0.2)
    rollout.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(failures) == 1
    assert isinstance(failures[0], th.Cancelled)


def test_an_update_that_runs_on_says_whose_it_is(server: th.ReferenceServer) -> None:
    with subscriber(server) as rollout:
        running = rollout.update_async(9)
        with pytest.raises(th.TimedOut) as late:
            running.wait(0.1)
        assert (late.value.model, late.value.replica) == ("policy", "rollout-0")
        running.close()
        running._inner.interrupt()  # as the interpreter's end does, which may come at any time


def test_closing_an_update_beside_a_wait(server: th.ReferenceServer) -> None:
    target = np.zeros(1000, dtype=np.float32)
    rollout = th.Subscriber(server, "policy", "rollout-0")
    rollout.add("w", target)
    running = rollout.update_async(1, timeout=30)
    failures: list[th.Error] = []

    def wait() -> None:
        try:
            running.wait()
        except th.Error as e:
            failures.append(e)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    running.close()
    with publisher(server) as trainer:
        trainer.publish(1)
        time.sleep(0.5)
        assert (target == 0).all()
        assert rollout.held_version == 0
        waiting.join(5)
        assert not waiting.is_alive()
        assert len(failures) == 1
        assert rollout.update(1, timeout=20).version == 1
    rollout.close()


@pytest.mark.parametrize("ending", ["published", "closed"])
def test_two_tasks_await_an_update(server: th.ReferenceServer, ending: str) -> None:
    async def await_both() -> list[object]:
        with subscriber(server) as rollout, publisher(server) as trainer:
            running = rollout.update_async(1, timeout=30)

            async def await_it() -> th.UpdateReport:
                return await running

            tasks = [asyncio.ensure_future(await_it()) for _ in range(2)]
            await asyncio.sleep(0.2)
            if ending == "published":
                trainer.publish(1)
            else:
                running.close()
            _, pending = await asyncio.wait(tasks, timeout=10)
            assert not pending
            return [each.exception() or each.result().version for each in tasks]

    outcomes = asyncio.run(await_both())
    if ending == "published":
        assert outcomes == [1, 1]
    else:
        assert all(isinstance(each, th.Error) for each in outcomes)


def test_closing_beside_a_call_that_is_repeated() -> None:
    target = np.zeros(1000, dtype=np.float32)
    rollout = th.Subscriber("tcp://127.0.0.1:9", "policy", "rollout-0", join_timeout=0.2)
    rollout.add("w", target)
    failures: list[th.Error] = []

    def update() -> None:
        try:
            rollout.update(timeout=60, retry=True)
        except th.Error as e:
            failures.append(e)

    repeating = threading.Thread(target=update)
    repeating.start()
    time.sleep(2.5)  # pauses of a second between attempts
    rollout.close()
    repeating.join(10)
    assert not repeating.is_alive()
    assert isinstance(failures[0], th.Cancelled)


def test_views_of_a_stage_keep_nothing_served_whose_tensors_are_gone(server: th.ReferenceServer) -> None:
    def views_of_a_stage() -> list[object]:
        rollout = th.Subscriber(server, "policy", "rollout-0", mode="staged")
        rollout.add("w", np.zeros(1000, dtype=np.float32))
        running = rollout.stage_async(1)
        views = [view for _, view in running.tensors()]
        running.wait()
        rollout.install()
        return views

    with publisher(server) as trainer:
        trainer.publish(1)
        views = views_of_a_stage()
        gc.collect()
        holders = [each.name for each in trainer.models("policy")[0].replicas if each.version]
        assert holders == ["trainer-0"]
        assert np.asarray(views[0])[0] == 1


# ---- other threads


class Ticks:
    """How long another thread of Python had to wait at most, while a block ran; and how long the block took."""

    def __enter__(self) -> Ticks:
        self._ended = False
        self._gaps = [0.0]
        self._ticking = threading.Thread(target=self._tick)
        self._ticking.start()
        time.sleep(0.05)
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took = time.monotonic() - self._started
        self._ended = True
        self._ticking.join()
        self.longest_gap = max(self._gaps)

    def _tick(self) -> None:
        last = time.monotonic()
        while not self._ended:
            time.sleep(0.002)
            now = time.monotonic()
            self._gaps.append(now - last)
            last = now


def test_other_threads_run_while_memory_of_a_stage_is_allocated(server: th.ReferenceServer) -> None:
    words = 50_000_000
    gaps = []
    for attempt in range(3):  # other programs take the processors, too
        with th.Subscriber(server, "policy", f"rollout-{attempt}", mode="double_buffered") as rollout:
            rollout.allocate("w", [words], "f32")
            with Ticks() as ticks:
                running = rollout.stage_async(1, timeout=60)
            running.close()
        gaps.append((ticks.longest_gap, ticks.took))
    assert any(gap < took / 2 for gap, took in gaps), gaps


def test_other_threads_run_while_memory_of_a_shared_copy_is_allocated(server: th.ReferenceServer) -> None:
    gaps = []
    for attempt in range(3):
        with th.SharedCopy(server, "policy", f"rollout-{attempt}", name=f"copy-{os.getpid()}-{attempt}") as copy:
            copy.declare("w", [50_000_000], "f32")
            over = threading.Event()

            def look(copy: th.SharedCopy = copy, over: threading.Event = over) -> None:
                while not over.is_set():
                    assert copy.held_version == 0

            looking = threading.Thread(target=look)
            looking.start()
            with Ticks() as ticks, pytest.raises(th.Error):  # nothing is published
                copy.update(timeout=0.5)
            over.set()
            looking.join()
        gaps.append((ticks.longest_gap, ticks.took))
    assert any(gap < took / 2 for gap, took in gaps), gaps


def test_other_threads_run_while_a_constructor_asks_for_a_host() -> None:
    own_network = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
    asks_here = "ip link set lo up && mount --bind resolv.conf /etc/resolv.conf"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:2\n")
        tried = subprocess.run([*own_network, "sh", "-c", asks_here], cwd=folder, capture_output=True, check=False)
        if tried.returncode != 0:
            pytest.skip("a name server that does not answer: this user may have no network of its own")
        program = f"""
            import json, socket, sys
            sys.path.insert(0, {os.path.dirname(__file__)!r})
            import tensorhub as th
            from test_process import Ticks

            silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            silent.bind(("127.0.0.1", 53))
            with Ticks() as ticks:
                try:
                    th.Publisher("tcp://127.0.0.1:9", "m", "t", transport="tcp", listen_host="nobody.example")
                except th.Error as e:
                    assert "nobody.example" in str(e), e
            print(json.dumps([ticks.took, ticks.longest_gap]))
        """
        command = [*own_network, "sh", "-c", f'{asks_here} && exec "$0" -B -c "$1"', sys.executable]
        done = subprocess.run(
            [*command, textwrap.dedent(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    took, longest_gap = json.loads(done.stdout)
    assert took > 0.5
    assert longest_gap < took / 2
