"""How the watchdogs of a run's processes talk to each other, apart from the collectives of the training.

The others connect to process 0, send their states, and are sent the states of all. On one machine process 0 listens on
loopback, else on the one address at which the other machines reach it. Each message is signed with a secret of the
run, for one connection and one place in it: nobody else is sent a state, and nobody can invent or repeat one.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import __version__

logger = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for a connection, for the first message on it, and for an answer of process 0
STARTING_SECONDS = 60.0  # for the first answer of process 0
MOST_STRANGERS = 64  # connections without a signed message so far; one more drops the oldest
LONGEST = 2**16  # bytes of one process's message
REPORT_SECONDS = 60.0  # between two warnings about strangers
NONCE, LENGTH, TAG = 16, 4, 32  # bytes


class Unreachable(RuntimeError):
    """The watchdogs cannot talk to each other."""


class Peers:
    """The last states of all processes.

    Args:
        rank: This process.
        size: Number of processes, which all construct their `Peers` at the same time.
        share: Returns, by rank, what the processes pass to it. Every process calls it equally often.
        interval: Seconds between two looks of the watchdog.

    Raises:
        Unreachable: On every process, if one of them does not reach process 0.
    """

    def __init__(self, rank: int, size: int, share: Callable[[Any], list[Any]], interval: float) -> None:
        self.rank, self.size, self._interval = rank, size, interval
        self._mine: dict[str, Any] = {}
        self._turn = 0  # messages that process 0 has heard or sent
        self._heard: dict[int, tuple[int, dict[str, Any]]] = {}  # the turn of each rank's last state, and the state
        self._known: dict[int, int] = {}  # the turns that `exchange` has returned
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._num_ignored, self._reported = 0, -REPORT_SECONDS
        self._stop, self._is_connected = threading.Event(), threading.Event()
        problem = self._connect(share)
        if problem is not None:
            self.close()
            raise Unreachable(problem)

    def _connect(self, share: Callable[[Any], list[Any]]) -> str | None:
        """Start talking, and return what is wrong, the same on every process."""
        places = share((_machine(), _master_address(), _version()))
        if len(versions := {version for *_, version in places}) > 1:
            return f"the processes run several versions of trl_miner ({', '.join(sorted(versions))})"
        machine = places[0][0]
        elsewhere = [address for other, address, _ in places if other != machine]
        address = next(filter(None, elsewhere), None) if elsewhere else "127.0.0.1"
        listener = _listen(address) if self.rank == 0 and address else None
        # The secret travels as the training's own data does: never on a command line, in a file or in a store.
        offer = listener and (*listener.getsockname()[:2], secrets.token_bytes(32))
        own_address, port, secret = share(offer)[0] or (None, 0, b"")
        if own_address is None:
            return f"process 0 cannot listen at MASTER_ADDR, which is {address} for the other machines"
        near = own_address if places[self.rank][0] == machine else address
        talk = self._serve(listener, secret) if listener else self._tell(near, port, secret)
        # In a thread of its own: neither a stopped process 0 nor a stranger may hold up the watchdog.
        name = "trl_miner.launching.watchdog.peers"
        threading.Thread(target=asyncio.run, args=(talk,), name=name, daemon=True).start()
        is_there = self.rank == 0 or self._is_connected.wait(STARTING_SECONDS)
        missing = [str(rank) for rank, there in enumerate(share(is_there)) if not there]
        return f"process {', '.join(missing)} did not reach process 0 at {address}:{port}" if missing else None

    def exchange(self, mine: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Tell the others this process's state, and return the states of all that have spoken since the last call."""
        self._mine = mine
        news = {self.rank: mine}
        for rank, (turn, state) in tuple(self._heard.items()):
            if rank != self.rank and state and turn != self._known.get(rank):  # empty: it has only just connected
                self._known[rank] = turn
                news[rank] = state
        return news

    def close(self) -> None:
        """Stop talking."""
        self._stop.set()

    # The methods below run in the thread of their own.

    async def _serve(self, listener: socket.socket, secret: bytes) -> None:
        """Process 0: hear all others until the end."""

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.CancelledError):  # at the end; Python 3.11 prints a traceback of it
                await self._hear(_Channel(reader, writer, secret, is_caller=False))

        async with await asyncio.start_server(hear, sock=listener):
            while not self._stop.is_set():
                await asyncio.sleep(self._interval / 2)

    async def _hear(self, channel: "_Channel") -> None:
        """Process 0: answer each state of another process with those of all, and drop a stranger."""
        self._strangers[channel.writer] = None
        if len(self._strangers) > MOST_STRANGERS:
            self._ignore(next(iter(self._strangers)), "too many at once")
        try:
            async with asyncio.timeout(PATIENCE):
                await channel.greet()
                rank, state = await channel.receive(LONGEST)
            self._strangers.pop(channel.writer, None)
            while True:
                self._turn += 1
                self._heard |= {rank: (self._turn, state), 0: (self._turn, self._mine)}
                await channel.send([(rank, *heard) for rank, heard in self._heard.items()])
                rank, state = await channel.receive(LONGEST)
        except (OSError, EOFError, ValueError) as error:
            if channel.writer in self._strangers or isinstance(error, ValueError):
                self._ignore(channel.writer, str(error) or "it said nothing in time")
        finally:
            self._strangers.pop(channel.writer, None)
            channel.writer.transport.abort()

    def _ignore(self, writer: asyncio.StreamWriter, reason: str) -> None:
        self._strangers.pop(writer, None)
        self._num_ignored += 1
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            peer = writer.get_extra_info("peername") or ("an unknown address",)
            logger.warning(
                "The watchdog has ignored %d connections that did not prove to be of this run, the last from %s: %s.",
                *(self._num_ignored, peer[0], reason),
            )
        writer.transport.abort()

    async def _tell(self, address: str | None, port: int, secret: bytes) -> None:
        """Another process: talk to process 0, and connect again where that fails."""
        while not self._stop.is_set():
            with contextlib.suppress(OSError, EOFError, ValueError):
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await asyncio.open_connection(address, port)
                try:
                    await self._converse(_Channel(reader, writer, secret, is_caller=True))
                finally:
                    writer.transport.abort()
            await asyncio.sleep(self._interval / 2)

    async def _converse(self, channel: "_Channel") -> None:
        async with asyncio.timeout(PATIENCE):
            await channel.greet()
        while not self._stop.is_set():
            async with asyncio.timeout(PATIENCE):
                await channel.send((self.rank, self._mine))
                heard = await channel.receive(LONGEST * self.size)
            self._heard = {rank: (turn, state) for rank, turn, state in heard}
            self._is_connected.set()
            await asyncio.sleep(self._interval / 2)


class _Channel:
    """One end of a connection, on which a message is signed for its direction and its number."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, is_caller: bool
    ) -> None:
        self.reader, self.writer, self._key, self._is_caller = reader, writer, secret, is_caller
        self._num_sent = self._num_received = 0

    async def greet(self) -> None:
        """Agree on a key for this connection alone: what was said on another one cannot be repeated on it."""
        ours = secrets.token_bytes(NONCE)
        self.writer.write(ours)
        theirs = await self.reader.readexactly(NONCE)
        self._key = hmac.digest(self._key, ours + theirs if self._is_caller else theirs + ours, "sha256")

    def _sign(self, text: bytes, *, is_from_caller: bool, number: int) -> bytes:
        return hmac.digest(self._key, bytes([is_from_caller]) + number.to_bytes(8, "big") + text, "sha256")

    async def send(self, content: Any) -> None:
        """Send what JSON can hold."""
        text = json.dumps(content).encode()
        tag = self._sign(text, is_from_caller=self._is_caller, number=self._num_sent)
        self._num_sent += 1
        self.writer.write(len(text).to_bytes(LENGTH, "big") + tag + text)
        await self.writer.drain()

    async def receive(self, longest: int) -> Any:
        """Return what the other end has sent. Raise ValueError if that is not signed, or longer than `longest`."""
        length = int.from_bytes(await self.reader.readexactly(LENGTH), "big")
        if length > longest:
            raise ValueError(f"a message of {length} bytes, at most {longest} are read")
        tag, text = await self.reader.readexactly(TAG), await self.reader.readexactly(length)
        if not hmac.compare_digest(
            tag, self._sign(text, is_from_caller=not self._is_caller, number=self._num_received)
        ):
            raise ValueError("a message without the signature of this run")
        self._num_received += 1
        return json.loads(text)


def _machine() -> tuple[str, ...]:
    """Return what is equal for processes that share a loopback device: kernel, network namespace and host name."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/net")]
    return tuple(parts)


def _version() -> str:
    return __version__


def _master_address() -> str | None:
    """Return the address of process 0 as this machine knows it."""
    try:
        return str(socket.getaddrinfo(os.environ.get("MASTER_ADDR"), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _listen(address: str) -> socket.socket | None:
    """Listen where others reach this machine at `address`, and nowhere else; None: it cannot be done."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError):
        return socket.create_server((address, 0), family=family, backlog=128)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing, but tells which of our addresses a gateway has put behind it
        return socket.create_server((probe.getsockname()[0], 0), family=family, backlog=128)
    return None
