"""One builder at a time where several hosts share a store: a lease in Redis, and a fence in the store.

`build.lock` keeps builders apart that share a kernel, and hosts where the file system's locks work between them. The
lease does so everywhere, but no lease can stop a builder that was paused beyond its end and does not know it. So each
lease has a number, larger than all before it, which its holder writes to STORE/FENCE; whoever finds a larger one there
has been overtaken and publishes nothing. The file has the last word: a Redis that does not answer lets a builder go on.

Keys are `pe:{<store>}:lease`, which ends by itself, and `pe:{<store>}:fence`, the last number; <store> is the content
of STORE/ID, drawn once, for hosts may mount the store under different paths.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread

from polyrank.index_builder.errors import BuildBusy, BuildError, LeaseLost, StoreUnavailable
from polyrank.index_builder.redis.client import BUILDING_TIMEOUT_SECONDS, connect, disconnect, translated
from polyrank.model.durable import sync_directory, sync_file, write_atomically
from polyrank.model.errors import RankingError

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# A holder on the caller's own machine is dead: the caller has build.lock.
_ACQUIRE = """
local holder = redis.call('get', KEYS[1])
if holder and string.sub(holder, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local number = math.max(tonumber(redis.call('get', KEYS[2]) or 0), tonumber(ARGV[4])) + 1
redis.call('set', KEYS[2], string.format('%d', number))
redis.call('set', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return number
"""
# A lease that ran out, or that Redis lost, is taken again as long as no other was given since.
_RENEW = """
local holder = redis.call('get', KEYS[1])
if holder == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
local last = tonumber(redis.call('get', KEYS[2]) or 0)
if holder or last > tonumber(ARGV[3]) then return 0 end
redis.call('set', KEYS[2], ARGV[3])
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Lease:
    """The right to build into a store, renewed in the background until it is released.

    Attributes:
        root: the store.
        number: larger than that of every lease before.

    Raises:
        BuildBusy: another builder holds it.
        LeaseLost: another builder has overtaken this one already.
        StoreUnavailable: Redis does not answer.
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
        """Ask whether the lease is still this builder's, in time or again.

        Raises:
            LeaseLost: another builder has overtaken this one.
        """
        try:
            held = self._renew()
        except StoreUnavailable:
            held = True  # for all that is known; the fence knows
        if not held:
            raise LeaseLost(self.root)
        self.check_fence()

    def check_fence(self) -> None:
        """Look for a later builder in the store itself.

        Raises:
            LeaseLost: there is one.
        """
        if self._highest() > self.number:
            raise LeaseLost(self.root)

    def release(self) -> None:
        """Let the next builder in."""
        self._released.set()
        self._renewer.join()
        with suppress(StoreUnavailable):  # then it ends by itself
            self._call(_RELEASE, self._holder)
        disconnect(self._client)

    def _renew_on_time(self) -> None:
        while not self._released.wait(RENEW_SECONDS):  # by the monotonic clock
            # Whoever publishes asks again: there a lease that is lost is told, and a Redis that is silent borne.
            with suppress(StoreUnavailable):
                self._renew()

    def _renew(self) -> bool:
        return self._call(_RENEW, self._holder, _milliseconds(), self.number) == 1

    def _call(self, script: str, *arguments: str | int) -> int:
        with translated():
            return int(self._client.eval(script, len(self._keys), *self._keys, *arguments))

    def _highest(self) -> int:
        try:
            return int(self._fence.read_bytes())
        except FileNotFoundError:
            return 0
        except ValueError:
            raise BuildError(f"{self._fence} is damaged; remove it when nobody builds into the store") from None


def _milliseconds() -> int:
    return round(LEASE_SECONDS * 1000)


def _machine() -> str:
    """What those have in common that a lock on a file keeps apart, containers too: the running kernel."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return token_hex(16)


def _identity(root: Path) -> str:
    """The store's own name, from STORE/ID; whoever comes first draws it."""
    path = root / "ID"
    if not path.exists():
        drawn = root / f".ID.{token_hex(8)}"
        try:
            drawn.write_text(f"{token_hex(16)}\n")
            sync_file(drawn)
            with suppress(FileExistsError):  # somebody else was faster
                os.link(drawn, path)
            sync_directory(root)
        finally:
            drawn.unlink(missing_ok=True)
    return path.read_text().strip()


@contextmanager
def leased(root: Path, url: str | None) -> Iterator[Lease | None]:
    """Hold the store's lease for the block; None where there is no Redis to hold it in.

    Raises:
        BuildBusy, LeaseLost, StoreUnavailable: see `Lease`. Where the block fails because another builder has removed
            what this one wrote, that is told instead of the failure.
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
    """Do in the block what others will see, unless another builder has overtaken this one; the caller holds a lock.

    Raises:
        LeaseLost: it has; nothing was done.
    """
    if lease is not None:
        lease.check()
    try:
        yield
    except FileNotFoundError as error:
        if lease is not None:
            raise LeaseLost(lease.root) from error
        raise
