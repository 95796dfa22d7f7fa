"""Ephemeral queues, which clients from 2 on know."""

import asyncio

from cases import case


def payloads(answer):
    return [message["payload"] for message in answer["messages"]]


@case("ephemeral queue", majors=(2,))
async def queue(env):
    eph, name = env.client.ephemeral, env.queue_name
    answer = await eph.push(name, [{"payload": {"b": 1, "a": 2.5}}, {"payload": None}], partition="zone:4")
    assert answer["pushed"] == 2, answer
    got = await eph.pop(name, batch=10, group="g")
    assert payloads(got) == [{"b": 1, "a": 2.5}, None], got
    assert [m["attempts"] for m in got["messages"]] == [1, 1] and got["messages"][0]["partition"] == "zone:4", got
    first, second = got["messages"]
    answer = await eph.ack(name, [first, {"id": second["id"], "status": "retry"}], group="g")
    assert [r["outcome"] for r in answer["results"]] == ["acked", "redelivered"], answer
    (again,) = (await eph.pop(name, batch=10, group="g"))["messages"]
    assert again["id"] == second["id"] and again["attempts"] == 2, again
    answer = await eph.ack(name, again, group="g", status=True)
    assert answer["results"][0]["outcome"] == "acked", answer
    answer = await eph.ack(name, [again, "nonsense"], group="g")
    assert [r["outcome"] for r in answer["results"]] == ["unknown", "unknown"], answer
    assert payloads(await eph.pop(name, group="g")) == []
    assert (await eph.delete(name))["deleted"] is True


@case("ephemeral queue, declared", majors=(2,))
async def declared(env):
    from queen.errors import EphemeralError, EphemeralQueueNotFoundError

    eph, name = env.client.ephemeral, env.queue_name + "/a b"
    made = await eph.configure(name, max_length=2, ttl_seconds=60, window_buffer={"ms": 5})
    assert made["options"] == {"maxLength": 2, "ttlSeconds": 60, "windowBuffer": {"ms": 5}}, made
    await eph.push(name, [1, 2])
    (listed,) = [q for q in (await eph.queues())["queues"] if q["queue"] == name]
    assert listed["tier"] == "declared" and listed["depth"] == 2 and listed["options"]["maxLength"] == 2, listed
    assert (await eph.depth(name))["pending"] == 2
    try:
        await eph.configure(name, {"maxLength": -1})
        raise AssertionError("a negative length was accepted")
    except EphemeralError as error:
        assert error.code == "ephemeral_bad_request", error.code
    assert (await eph.reset(name))["dropped"] == 2
    gone = await eph.delete(name)
    assert gone["deleted"] is True and gone["declared"] is True, gone
    assert (await eph.delete(name))["deleted"] is False
    try:
        await eph.depth(name)
        raise AssertionError("the queue is still there")
    except EphemeralQueueNotFoundError:
        pass


@case("ephemeral broadcast", majors=(2,))
async def broadcast(env):
    eph, name = env.client.ephemeral, env.queue_name
    waiting = [
        asyncio.ensure_future(eph.pop(name, group=f"tail-{n}", wait=True, timeout=10000, commit_on_delivery=True))
        for n in range(3)
    ]
    await asyncio.sleep(0.2)
    await eph.push(name, {"n": 1})
    for answer in await asyncio.gather(*waiting):
        assert payloads(answer) == [{"n": 1}], answer
    await eph.delete(name)


@case("ephemeral request and reply", majors=(2,))
async def request_and_reply(env):
    eph, name = env.client.ephemeral, env.queue_name

    async def answer_all():
        while True:
            got = await eph.pop(name, group="responders", wait=True, timeout=5000, batch=10)
            for message in got["messages"]:
                await eph.push(message["payload"]["reply_to"], {"twice": 2 * message["payload"]["n"]})
            if got["messages"]:
                await eph.ack(name, got["messages"], group="responders")

    async def ask(n):
        inbox = f"{name}.inbox.{n}"
        await eph.push(name, {"n": n, "reply_to": inbox})
        # The name that clients before commitOnDelivery used.
        got = await eph.pop(inbox, wait=True, timeout=10000, auto_ack=True)
        await eph.delete(inbox)
        return payloads(got)

    responder = asyncio.ensure_future(answer_all())
    try:
        answers = await asyncio.gather(*(ask(n) for n in range(20)))
    finally:
        responder.cancel()
        await asyncio.gather(responder, return_exceptions=True)
    assert answers == [[{"twice": 2 * n}] for n in range(20)], answers
    await eph.delete(name)


@case("ephemeral buffer", majors=(2,))
async def buffered(env):
    eph, name = env.client.ephemeral, env.queue_name
    for n in range(25):
        await eph.push(name, {"n": n}, buffered={"message_count": 10, "time_millis": 60000})
    await eph.flush(name)
    assert payloads(await eph.pop(name, batch=100)) == [{"n": n} for n in range(25)]
    await eph.delete(name)
