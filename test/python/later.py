"""What the client offers and the broker does not serve yet.

Each case uses the feature for real and asserts that it worked, so it is ready to move to cases.py.
"""

import httpx

CASES = []


class NotServed(Exception):
    """The client hid the refusal of the broker; the case asked again and got this code."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def later(name, reason, majors=(0, 2)):
    def add(case):
        CASES.append((name, majors, reason, case))
        return case

    return add


@later("message trace", "traces")
async def trace(env):
    answers = []

    async def handle(message):
        answers.append(await message["trace"]({"data": {"step": "done"}, "traceName": "py"}))

    await env.queue().push([{"data": {"n": 1}}])
    await env.queue().batch(1).limit(1).consume(handle)
    assert len(answers) == 1, answers
    if answers[0].get("success") is not True:
        refusal = httpx.post(env.url + "/api/v1/traces", json={})
        raise NotServed(refusal.json().get("code"))


@later("stream", "streams", majors=(2,))
async def stream(env):
    from queen import Stream

    await env.queue().push([{"data": {"n": 2}}])
    running = await (
        Stream.from_(env.queue())
        .map(lambda message: {"twice": message["data"]["n"] * 2})
        .to(env.queue(".out"))
        .run(query_id=env.queue_name, url=env.url)
    )
    try:
        (message,) = await env.queue(".out").batch(1).wait(True).timeout_millis(10000).pop()
        assert message["data"] == {"twice": 4}, message
    finally:
        await running.stop()


@later("stream definition of 0.13", "streams of 0.13, gone from later clients", majors=(0,))
async def stream_definition(env):
    await env.client.stream(env.queue_name, "py").sources([env.queue_name]).tumbling_time(1).define()
