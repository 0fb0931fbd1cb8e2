"""Who is at work on a store: drivers share it, and whoever removes or moves shards has it alone.

In a directory it is a lock of the file system (flock) on the file that marks a store. It ends with the process, however
that ends, and holds between machines where the file system's locks do (NFS from version 3 on, with its lock service).

An object store has no locks. There everybody who is at work keeps a *lease*: an object in `leases/` that is written
again every minute. Who comes writes a lease and then lists the others, so of two who come at once at least one sees the
other. A lease that was not renewed for five minutes, by the clock of the server, has no holder any more: a killed
driver keeps others waiting for no longer.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seesaw.results.errors import EnvironmentFault, SeesawError
from seesaw.results.store.store import LEASES, MARK, Store

__all__ = ["alone", "at_work"]

RENEWED = 60.0  #: seconds after which a lease is written again
HELD = 300.0  #: seconds after which a lease that was not has no holder


@contextmanager
def at_work(store: Store) -> Iterator[None]:
    """Keep a store from being emptied or moved while the block runs; others may be at work on it at the same time.

    A store that can only be read is left as it is.

    Raises:
        EnvironmentFault: somebody removes or moves shards of it at this moment.
    """
    busy = f"store '{store.root}' is being cleaned or moved by another seesaw; wait for its end"
    with _locked(store, fcntl.LOCK_SH, busy) if store.local else _leased(store, "work", ("alone",), busy):
        yield


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Have a store for oneself while the block runs.

    Raises:
        EnvironmentFault: somebody is at work on it, or its file system cannot tell.
    """
    busy = f"another seesaw is at work on the store '{store.root}'; wait for it, or stop it"
    with _locked(store, fcntl.LOCK_EX, busy) if store.local else _leased(store, "alone", ("alone", "work"), busy):
        yield


@contextmanager
def _locked(store: Store, kind: int, busy: str) -> Iterator[None]:
    exclusive = kind == fcntl.LOCK_EX
    try:
        handle = os.open(store.path(MARK), os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY, 0o666)
    except OSError as error:
        if exclusive:
            raise EnvironmentFault(
                f"store '{store.root}' cannot be changed: {os.strerror(error.errno or 0)}"
            ) from error
        yield  # an older store without a mark, that can only be read
        return
    try:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(busy) from None
        except OSError as error:
            if exclusive:  # a driver works without a lock where there are none; nothing is removed or moved there
                raise EnvironmentFault(
                    f"the file system of the store '{store.root}' has no locks ({os.strerror(error.errno or 0)}), so "
                    "nobody can tell whether a driver is at work on it"
                ) from error
        yield
    finally:
        os.close(handle)


@contextmanager
def _leased(store: Store, kind: str, against: tuple[str, ...], busy: str) -> Iterator[None]:
    own = f"{kind}-{uuid.uuid4().hex}"
    store.keep(f"{LEASES}/{own}", f"{os.uname().nodename} {os.getpid()}".encode())
    over = threading.Event()
    renewing = threading.Thread(target=_renew, args=(store, own, over), name="seesaw-lease", daemon=True)
    try:
        written = {info.base_name: info.mtime_ns for info in store.entries(LEASES)}
        now = written.get(own) or 0
        if any(
            other != own and other.startswith(against) and now - (when or 0) < HELD * 1e9
            for other, when in written.items()
        ):
            raise EnvironmentFault(f"{busy} (after a kill it counts as at work for {HELD / 60:.0f} minutes)")
        renewing.start()
        yield
    finally:
        over.set()
        if renewing.ident is not None:
            renewing.join()
        with suppress(SeesawError, OSError):  # it lapses by itself
            store.remove(f"{LEASES}/{own}")


def _renew(store: Store, own: str, over: threading.Event) -> None:
    while not over.wait(RENEWED):
        with suppress(SeesawError, OSError):  # the store is away; whoever is at work waits for it, too
            store.keep(f"{LEASES}/{own}", f"{os.uname().nodename} {os.getpid()}".encode())
