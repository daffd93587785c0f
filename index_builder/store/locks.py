"""Who may change a store: locks between processes, a lease between hosts, and a fence in the store itself.

    build.lock          held by the one builder
    pointer.lock        held while CURRENT or the list of generations changes
    log/write.lock      held while an update is written, and while CURRENT changes
    jobs/<id>.lock      held by the process that runs a job: building/job_records.py

A process that needs several of the first three takes them in this order.

A lock is a flock on a file. The kernel frees it however its holder dies. It works between processes that share a
kernel, and between hosts if their file system shares locks. The holder writes into the file who it is. Nobody waits for
a lock without an end: the holder may hang. The lease works between all hosts: it is a key in Redis
that expires unless its holder renews it. But no lease can stop a builder that was paused until after the expiry and
does not know it. So each lease has a number, larger than all before, and its holder writes the number to STORE/FENCE. A
builder that finds a larger number there has been overtaken and publishes nothing. While Redis does not answer, a
builder goes on: the fence decides.

The keys in Redis are `pe:{<store>}:lease`, and `pe:{<store>}:fence` for the last number. <store> is the content of
STORE/ID, drawn once, because hosts may mount the store under different paths.
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread

from polyrank.index_builder.errors import BuildBusy, BuildError, LeaseLost, StoreBusy, StoreUnavailable
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS, connect, disconnect, translated
from polyrank.model.durable import make_once, write_atomically
from polyrank.model.errors import RankingError
from polyrank.model.inputs import open_input, read_input

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0

# Locks are held for moments, apart from build.lock and those of jobs, for which nobody waits.
WAIT_SECONDS = 10.0

_RETRY_SECONDS = 0.01
_HOLDER_BYTES = 300
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def locked(path: Path, *, within_seconds: float | None = None) -> Iterator[None]:
    """Hold a lock for the block; raises StoreBusy, which says who holds it, if it is not free in time.

    `within_seconds`: how long to wait; None: `WAIT_SECONDS`.
    """
    with try_locked(path, within_seconds=WAIT_SECONDS if within_seconds is None else within_seconds) as is_held:
        if not is_held:
            raise StoreBusy(path, holder_of(path))
        yield


@contextmanager
def try_locked(path: Path, *, within_seconds: float = 0.0) -> Iterator[bool]:
    """Hold a lock for the block if it is free in time; yields whether it is held.

    The lock's file is created and never removed: removing it would let two holders in. A link in its place is refused.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        is_held = take_lock(descriptor, within_seconds)
        if is_held:
            since = datetime.now(UTC).isoformat(timespec="seconds")
            with suppress(OSError):  # the disk may be full: the lock holds all the same
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
        yield is_held
    finally:
        os.close(descriptor)


@contextmanager
def build_lock(root: Path) -> Iterator[None]:
    """Be the only builder of a store on this host for the block; raises BuildBusy if another one is at work."""
    lock = root / "build.lock"
    with try_locked(lock) as is_held:
        if not is_held:
            raise BuildBusy(f"another build into {root} is running: {holder_of(lock)}; wait for it or cancel it")
        yield


def holder_of(path: Path) -> str:
    """Return who holds a lock, in words."""
    try:
        with open_input(path) as file:
            holder = file.read(_HOLDER_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        holder = ""
    return holder if holder.isprintable() and holder else "another process"


def take_lock(descriptor: int, within_seconds: float) -> bool:
    """Lock an open file or directory until it is closed; returns False if it is not free in time."""
    until = time.monotonic() + within_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_RETRY_SECONDS)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# The caller holds build.lock, so a holder on the caller's own machine is dead and its lease can be taken.
# Of a fence with more digits Lua's numbers would lose the last one.
_ACQUIRE = """
local last = redis.pcall('get', KEYS[2])
if last and (type(last) == 'table' or #last > 15 or not string.match(last, '^%d+$')) then return -1 end
local holder = redis.call('get', KEYS[1])
if holder and string.sub(holder, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local number = math.max(tonumber(last or 0), tonumber(ARGV[4])) + 1
if number > 999999999999999 then return -1 end
redis.call('set', KEYS[2], string.format('%d', number))
redis.call('set', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return number
"""
# A lease that expired, or that Redis lost, is taken again if no other was given since.
_RENEW = """
local holder = redis.call('get', KEYS[1])
if holder == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
local last = tonumber(redis.call('get', KEYS[2]) or 0)
if holder or last > tonumber(ARGV[3]) then return 0 end
redis.call('set', KEYS[2], ARGV[3])
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_NO_FENCE = -1
_FENCE = re.compile(rb"\d{1,15}\n?")
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Lease:
    """The right to build into a store, renewed in the background until it is released.

    Attributes:
        number: larger than that of every lease before.

    Raises:
        BuildBusy: another builder holds it.
        BuildError: the number of the last lease is damaged, in Redis or in the store; the message says what to do.
        LeaseLost: another builder has overtaken this one already.
    """

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self._fence = root / "FENCE"
        store = _identity(root)
        self._keys = f"pe:{{{store}}}:lease", f"pe:{{{store}}}:fence"
        self._client = connect(url, BUILDING_TIMEOUT_SECONDS)
        try:
            machine, name = f"{_machine()} ", token_hex(16)
            self._holder = machine + name
            self.number = self._call(_ACQUIRE, machine, name, _milliseconds(), self._highest())
            if self.number == _NO_FENCE:
                fence = self._keys[1]
                raise BuildError(
                    f"{fence} in Redis is damaged: it is not the number of a lease; when nobody builds into {root}, "
                    f"remove it: redis-cli DEL '{fence}'"
                )
            if not self.number:
                raise BuildBusy(
                    f"another build into {root} runs on another machine, or ended there without a word less than "
                    f"{LEASE_SECONDS:.0f} s ago; wait for it"
                )
            self.check_fence()
            write_atomically(self._fence, f"{self.number}\n".encode())
        except BaseException:
            disconnect(self._client)
            raise
        self._released = Event()
        self._renewer = Thread(target=self._renew_on_time, name="lease", daemon=True)
        self._renewer.start()

    def check(self) -> None:
        """Renew the lease, and raise LeaseLost if another builder has overtaken this one."""
        try:
            is_held = self._renew()
        except StoreUnavailable:
            is_held = True  # as far as is known; the fence decides
        if not is_held:
            raise LeaseLost(self.root)
        self.check_fence()

    def check_fence(self) -> None:
        """Raise LeaseLost if the store itself names a later builder."""
        if self._highest() > self.number:
            raise LeaseLost(self.root)

    def release(self) -> None:
        """Stop renewing, and let the next builder in."""
        self._released.set()
        self._renewer.join()
        with suppress(StoreUnavailable):  # then it expires by itself
            self._call(_RELEASE, self._holder)
        disconnect(self._client)

    def _renew_on_time(self) -> None:
        while not self._released.wait(RENEW_SECONDS):  # by the monotonic clock
            # The result does not matter here: `check` asks again before anything is published.
            with suppress(StoreUnavailable):
                self._renew()

    def _renew(self) -> bool:
        return self._call(_RENEW, self._holder, _milliseconds(), self.number) == 1

    def _call(self, script: str, *arguments: str | int) -> int:
        with translated():
            return int(self._client.eval(script, len(self._keys), *self._keys, *arguments))

    def _highest(self) -> int:
        try:
            content = read_input(self._fence)
        except FileNotFoundError:
            return 0
        if not _FENCE.fullmatch(content):
            raise BuildError(f"{self._fence} is damaged; remove it when nobody builds into the store")
        return int(content)


def _milliseconds() -> int:
    return round(LEASE_SECONDS * 1000)


def _machine() -> str:
    """Name the running kernel: build.lock keeps processes apart that share it, also in containers."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return token_hex(16)


def _identity(root: Path) -> str:
    """Read the store's own name from STORE/ID, or draw it. Of several processes that draw it, the first one wins."""
    path = root / "ID"
    if not path.exists():
        make_once(path, f"{token_hex(16)}\n".encode())
    return read_input(path).decode().strip()


@contextmanager
def leased(root: Path, url: str | None) -> Iterator[Lease | None]:
    """Hold the store's lease for the block; None if there is no Redis.

    Raises:
        BuildBusy, StoreUnavailable, LeaseLost: see `Lease`. LeaseLost also takes the place of an error in the block if
            another builder has taken over: that builder has then removed the files that this one misses.
    """
    if url is None:
        yield None
        return
    lease = Lease(root, url)
    try:
        yield lease
    except LeaseLost:
        raise
    except (OSError, RankingError) as error:
        try:
            lease.check()
        except LeaseLost as lost:
            raise lost from error
        raise
    finally:
        lease.release()


@contextmanager
def fenced(lease: Lease | None) -> Iterator[None]:
    """Run the block, which changes what others see; if another builder has taken over, raise LeaseLost instead."""
    if lease is not None:
        lease.check()
    try:
        yield
    except FileNotFoundError as error:
        if lease is not None:
            raise LeaseLost(lease.root) from error
        raise
