"""The watchdogs of a run hear each other through the store in which the processes have met."""

import threading
import time

import pytest
from torch.distributed import TCPStore

from trl_miner.launching import peers
from trl_miner.launching.peers import Peers, Unreachable
from trl_miner.launching.watchdog import Watchdog

INTERVAL = 0.02


@pytest.fixture
def start(monkeypatch):
    """Start `size` processes of a run, each as a thread; return what `Peers` returns or raises."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    made = []

    def start(size):
        barrier, shared, one_run = threading.Barrier(size), [None] * size, [None] * size

        def process(rank):
            def share(mine):
                shared[rank] = mine
                barrier.wait()
                return list(shared)

            try:
                one_run[rank] = Peers(rank, size, share, INTERVAL)
            except Unreachable as error:
                one_run[rank] = error

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made.extend(one_run)
        return one_run

    yield start
    for peer in made:
        if isinstance(peer, Peers):
            peer.close()
    time.sleep(5 * INTERVAL)  # none may ask a store that is gone


def hear(listener, speaker, beats):
    """Wait until one process has heard what the other says."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        speaker.exchange({"beats": beats})
        if listener.exchange({"beats": 0}).get(speaker.rank) == {"beats": beats}:
            return True
        time.sleep(INTERVAL)
    return False


def test_a_process_that_falls_silent_is_no_longer_heard_and_others_are(start):
    zero, one, two = start(3)
    assert zero.exchange({}) == {0: {}}  # the others have nothing to say yet
    assert hear(zero, one, 1) and hear(two, one, 2) and hear(one, zero, 3)
    one.close()
    time.sleep(20 * INTERVAL)
    two.exchange({"beats": 0}), zero.exchange({"beats": 0})
    assert hear(zero, two, 4) and hear(two, zero, 5)
    assert 1 not in two.exchange({"beats": 6}) and 1 not in zero.exchange({"beats": 6})


def test_a_second_run_in_the_same_processes_hears_anew(start):
    for _ in range(2):
        zero, one = start(2)
        assert hear(zero, one, 1) and hear(one, zero, 2)
        zero.close(), one.close()
        time.sleep(10 * INTERVAL)


@pytest.mark.parametrize(("port", "reason"), [("", "MASTER_PORT"), ("9", "127.0.0.1:9 cannot be reached")])
def test_every_process_says_why_they_cannot_talk_and_the_watchdog_is_off(start, monkeypatch, caplog, port, reason):
    monkeypatch.setenv("MASTER_PORT", port)
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 0.5)
    assert all(isinstance(error, Unreachable) and reason in str(error) for error in start(2))
    dog = Watchdog(300.0)
    dog.start(0, 2, lambda mine: [mine, mine])
    assert dog._thread is None and "The watchdog is off" in caplog.text and reason in caplog.text
    dog.stop()
