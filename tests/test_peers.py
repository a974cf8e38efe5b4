"""The watchdogs of a run hear each other, and nobody else hears them or is heard."""

import contextlib
import json
import os
import socket
import threading
import time

import psutil
import pytest

from trl_miner.launching import peers
from trl_miner.launching.peers import LENGTH, NONCE, TAG, Peers, Unreachable
from trl_miner.launching.watchdog import Watchdog

INTERVAL = 0.02


def listening():
    return {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}


def start(size=2, make=Peers):
    """Start `size` processes of a run, each as a thread; return what `make` returns or raises, and who listens."""
    before, barrier, shared, made = listening(), threading.Barrier(size), [None] * size, [None] * size

    def process(rank):
        def share(mine):
            shared[rank] = mine
            barrier.wait()
            values = list(shared)
            barrier.wait()
            return values

        place.rank = rank
        try:
            made[rank] = make(rank, size, share, INTERVAL)
        except Unreachable as error:
            made[rank] = error

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made, listening() - before


place = threading.local()


@pytest.fixture
def run():
    """Start two processes that exchange their states; return them and the address at which process 0 listens."""
    (zero, one), (address,) = start()
    yield zero, one, address
    zero.close()
    one.close()


def hear(listener, speaker, beats):
    """Wait until one process has heard what the other says."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        speaker.exchange({"beats": beats})
        if listener.exchange({"beats": 0}).get(speaker.rank) == {"beats": beats}:
            return True
        time.sleep(INTERVAL)
    return False


def test_processes_of_one_machine_talk_on_loopback_alone(run):
    zero, one, (address, _) = run
    assert address == "127.0.0.1"
    assert zero.exchange({}) == {0: {}}  # the other has connected, and has nothing to say yet
    assert hear(zero, one, 7) and hear(one, zero, 8)


def test_process_0_may_end_first(caplog):
    (zero, one), _ = start()
    zero.close()
    name = "trl_miner.launching.watchdog.peers"
    deadline = time.monotonic() + 5
    while sum(thread.name == name for thread in threading.enumerate()) > 1 and time.monotonic() < deadline:
        time.sleep(INTERVAL)
    one.close()
    assert caplog.text == ""


def test_a_process_that_falls_silent_is_no_longer_heard_and_others_are():
    (zero, one, two), _ = start(3)
    assert hear(zero, one, 1) and hear(two, one, 2)
    one.close()
    time.sleep(10 * INTERVAL)
    two.exchange({"beats": 0}), zero.exchange({"beats": 0})
    assert hear(zero, two, 3) and hear(two, zero, 4)
    assert 1 not in two.exchange({"beats": 5}) and 1 not in zero.exchange({"beats": 5})
    zero.close(), two.close()


def test_between_machines_only_the_address_of_the_training_is_listened_on(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.5")
    monkeypatch.setattr(peers, "_machine", lambda: (place.rank > 0,))
    (zero, one, two), ((address, _),) = start(3)
    assert address == "127.0.0.5"
    assert hear(two, one, 7) and hear(one, zero, 8)
    for process in (zero, one, two):
        process.close()


def test_a_stranger_is_told_nothing_and_changes_nothing(run, monkeypatch, caplog):
    zero, one, address = run
    assert hear(zero, one, 1)
    text = json.dumps([1, {"beats": 666}]).encode()
    unsigned = os.urandom(NONCE) + len(text).to_bytes(LENGTH, "big") + os.urandom(TAG) + text
    huge = os.urandom(NONCE) + b"\xff" * LENGTH + bytes(100_000)
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), unsigned, huge):
        with socket.create_connection(address, timeout=5) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: stranger.recv(1000), b""))  # noqa: B023
            assert len(answer) <= NONCE
    assert hear(zero, one, 2) and hear(one, zero, 3)
    assert zero.exchange({"beats": 4}).get(1, {}).get("beats") != 666
    (warning,) = caplog.messages  # one in a minute
    assert "The watchdog has ignored 1 connections" in warning and "127.0.0.1" in warning


def test_strangers_that_say_nothing_do_not_keep_a_process_from_connecting(run, monkeypatch):
    zero, one, address = run
    monkeypatch.setattr(peers, "MOST_STRANGERS", 5)
    strangers = [socket.create_connection(address, timeout=5) for _ in range(20)]
    for stranger in strangers[-3:]:
        stranger.sendall(b"slow")
    assert hear(zero, one, 1)
    late = [writer for writer in list(zero._strangers)]
    assert len(late) <= 5
    monkeypatch.setattr(peers, "PATIENCE", 0.1)
    with socket.create_connection(address, timeout=5) as stranger:
        assert len(b"".join(iter(lambda: stranger.recv(1000), b""))) == NONCE  # ended after a tenth of a second
    for stranger in strangers:
        stranger.close()


def test_what_a_process_has_said_cannot_be_repeated(monkeypatch):
    """A recorder stands between the two, and says again what it has heard."""
    recorded = []
    channel_send = peers._Channel.send

    async def record(channel, content):
        write = channel.writer.write
        channel.writer.write = lambda data: (recorded.append((channel._is_caller, data)), write(data))
        await channel_send(channel, content)
        channel.writer.write = write

    monkeypatch.setattr(peers._Channel, "send", record)
    (zero, one), (address,) = start()
    assert hear(zero, one, 1)
    one.close()
    time.sleep(10 * INTERVAL)
    zero.exchange({"beats": 0})
    said = [data for is_caller, data in list(recorded) if is_caller]
    for message in said[:3], said[-1:]:
        with socket.create_connection(address, timeout=5) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(bytes(NONCE) + b"".join(message))
            assert len(b"".join(iter(lambda: stranger.recv(1000), b""))) <= NONCE  # noqa: B023
    assert 1 not in zero.exchange({"beats": 0})
    zero.close()


@pytest.mark.parametrize(
    ("address", "versions", "reason"),
    [
        ("127.0.0.5", "11", "process 1 did not reach process 0 at 127.0.0.5"),
        ("no.such.host.invalid", "11", "process 0 cannot listen at MASTER_ADDR"),
        ("127.0.0.1", "12", "several versions of trl_miner (1, 2)"),
    ],
)
def test_every_process_says_why_they_cannot_talk(monkeypatch, address, versions, reason):
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setattr(peers, "_machine", lambda: (place.rank,))
    monkeypatch.setattr(peers, "STARTING_SECONDS", 0.2)
    monkeypatch.setattr(peers.asyncio, "open_connection", lambda *_: (_ for _ in ()).throw(OSError))
    monkeypatch.setattr(peers, "_version", lambda: versions[place.rank])
    errors, _ = start()
    assert all(isinstance(error, Unreachable) and reason in str(error) for error in errors)


def test_a_watchdog_without_the_others_is_off_and_says_so(monkeypatch, caplog):
    def unreachable(*args):
        raise Unreachable("process 1 did not reach process 0")

    monkeypatch.setattr("trl_miner.launching.watchdog.Peers", unreachable)
    dog = Watchdog(300.0)
    dog.start(0, 2, lambda mine: [mine, mine])
    assert dog._thread is None and "The watchdog is off" in caplog.text and "MASTER_ADDR" in caplog.text
    dog.stop()
