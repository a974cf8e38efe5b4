"""Hostile answers, and workers that are killed or stopped: every answer gets its verdict in time."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from trl_miner import grading
from trl_miner.grading.pool import Pool, default_workers
from trl_miner.grading.worker import Job

BOMB = r"\int_0^\infty \frac{\sin(x^3)}{\ln(2+x^5)} dx"  # sympy computes for ever
CODE = "__import__('os').system('touch {}')"


def job(answer, reference="17"):
    return Job(reference, (answer,), False)


def outcomes(pool, jobs, **kwargs):
    return [verdict.reason or verdict.is_correct for verdict in pool.run(jobs, **kwargs).values()]


@pytest.fixture
def pool():
    """One worker, which has started."""
    pool = Pool(workers=1, seconds=2.0)
    pool.run([job("x")])
    yield pool
    pool.close()


HOSTILE = {
    "powers of powers": r"\boxed{9^{9^{9^{9}}}}",
    "a large power": r"\boxed{10^{10^{9}}}",
    "a power of 1e9": r"\boxed{(1+\sqrt{2})^{1000000000}}",
    "a factorial": r"\boxed{1000000000!}",
    "factorials of factorials": r"\boxed{((9!)!)!}",
    "a long sum": r"\boxed{\sum_{i=1}^{10^7} \frac{1}{i!}}",
    "an integral": rf"\boxed{{{BOMB}}}",
    "2,000 braces": r"\boxed{" + "{" * 2_000 + "17" + "}" * 2_000 + "}",
    "2,000 open braces": r"\boxed{" + "{" * 2_000,
    "roots in roots": r"\boxed{" + r"\sqrt{" * 50 + "x" + "}" * 50 + "}",
    "a million characters": r"\boxed{" + "7" * 10**6 + "}",
    "a million blanks": r"\boxed{" + " " * 10**6,
    "3,000 boxes": "".join(rf"\boxed{{{number}}}" for number in range(3_000)),
    "many signs": r"\boxed{" + r"\pm 1 " * 80 + "}",
    "NUL": "\\boxed{1\x007}",
    "lone surrogates": "\\boxed{1\ud8007}",
    "code": r"\boxed{" + CODE.format("HACKED") + "}",
    "code as text": r"\boxed{\text{" + CODE.format("HACKED") + "}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_ends_in_time_and_is_wrong(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grading.configure(workers=1, seconds=2.0)
    try:
        grading.grade("math", [r"\boxed{x}"], ["y"])  # the worker starts
        verdict, after = grading.grade(
            "math", [HOSTILE[kind], r"\boxed{34/2 + 0}"], ["17"] * 2, votes=True
        )
        assert verdict.is_correct is False
        assert after.is_correct is True
    finally:
        grading.configure()
    assert not [*tmp_path.iterdir()]  # nothing was executed


@pytest.mark.slow
def test_an_answer_over_its_limit_is_wrong_and_a_reference_over_it_is_not_graded(pool):
    assert [*pool.run([job(BOMB), job("5", "2^{2^{5000}}")]).values()] == [
        (False, None, "limit"),
        (None, None, "limit"),
    ]
    assert outcomes(pool, [job("17 + 0")]) == [True]  # another worker has taken its place


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["idle", "grading"])
def test_a_worker_that_something_else_ended_is_asked_once_more(pool, sent, when, monkeypatch):
    """The answer keeps its verdict. One that is stopped is killed after its wall time: 2 x 1 s here."""
    monkeypatch.setattr("trl_miner.grading.pool.WALL_FACTOR", 1.0)
    [worker] = pool.idle
    slow = job(BOMB if when == "grading" else "17.0 + x - x")
    if when == "idle":
        os.kill(worker.pid, sent)
        assert outcomes(pool, [slow]) == [True]
    else:
        timer = threading.Timer(0.3, os.kill, (worker.pid, sent))
        timer.start()
        start = time.monotonic()
        # asked again, the answer meets its own limit, and is wrong by that
        assert outcomes(pool, [slow]) == ["limit"]
        assert time.monotonic() - start > 2
    assert pool.idle[0] is not worker


@pytest.mark.slow
def test_an_answer_is_given_up_after_two_killed_workers(pool):
    """Neither right nor wrong: nobody pays for what the machine did."""
    done = threading.Event()

    killer = threading.Thread(target=_kill_workers_until, args=(done,))
    killer.start()
    try:
        assert outcomes(pool, [job(BOMB)]) == ["died"]
    finally:
        done.set()
        killer.join()


def _kill_workers_until(done):
    import psutil

    while not done.wait(0.02):
        for child in psutil.Process().children():
            try:
                if any("grading.worker" in word for word in child.cmdline()):
                    child.kill()
            except psutil.Error:
                pass


@pytest.mark.slow
def test_the_budget_ends_a_batch_and_leaves_the_pool_usable(pool):
    bombs = [job(f"{BOMB} + {i}") for i in range(5)]
    found = outcomes(pool, [job("17 + 0"), *bombs], budget=1.0)
    assert found == [True] + ["budget"] * 5
    assert outcomes(pool, [job("16 + 1")], budget=30.0) == [True]


def test_threads_may_grade_at_once():
    pool, found = Pool(workers=2), {}

    def graded(name):
        found[name] = outcomes(pool, [job(f"{name} + 0", str(name)), job("x", str(name))])

    threads = [threading.Thread(target=graded, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pool.close()
    assert found == {name: [True, False] for name in range(6)}


def script(code):
    """Run the code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


@pytest.mark.slow
def test_a_forked_child_gets_its_own_pool_and_leaves_the_parents_alone():
    run = script(r"""
        import os
        from trl_miner.grading import grade
        from trl_miner.grading.pool import shared_pool
        right = lambda: grade("math", ["\\boxed{1 - 0.5}"], ["1/2"])[0].is_correct
        assert right()
        parents = [worker.pid for worker in shared_pool().idle if worker]
        child = os.fork()
        if child == 0:
            os._exit(0 if right() and not {*parents} & {w.pid for w in shared_pool().idle if w} else 1)
        assert os.waitpid(child, 0)[1] == 0 and right()
        assert parents == [worker.pid for worker in shared_pool().idle if worker]
        print("fine")
    """)
    out, err = run.communicate(timeout=60)
    assert out.strip() == "fine", err


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_no_worker_outlives_its_parent(is_killed):
    """One in the middle of a bomb is ended by its own timer, after 2 s of CPU here."""
    run = script(rf"""
        import threading, time
        from trl_miner.grading import configure, grade
        from trl_miner.grading.pool import shared_pool
        configure(workers=1, seconds=2)
        grade("math", ["\\boxed{{1 - 0.5}}"], ["1/2"])
        print(shared_pool().idle[0].pid, flush=True)
        threading.Thread(target=grade, args=("math", [r"\boxed{{{BOMB}}}"], ["1/2"]), daemon=True).start()
        time.sleep({60 if is_killed else 0.5})
    """)
    worker = int(run.stdout.readline())
    if is_killed:
        time.sleep(0.5)
        run.kill()
    run.communicate(timeout=30)
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < end:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{worker}")


def test_a_worker_that_cannot_start_is_an_error_not_a_hang(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="A grading process failed"):
        Pool(workers=1).run([job("x")])


def test_the_ranks_of_one_machine_share_its_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert default_workers() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert default_workers() == 4  # 64 / 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "128")
    assert default_workers() == 1
