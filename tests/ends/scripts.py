"""Scripts that end in an unclean way: with scans, sessions, contexts and threads that nothing closes.

Each ends with ``end()``. Then its process has 5 seconds to end. ``FILE`` is a local file of 40 row groups, ``URL`` the
same file on a server, ``SLOW`` a file on a server whose data never comes.
"""

from __future__ import annotations

import textwrap
from typing import Final, NamedTuple


class Script(NamedTuple):
    """The code of a script, its exit code, and a regular expression of all that it may write to stderr. ``first`` runs
    before anything is imported. ``slow``: it takes long to import, and another script is much like it."""

    code: str
    status: int = 0
    stderr: str = ""
    first: str = ""
    slow: bool = False


_PRELUDE: Final = """\
import asyncio, atexit, contextlib, gc, os, signal, sys, threading, time, weakref
import asyncpq
from asyncpq import blocking
FILE, URL, SLOW = sys.argv[1:]
SMALL = asyncpq.LimitOptions(unit_bytes=1 << 16, inline_decode_bytes=0)
def end(): print("end", flush=True)
"""

#: of an error that the script itself raises, and does not catch
_TRACEBACK: Final = r"Traceback \(most recent call last\):\n(  .*\n)+"


#: a name server that never answers
_SILENT_NAMES: Final = """
import socket, time
def getaddrinfo(*arguments, flags=0, find=socket.getaddrinfo, **options):
    if not flags & socket.AI_NUMERICHOST: time.sleep(1000)
    return find(*arguments, flags=flags, **options)
socket.getaddrinfo = getaddrinfo
"""

_LOOKS_UP: Final = """
    async def main():
        quick = asyncpq.RetryOptions(connect_timeout_s=0.2, max_attempts=1)
        s3 = {{"key": "a", "secret": "b", "endpoint_url": "http://lake.test", **{options}}}
        async with asyncpq.Session(storage_options={{"s3": s3}}, retry=quick) as session:
            for url in ("s3://bucket/a.parquet", "http://lake.test/a.parquet"):
                with contextlib.suppress(asyncpq.TransportError):
                    await session.open_file(url)
        end()
    asyncio.run(main())
"""

_GEVENT: Final = "from gevent import monkey; monkey.patch_all()\n"

_EVENTLET: Final = """
import warnings
with warnings.catch_warnings(action="ignore"):  # it is deprecated, and used
    import eventlet
eventlet.monkey_patch()
"""

#: in green threads: many sessions at once, and two that stay open
_GREEN: Final = """
    def request(results):
        with blocking.Session() as session, session.open_file(URL) as file:
            for batch in file.scan(limit=10):
                results.append(batch.num_rows)
                break
    results = []
    sessions = [blocking.Session(limits=SMALL) for _ in range(2)]
    scans = [iter(session.open_file(URL).scan(batch_size=10)) for session in sessions]
    threads = [threading.Thread(target=request, args=(results,)) for _ in range(20)]
    for thread in threads: thread.start()
    for scan in scans: next(scan)
    for thread in threads: thread.join()
    assert results == [10] * 20, results
    end()
"""

_STUBBORN: Final = """
        import fsspec
        from fsspec.asyn import AsyncFileSystem
        asked = asyncio.Event()
        class Stubborn(AsyncFileSystem):
            protocol = "stubborn"
            async def _info(self, *_, **__):
                asked.set()
                while True:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(1000)
            _ls = _find = _cat_file = _info
        fsspec.register_implementation("stubborn", Stubborn)
        async def opens(session):
            for open_url in (session.open_dataset, session.open_file):
                asked.clear()
                task = asyncio.create_task(open_url("stubborn://bucket/a/"))
                await asyncio.wait_for(asked.wait(), 30)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await task
"""

_FORK_WARNING = r"(.*DeprecationWarning: .*use of fork.*\n)?"  # of Python 3.12 and newer: threads run

SCRIPTS: Final[dict[str, Script]] = {
    "iterator": Script("""
        session = blocking.Session()
        batches = iter(session.open_file(FILE).scan())
        next(batches)
        end()
    """),
    "iterator of a server": Script("""
        session = blocking.Session(limits=SMALL)
        batches = iter(session.open_dataset([URL]).scan(batch_size=10))
        next(batches)
        end()
    """),
    "open_file entered": Script("""
        context = blocking.open_file(FILE)
        file = context.__enter__()
        file.count()
        end()
    """),
    "after one-off calls": Script("""
        for _ in range(2):
            with blocking.open_file(URL) as file:
                next(iter(file.scan(batch_size=10)))
        def read():
            with blocking.open_file(URL, memory_cache_bytes=1) as file:
                asked.set()
                file.read()
        asked = threading.Event()
        threading.Thread(target=read, daemon=True).start()
        asked.wait(30)
        end()
    """),
    "open_dataset entered": Script("""
        context = blocking.open_dataset([FILE])
        batches = iter(context.__enter__().scan())
        next(batches)
        end()
    """),
    "scan entered": Script("""
        session = blocking.Session(limits=SMALL)
        scan = session.open_file(URL).scan().__enter__()
        next(iter(scan))
        end()
    """),
    "suspended context manager": Script("""
        @contextlib.contextmanager
        def opened():
            with blocking.Session() as session, session.open_file(FILE) as file, file.scan() as scan:
                yield scan
        context = opened()
        next(iter(context.__enter__()))
        end()
    """),
    "suspended fixture": Script("""
        def fixture():
            session = blocking.Session()
            file = session.open_file(FILE)
            yield file
            file.close()
            session.close()
        suspended = fixture()
        next(suspended).count()
        end()
    """),
    "close in __del__": Script("""
        class Reader:
            def __init__(self):
                self.session = blocking.Session()
                self.file = self.session.open_file(FILE)
                self.scan = self.file.scan().__enter__()
            def __del__(self):
                self.scan.close()
                self.file.close()
                self.session.close()
        reader = Reader()
        reader.me = reader
        end()
    """),
    "read in __del__": Script(
        """
        class Reader:
            def __init__(self):
                self.session = blocking.Session()
                self.file = self.session.open_file(FILE)
            def __del__(self):
                self.file.count()
        reader = Reader()
        end()
        """,
        stderr=r"Exception ignored (in|while).*\n" + _TRACEBACK + r"asyncpq\.errors\.UsageError: .*\n(.*\n)?",
    ),
    "iterator collected in the loop's thread": Script("""
        session = blocking.Session(limits=SMALL, on_event=lambda event: gc.collect())
        file, other = session.open_file(FILE), session.open_file(URL)
        gc.disable()
        scan = file.scan(batch_size=10)
        cycle = [iter(scan)]
        cycle.append(cycle)
        next(cycle[0])
        inner = scan.asynchronous
        del cycle, scan
        assert "open" in repr(inner)
        other.count("id = 1")
        for _ in range(100):
            if "closed" in repr(inner): break
            time.sleep(0.01)
        assert "closed" in repr(inner), inner
        end()
    """),
    "session closed in its loop's thread": Script("""
        class Owner: pass
        session = blocking.Session(limits=SMALL, on_event=lambda event: gc.collect())
        file = session.open_file(FILE)
        batches = iter(file.scan())
        next(batches)
        gc.disable()
        owner = Owner()
        owner.me = owner
        weakref.finalize(owner, session.close)
        del owner
        try:
            file.read()
        except asyncpq.UsageError:
            pass
        try:
            for _ in range(100):
                file.count()
                time.sleep(0.01)
            sys.exit("it was not closed")
        except asyncpq.UsageError:
            end()
    """),
    "context collected in the loop's thread": Script("""
        session = blocking.Session(on_event=lambda event: gc.collect())
        file = session.open_file(FILE)
        @contextlib.contextmanager
        def opened():
            with session.open_file(URL) as file, file.scan() as scan:
                yield scan
        gc.disable()
        cycle = [opened()]
        cycle.append(cycle)
        next(iter(cycle[0].__enter__()))
        del cycle
        file.count()
        end()
    """),
    "sessions close each other": Script("""
        class Owner:
            def __del__(self):
                self.session.close()
        gc.disable()
        sessions = [blocking.Session(on_event=lambda event: gc.collect()) for _ in range(2)]
        files = [session.open_file(FILE) for session in sessions]
        for session in sessions:
            owner = Owner()
            owner.session, owner.me = session, owner
        del owner
        def read(file):
            with contextlib.suppress(asyncpq.UsageError):
                file.read()
        threads = [threading.Thread(target=read, args=(file,)) for file in files]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        end()
    """),
    "weakref.finalize": Script("""
        class Owner: pass
        session, owner = blocking.Session(), Owner()
        weakref.finalize(owner, session.close)
        batches = iter(session.open_file(URL).scan())
        next(batches)
        end()
    """),
    "atexit": Script("""
        def last():
            print(file.count(), flush=True)
            session.close()
        session = blocking.Session()
        file = session.open_file(FILE)
        atexit.register(last)
        batches = iter(file.scan())
        next(batches)
        end()
    """),
    "atexit of earlier code": Script(
        """
        session = blocking.Session()
        file = session.open_file(FILE)
        def last():
            session.close()
            file.close()
            with contextlib.suppress(asyncpq.UsageError):
                file.count()
        end()
        """,
        first="import atexit; atexit.register(lambda: last())",
    ),
    "sys.exit in on_event": Script(
        """
        def on_event(event):
            if isinstance(event, asyncpq.RequestEnded):
                end()
                sys.exit(3)
        with blocking.Session(on_event=on_event) as session:
            session.open_file(URL).read()
        """,
        status=3,
    ),
    "KeyboardInterrupt in on_event": Script(
        """
        def on_event(event):
            if isinstance(event, asyncpq.ReadEnded):
                end()
                raise KeyboardInterrupt
        session = blocking.Session(on_event=on_event)
        session.open_file(FILE).count()
        """,
        status=-2,
        stderr=_TRACEBACK + "KeyboardInterrupt\n",
    ),
    "sys.exit in on_event while nothing waits": Script(
        """
        def on_event(event):
            if armed:
                armed.clear()
                sys.exit(7)
        armed = []
        session = blocking.Session(limits=SMALL, on_event=on_event)
        batches = iter(session.open_dataset([URL]).scan(batch_size=10))
        next(batches)
        armed.append(1)
        batches.close()
        time.sleep(0.2)
        end()
        session.open_file(FILE)
        sys.exit("not reached")
        """,
        status=7,
    ),
    "sys.exit in on_event of asyncio": Script(
        """
        def on_event(event):
            if isinstance(event, asyncpq.RequestEnded):
                end()
                sys.exit(4)
        async def main():
            async with asyncpq.Session(on_event=on_event) as session:
                async with (await session.open_file(URL)).scan() as scan:
                    async for batch in scan: pass
        asyncio.run(main())
        """,
        status=4,
    ),
    "interrupt of a wait": Script(
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session = blocking.Session()
        session.open_file(URL).count()
        threading.Timer(0.3, lambda: (end(), os.kill(os.getpid(), signal.SIGINT))).start()
        session.open_file(SLOW)
        """,
        status=-2,
        stderr=_TRACEBACK + "KeyboardInterrupt\n",
    ),
    "signal handler that closes": Script("""
        def closes(*_):
            end()
            session.close()
        signal.signal(signal.SIGALRM, closes)
        session = blocking.Session()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            session.open_file(SLOW)
        except asyncpq.UsageError:
            pass
    """),
    "uncaught error": Script(
        """
        session = blocking.Session()
        for batch in session.open_file(FILE).scan(batch_size=10):
            end()
            raise ValueError("mine")
        """,
        status=1,
        stderr=_TRACEBACK + "ValueError: mine\n",
    ),
    "sys.exit in a scan": Script(
        """
        with blocking.open_file(URL, limits=SMALL) as file:
            for batch in file.scan(batch_size=10):
                end()
                sys.exit(5)
        """,
        status=5,
    ),
    "reader": Script("""
        session = blocking.Session(limits=SMALL)
        reader = session.open_file(URL).scan(batch_size=10).to_reader()
        reader.read_next_batch()
        capsule = session.open_file(FILE).scan().__arrow_c_stream__()
        end()
    """),
    "daemon thread that iterates": Script("""
        def iterate():
            while True:
                for batch in file.scan(batch_size=10): pass
        session = blocking.Session(limits=SMALL)
        file = session.open_file(FILE)
        threading.Thread(target=iterate, daemon=True).start()
        time.sleep(0.3)
        end()
    """),
    "daemon thread that waits": Script("""
        session = blocking.Session()
        threading.Thread(target=session.open_file, args=(SLOW,), daemon=True).start()
        time.sleep(0.3)
        end()
    """),
    "thread that goes on": Script("""
        def read():
            time.sleep(0.3)
            end()
            assert sum(batch.num_rows for batch in file.scan()) == file.num_rows
            print("read", flush=True)
        session = blocking.Session(limits=SMALL)
        file = session.open_file(URL)
        threading.Thread(target=read).start()
    """),
    "suspended in a pool": Script("""
        from concurrent.futures import ThreadPoolExecutor
        session = blocking.Session(limits=SMALL)
        batches = iter(session.open_file(URL).scan(batch_size=10))
        pool = ThreadPoolExecutor(2)
        pool.submit(next, batches).result()
        end()
    """),
    "forked child": Script(
        """
        session = blocking.Session()
        batches = iter(session.open_file(FILE).scan())
        next(batches)
        pid = os.fork()
        if pid == 0:
            try:
                session.open_file(FILE)
            except asyncpq.UsageError:
                sys.exit(6)
        _, status = os.waitpid(pid, 0)
        end()
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
        status=6,
        stderr=_FORK_WARNING,
    ),
    "forked child with a session": Script(
        """
        session = blocking.Session()
        batches = iter(session.open_file(FILE).scan())
        next(batches)
        pid = os.fork()
        if pid == 0:
            mine = blocking.Session()
            others = iter(mine.open_file(FILE).scan())
            next(others)
            sys.exit(6)
        _, status = os.waitpid(pid, 0)
        end()
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
        status=6,
        stderr=_FORK_WARNING,
    ),
    "asyncio session left open": Script("""
        async def main():
            global session, scan
            session = await asyncpq.Session(limits=SMALL)
            scan = await (await session.open_file(URL)).scan(batch_size=10).__aenter__()
            await anext(scan)
        asyncio.run(main())
        end()
    """),
    "asyncio loop left open": Script("""
        async def main():
            global session, scan
            session = await asyncpq.Session(limits=SMALL)
            scan = await (await session.open_file(FILE)).scan(batch_size=10).__aenter__()
            await anext(scan)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        end()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # asyncio itself complains of the loop's pending tasks
    """),
    "async generator suspended": Script("""
        async def rows():
            async with asyncpq.open_file(FILE) as file, file.scan() as scan:
                async for batch in scan:
                    yield batch
        async def main():
            global suspended
            suspended = rows()
            await anext(suspended)
        asyncio.run(main())
        end()
    """),
    "asyncio reader in a thread": Script("""
        import pyarrow as pa
        async def main():
            async with asyncpq.Session(limits=SMALL) as session:
                async with (await session.open_file(FILE)).scan(batch_size=10) as scan:
                    global reader
                    reader = await scan.to_reader()
                    await asyncio.to_thread(reader.read_next_batch)
        asyncio.run(main())
        end()
    """),
    "fsspec file left open": Script("""
        import fsspec
        fs = fsspec.filesystem("asyncpq")
        file = fs.open(FILE)
        file.read(4)
        end()
    """),
    "fsspec file read in __del__": Script(
        """
        import fsspec
        fs = fsspec.filesystem("asyncpq")
        class Reader:
            def __init__(self): self.file = fs.open(FILE)
            def __del__(self): self.file.fs.cat_file(FILE, 0, 4)
        reader = Reader()
        reader.me = reader
        end()
        """,
        stderr=r"Exception ignored (in|while).*\n" + _TRACEBACK + r"asyncpq\.errors\.UsageError: .*\n(.*\n)?",
    ),
    "server in a suspended context": Script("""
        from asyncpq.testing import ObjectServer
        context = ObjectServer.in_thread()
        server = context.__enter__()
        end()
    """),
    "filesystem that hangs": Script("""
        import fsspec
        from fsspec.implementations.memory import MemoryFileSystem
        class Hanging(MemoryFileSystem):
            protocol = "hanging"
            def info(self, *_, **__): time.sleep(1000)
            cat_file = info
        fsspec.register_implementation("hanging", Hanging)
        session = blocking.Session()
        def read():
            with contextlib.suppress(asyncpq.AsyncpqError):
                session.open_file("hanging://bucket/a.parquet")
        threading.Thread(target=read, daemon=True).start()
        time.sleep(0.3)
        end()
    """),
    "filesystem that swallows cancellation": Script(
        _STUBBORN
        + """
        async def main():
            async with asyncpq.Session() as session:
                await opens(session)
            end()
        asyncio.run(main())
        """
    ),
    "filesystem that swallows cancellation in an open session": Script(
        _STUBBORN
        + """
        async def main():
            session = await asyncpq.Session()
            await opens(session)
            end()
        asyncio.run(main())
        """
    ),
    "filesystem that swallows two cancellations in an open session": Script(
        _STUBBORN
        + """
        async def main():
            session = await asyncpq.Session()
            task = asyncio.create_task(session.open_file("stubborn://bucket/a.parquet"))
            await asyncio.wait_for(asked.wait(), 30)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.1)
            assert task.cancelled()
            end()
        asyncio.run(main())
        """
    ),
    "silent name server": Script(_LOOKS_UP.format(options={}), first=_SILENT_NAMES),
    "silent name server of s3fs": Script(
        _LOOKS_UP.format(options={"s3_additional_kwargs": {"ExpectedBucketOwner": "0"}}), first=_SILENT_NAMES, slow=True
    ),
    "silent name server of a shared cache": Script(
        """
        session = blocking.Session(shared_cache="valkey://cache.test")
        session.open_file(URL).count()
        end()
        """,
        first=_SILENT_NAMES,
        stderr="(.*cache.test.*\n)*",
    ),
    "decode threads at work": Script("""
        session = blocking.Session(limits=SMALL)
        file = session.open_file(FILE)
        scans = [iter(file.scan(where=asyncpq.col("text").like("%1_2_3%"))) for _ in range(4)]
        def read(scan):
            with contextlib.suppress(asyncpq.AsyncpqError):
                list(scan)
        for scan in scans:
            threading.Thread(target=read, args=(scan,), daemon=True).start()
        time.sleep(0.05)
        end()
    """),
    "task in a worker process": Script("""
        import functools, types
        from asyncpq.distributed.build_tasks import worker_processes
        async def main():
            with contextlib.suppress(asyncpq.UsageError):
                async with worker_processes(1) as run:
                    await run(types.SimpleNamespace(run=functools.partial(time.sleep, 1000)))
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        time.sleep(0.5)
        end()
    """),
    "index build at work": Script(
        """
        import tempfile
        folder = tempfile.mkdtemp()
        session = blocking.Session()
        def build():
            with contextlib.suppress(asyncpq.AsyncpqError):
                from asyncpq.indexing import Keys
                session.build_index([FILE] , [Keys("id")], at=folder + "/index/")
        threading.Thread(target=build, daemon=True).start()
        time.sleep(0.2)
        end()
    """,
        stderr=r"(.* could not be recorded: .*\n)?",
    ),
    "disk cache": Script("""
        import tempfile
        session = blocking.Session(disk_cache=tempfile.mkdtemp())
        batches = iter(session.open_file(URL).scan(batch_size=10))
        next(batches)
        end()
    """),
    "DuckDB over a scan": Script("""
        import duckdb
        session = blocking.Session()
        scan = session.open_file(FILE).scan()
        assert len(duckdb.sql("from scan limit 3").fetchall()) == 3
        end()
    """),
    "DuckDB that goes on": Script("""
        import duckdb
        session = blocking.Session(limits=SMALL)
        scan = session.open_file(URL).scan(batch_size=10)
        found = duckdb.execute("from scan")
        assert len(found.fetchmany(3)) == 3
        end()
    """),
    "DuckDB over a dataset": Script("""
        import duckdb, asyncpq.duckdb
        session = blocking.Session()
        rows = asyncpq.duckdb.dataset(session.open_dataset([FILE]))
        assert len(duckdb.sql("from rows where id >= 5 limit 3").fetchall()) == 3
        end()
    """),
    "Polars over a file": Script("""
        import polars, asyncpq.polars
        session = blocking.Session()
        frame = asyncpq.polars.scan(session.open_file(FILE))
        assert frame.head(3).collect().height == 3
        end()
    """),
    "gevent": Script(_GREEN, first=_GEVENT),
    "eventlet": Script(_GREEN, first=_EVENTLET),
    "gevent that patches late": Script(_GEVENT + textwrap.dedent(_GREEN), stderr=r"(.*MonkeyPatchWarning.*\n)?"),
    "eventlet that patches late": Script(
        _EVENTLET + textwrap.dedent(_GREEN), stderr=r"(.* were not greened.*\n)?", slow=True
    ),
}


def source(name: str) -> str:
    """Return the code of a script with what all scripts import."""
    script = SCRIPTS[name]
    return "\n".join((script.first, _PRELUDE, textwrap.dedent(script.code)))
