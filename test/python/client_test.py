"""Runs every case with the installed version of queen-mq: QUEEN_URL=... python client_test.py [CASE...]

Prints a line per case and a summary; the exit code is 0 when nothing failed. A case of later.py passes by failing:
what it asks for is not served yet. The day it is, the case fails here and moves to cases.py.
"""

import asyncio
import contextlib
import importlib.metadata
import io
import os
import sys
import time
import traceback
import uuid

from queen import Queen

import cases
import consume_cases  # noqa: F401 - adds its cases
import ephemeral_cases  # noqa: F401 - the same
import later

VERSION = importlib.metadata.version("queen-mq")
MAJOR = int(VERSION.split(".")[0])
CASE_TIMEOUT_SECONDS = 60


class Env:
    """What a case gets: a client, a queue name of its own, and the client's version."""

    def __init__(self, url, client, queue):
        self.url = url
        self.client = client
        self.queue_name = queue
        self.major = MAJOR
        self._more = []

    def queue(self, suffix=""):
        """A builder for the queue of this case, or for another one named after it."""
        name = self.queue_name + suffix
        if name not in self._more:
            self._more.append(name)
        return self.client.queue(name)

    def another_client(self):
        return Queen(self.url)

    async def clean_up(self):
        for name in self._more:
            await self.client.queue(name).delete()


def missing(error):
    """Whether a failure says that the broker has no such route. Any other failure, and a 404 of something that is
    not a broker, is a fault."""
    if isinstance(error, later.NotServed):
        return error.code == "no_such_route"
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    if response is not None:
        try:
            body = response.json()
        except ValueError:
            return False
    return isinstance(body, dict) and body.get("code") == "no_such_route"


async def run_one(url, name, case):
    client = Queen(url, retry_attempts=1)
    env = Env(url, client, f"py.{MAJOR}.{name.replace(' ', '-')}.{uuid.uuid4().hex[:8]}")
    try:
        try:
            await asyncio.wait_for(case(env), CASE_TIMEOUT_SECONDS)
        except BaseException:
            # What went wrong first is the result; queues left behind are not.
            with contextlib.suppress(Exception):
                await env.clean_up()
            raise
        await env.clean_up()
    finally:
        await client.close()


def attempt(url, name, case):
    """Runs a case; the client prints a lot, which is only of interest when the case fails."""
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            asyncio.run(run_one(url, name, case))
        return None, ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the case's result
        return error, noise.getvalue() + traceback.format_exc()


def main(chosen):
    url = os.environ.get("QUEEN_URL")
    if not url:
        print("client_test.py: QUEEN_URL is not set", file=sys.stderr)
        return 2
    print(f"queen-mq {VERSION} against {url}")
    passed = failed = 0
    for listed, expect_missing in ((cases.CASES, False), (later.CASES, True)):
        for name, majors, reason, case in listed:
            if MAJOR not in majors or (chosen and name not in chosen):
                continue
            began = time.monotonic()
            error, detail = attempt(url, name, case)
            took = time.monotonic() - began
            if expect_missing:
                good = error is not None and missing(error)
                text = f"not served yet ({reason})" if good else ""
                if error is None:
                    text = f"is served now: move it to cases.py (was: {reason})"
            else:
                good, text = error is None, ""
            print(f"{'ok  ' if good else 'FAIL'}  {took:5.1f}s  {name}{'  ' + text if text else ''}")
            if not good and error is not None:
                print("\n".join("        " + line for line in detail.rstrip().splitlines()[-40:]))
            passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    if passed + failed == 0:
        print("client_test.py: no such case", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
