"""Hostile answers and killed processes: every answer gets its verdict, and nothing is left
behind."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest
from harness import gone, wait_until

from trl_miner import grading
from trl_miner.grading.pool import Pool
from trl_miner.grading.worker import Job

# What sympy computes for ever.
BOMBS = [
    r"\sum_{n=1}^{\infty} \frac{\sin(n^2)}{n^3+n!}",
    r"\int_0^\infty \frac{\sin(x^3)}{\ln(2+x^5)} dx",
    r"\int_0^\infty e^{-x^4-x^3} \cos(x^5) dx",
]


def job(content, gold="17"):
    return Job((content,), "", gold, False)


def scores(results):
    return [result.reason or result.is_correct for result in results]


@pytest.fixture(scope="module")
def pool():
    """One for all tests: it outlives whatever they do to its workers, each of which takes 0.7 s of
    CPU to start."""
    pool = Pool(workers=2, seconds=0.5)
    yield pool
    pool.close()


def hostile_answers(count, seed=0):
    """Answers of the kinds that break verifiers; 1 in 100 would run for ever."""
    rng = random.Random(seed)
    kinds = [
        lambda: r"\boxed{" * rng.randint(1, 50) + str(rng.random()),  # unbalanced
        lambda: r"\boxed{" + "{" * rng.randint(1, 5) + "1" + "}" * rng.randint(1, 5),
        lambda: r"\boxed{\frac{" + str(rng.random()) + "}{0}}",
        lambda: r"\boxed{" + r"\sqrt{" * rng.randint(1, 30) + "x" + "}" * 30 + "}",
        lambda: "".join(chr(rng.randint(0, 0x2FF)) for _ in range(300)),  # control characters
        lambda: (
            r"\boxed{"
            + "".join(chr(rng.randint(1, 127)) for _ in range(20)).replace("{", "").replace("}", "")
            + "}"
        ),
        lambda: rf"\boxed{{{rng.randint(0, 10**40)}}} \boxed{{{rng.randint(0, 10**40)}}}",
        lambda: rf"\boxed{{\begin{{pmatrix}}{rng.random()}&\infty\end{{pmatrix}}}}",
        lambda: (
            r"\boxed{"
            + rng.choice(["!", "^", "_", "\\frac", "\\left(", "&", "%", "#"]) * rng.randint(1, 9)
            + "}"
        ),
        lambda: rf"\boxed{{{rng.choice('≤∞π√')}{rng.randint(1, 99)}\text{{ cm}}^2}}",
    ]
    answers = [kinds[rng.randrange(len(kinds))]() for _ in range(count)]
    for place in range(50, count, 100):
        answers[place] = rf"\boxed{{{BOMBS[place // 100 % len(BOMBS)]} + {place}}}"
    answers[-1] = r"\boxed{" + "7" * 2**20 + "}"  # 1 MB
    answers[-2] = "x" * 2**20 + r"\boxed{17}"
    answers[-3] = r"\boxed{1}" * 2**17
    return answers


@pytest.mark.slow
def test_hostile_answers_are_all_answered(monkeypatch):
    """From a thread, with bombs of every kind; each has 2 s of CPU, enough for all other
    answers."""
    # also where other processes take the cores
    monkeypatch.setattr("trl_miner.grading.pool.WALL_FACTOR", 40)
    count, verdicts = 500, []
    answers = hostile_answers(count)
    grading.configure(workers=2, seconds=2.0)
    workers = grading.shared_pool().workers
    try:
        run = threading.Thread(
            target=lambda: verdicts.extend(
                grading.grade("math", answers, ["17"] * count, votes=True)
            )
        )
        run.start()
        run.join(400)
        assert len(verdicts) == count
        assert verdicts[-2].is_correct  # the one right answer, behind 1 MB of text
        assert all(verdict.is_correct in (False, None) for verdict in verdicts[:-2] + verdicts[-1:])
        over = [verdict for verdict in verdicts if verdict.reason]
        assert {verdict.is_correct for verdict in over} == {False}  # the gold is quick
        assert {verdict.reason for verdict in over} <= {"limit", "died"} and count / 125 <= len(
            over
        ) <= count / 40
        assert grading.grade("math", [r"\boxed{0.5}"], ["1/2"])[0].is_correct  # the pool is alive
        assert 1 <= len(pids := grading.shared_pool().pids()) <= 2 == len(workers)
    finally:
        grading.configure()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "expected"),
    [("grading", "died"), ("idle", True), ("starting", True)],
    ids=lambda value: str(value),
)
def test_a_killed_worker_costs_its_answer_only(when, expected):
    """Killed in the middle of a bomb, before it gets a job, or while it starts."""
    pool, first = Pool(workers=1, seconds=10), job(BOMBS[0] if when == "grading" else "17.0")

    def kill_one():
        while not pool.pids():
            time.sleep(0.001)
        time.sleep(0.3 * (when == "grading"))
        pid, *_ = pool.pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone([pid]))

    killer = threading.Thread(target=kill_one)
    if when != "starting":
        pool.run([job("x"), job("y")])
    killer.start()
    if when == "idle":
        killer.join()
    assert scores(pool.run([first, job("18.0"), job(r"\frac{34}{2}")])) == [expected, False, True]
    killer.join()
    pool.close()


@pytest.mark.slow
def test_a_stopped_worker_is_replaced():
    """SIGSTOP: its own timers cannot end it, so the pool must."""
    pool = Pool(workers=1, seconds=0.2)
    pool.run([job("x")])
    os.kill(pool.pids()[0], signal.SIGSTOP)
    assert scores(pool.run([job("17.0"), job("18.0")])) == ["limit", 0.0]
    pool.close()


def test_memory_is_bounded(pool):
    # 10^(10^9) as an exact integer would need 400 MB, and its decimal text minutes; whichever limit
    # it meets, it ends
    before = psutil.virtual_memory().available
    assert scores(pool.run([job("10^{10^{11}}")])) in (["limit"], ["died"], [0.0])
    assert psutil.virtual_memory().available > before - 3 * 2**30


@pytest.mark.slow
def test_the_budget_and_ctrl_c_end_a_batch_and_leave_the_pool_usable(pool):
    pool.run([job("x"), job("y")])
    bombs = [job(f"{bomb} + {i}") for i in range(10) for bomb in BOMBS]
    outcomes = scores(pool.run([job("17.0"), *bombs], budget=0.8))
    assert outcomes[0] is True and outcomes[-1] == "budget" and len(outcomes) == 31
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(bombs)
    assert scores(pool.run([job("17.0")])) == [True]


def test_threads_may_grade_at_once(pool):
    results = {}

    def graded(name):
        results[name] = scores(pool.run([job(str(name) + ".0", str(name)), job("x", str(name))]))

    threads = [threading.Thread(target=graded, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {name: [1.0, 0.0] for name in range(6)}


@pytest.mark.slow
def test_a_batch_waits_for_workers_within_its_budget(pool):
    pool.run([job("x")])  # start
    bombs = [job(f"{BOMBS[0]} + {i}") for i in range(4)]  # 0.5 s each on 2 workers: 1 s
    results = {}
    first = threading.Thread(target=lambda: results.update(bombs=pool.run(bombs, 60)))
    first.start()
    time.sleep(0.1)
    assert scores(pool.run([job("17.0")], 0.1)) == ["budget"] and first.is_alive()
    assert scores(pool.run([job("17.0")], 60)) == [True]
    first.join(60)
    assert scores(results["bombs"]) == ["limit"] * 4


def test_every_answer_is_graded_in_the_same_state():
    """What may decide a verdict of sympy: random numbers, the order of sets of text, caches."""
    code = """
        import random
        import sympy.core.random
        from sympy.core.cache import CACHE
        from trl_miner.grading import worker

        def state():
            generators = random, sympy.core.random.rng, sympy.core.random._assumptions_rng
            drawn = [generator.random() for generator in generators]
            return drawn, hash("x"), hash(sympy.Dummy()), sum(item.cache_info().currsize for item in CACHE)

        for answer in ("5", r"\\int_0^\\infty e^{-x} dx", "5"):
            worker.reset()
            print(state())
            worker.grade(worker.Job((answer,), "", r"\\frac{5}{1}", True))
    """
    lines = script(code, PYTHONHASHSEED="0").communicate(timeout=60)[0].splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1


def script(code, **environment):
    """The code in a process of its own, which tells its workers' pids first."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_a_forked_child_gets_its_own_pool_and_leaves_the_parents_alone():
    run = script("""
        import os
        from trl_miner.grading import grade, shared_pool
        grade("math", ["\\\\boxed{0.5}"], ["1/2"])
        parents = shared_pool().pids()
        child = os.fork()
        if child == 0:
            right = grade("math", ["\\\\boxed{0.5}"], ["1/2"])[0].is_correct
            other = not set(shared_pool().pids()) & set(parents)
            os._exit(0 if right and other else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert grade("math", ["\\\\boxed{0.25}"], ["1/4"])[0].is_correct
        assert shared_pool().pids() == parents
        print("fine")
    """)
    out, err = run.communicate(timeout=60)
    assert out.strip() == "fine", err


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_no_process_outlives_its_parent(is_killed):
    """A worker in the middle of a bomb is ended by its own timer, after 2 s of CPU here."""
    run = script(f"""
        import threading, time
        from trl_miner.grading import configure, grade, shared_pool
        configure(workers=2, seconds=2)
        grade("math", ["\\\\boxed{{0.5}}", "\\\\boxed{{0.6}}"], ["1/2"] * 2)
        bomb = "\\\\boxed{{\\\\sum_{{n=1}}^{{\\\\infty}} \\\\frac{{\\\\sin(n^2)}}{{n^3+n!}} + %d}}"
        bombs = [bomb % i for i in range(2)]
        threading.Thread(target=grade, args=("math", bombs, ["1/2"] * 2), daemon=True).start()
        time.sleep(0.5)
        print(*shared_pool().pids(), flush=True)
        time.sleep({60 * is_killed})
    """)
    workers = [int(pid) for pid in run.stdout.readline().split()]
    assert len(workers) == 2
    if is_killed:
        run.kill()
    run.communicate(timeout=30)
    wait_until(lambda: gone(workers))


@pytest.mark.slow
def test_a_forked_child_that_lives_on_does_not_keep_the_workers():
    """It holds copies of the parent's lines to them; they end when the parent does all the same."""
    run = script("""
        import os, time
        from trl_miner.grading import grade, shared_pool
        grade("math", ["\\\\boxed{0.5}"], ["1/2"])
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            time.sleep(60)
            os._exit(0)
        print(child, *shared_pool().pids(), flush=True)
        time.sleep(60)
    """)
    child, *workers = map(int, run.stdout.readline().split())
    run.kill()
    run.wait()
    try:
        wait_until(lambda: gone(workers))
        assert psutil.pid_exists(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_reaches_the_whole_group_and_only_the_parent_speaks():
    run = subprocess.Popen(
        [sys.executable, "-c", """if True:
            import time
            from trl_miner.grading import grade
            try:
                grade("math", ["\\\\boxed{0.5}"], ["1/2"])
                print("ready", flush=True)
                grade("math", ["\\\\boxed{\\\\sum_{n=1}^{\\\\infty} \\\\frac{\\\\sin(n^2)}{n^3+n!}}"], ["1/2"])
            except KeyboardInterrupt:
                time.sleep(0.5)
                print(grade("math", ["\\\\boxed{0.5}"], ["1/2"])[0].is_correct)
        """],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.5)
    os.killpg(run.pid, signal.SIGINT)
    assert run.communicate(timeout=30) == ("True\n", "")


def test_a_worker_that_cannot_start_is_an_error_not_a_hang(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        RuntimeError, match="must start within 120 seconds: this one ended with status 1"
    ):
        Pool(workers=1).run([job("x")])


def test_the_ranks_of_one_machine_share_its_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    from trl_miner.grading.pool import default_workers

    assert default_workers() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert default_workers() == 4  # 64 / 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "128")
    assert default_workers() == 1
