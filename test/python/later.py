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


@later("transaction of a push and an ack", "transactions")
async def transaction(env):
    await env.queue().push([{"data": {"n": 1}}])
    (message,) = await env.queue().batch(1).wait(False).pop()
    env.queue(".out")
    answer = await env.client.transaction().ack(message).queue(env.queue_name + ".out").push([{"data": {"n": 2}}]).commit()
    assert answer["success"] is True, answer
    (pushed,) = await env.queue(".out").batch(1).wait(False).pop()
    assert pushed["data"] == {"n": 2}, pushed


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


@later("key value", "key/value state", majors=(2,))
async def key_value(env):
    await env.client.kv.put("py", env.queue_name, {"n": 1}, ttl_seconds=60)
    found = await env.client.kv.get("py", env.queue_name)
    assert found["value"] == {"n": 1}, found


@later("timer", "timers", majors=(2,))
async def timer(env):
    env.queue()
    await env.client.timers.schedule(env.queue_name, "once", {"n": 1}, delay_ms=100)
    (message,) = await env.queue().batch(1).wait(True).timeout_millis(5000).pop()
    assert message["data"] == {"n": 1}, message


@later("lock", "locks and semaphores", majors=(2,))
async def lock(env):
    held = env.client.lock(env.queue_name, ttl_seconds=30)
    assert await held.acquire()
    assert not await env.client.lock(env.queue_name, ttl_seconds=30).acquire()
    assert await held.release()


@later("ephemeral queue", "ephemeral queues", majors=(2,))
async def ephemeral(env):
    answer = await env.client.ephemeral.push(env.queue_name, [{"n": 1}])
    assert answer["pushed"] == 1, answer
    await env.client.ephemeral.delete(env.queue_name)


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
