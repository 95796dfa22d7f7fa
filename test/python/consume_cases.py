"""Consumers, groups, buffers and reads: the second half of cases.py."""

import asyncio
import time
from collections import defaultdict
from datetime import datetime, timedelta, timezone

from cases import case, consume_until, data, numbered, pop


@case("consume one by one")
async def consume_single(env):
    await env.queue().push(numbered(5))
    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    await env.queue().batch(1).limit(5).consume(handle)
    assert seen == [0, 1, 2, 3, 4], seen
    assert await pop(env.queue(), 9) == [], "consume did not acknowledge"


@case("consume batches")
async def consume_batch(env):
    await env.queue().push(numbered(10))
    batches = []

    async def handle(messages):
        batches.append(data(messages))

    await env.queue().batch(4).limit(10).consume(handle)
    assert [n for batch in batches for n in batch] == [{"n": n} for n in range(10)], batches
    assert max(len(batch) for batch in batches) <= 4, batches
    assert await pop(env.queue(), 9) == []


@case("consume each of a batch")
async def consume_each(env):
    await env.queue().push(numbered(6))
    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    await env.queue().batch(6).each().limit(6).consume(handle)
    assert seen == list(range(6)), seen
    assert await pop(env.queue(), 9) == []


@case("consume and acknowledge by hand")
async def consume_manual(env):
    await env.queue().push(numbered(4))
    results = []

    async def handle(message):
        results.append(await env.client.ack(message, True))

    await env.queue().batch(1).limit(4).auto_ack(False).consume(handle)
    assert [result["success"] for result in results] == [True] * 4, results
    assert await pop(env.queue(), 9) == []


@case("consume without acknowledging")
async def consume_unacked(env):
    await env.queue().config({"lease_time": 1}).create()
    await env.queue().push(numbered(2))

    async def handle(messages):
        pass

    await env.queue().batch(2).limit(2).auto_ack(False).consume(handle)
    messages = await asyncio.wait_for(env.queue().batch(2).wait(True).pop(), 5)
    assert data(messages) == [{"n": 0}, {"n": 1}] and messages[0]["deliveryAttempt"] == 2, messages


@case("a handler that raises gets the message again")
async def consume_error(env):
    await env.queue().push(numbered(3))
    seen = []

    async def handle(message):
        seen.append((message["data"]["n"], message["deliveryAttempt"]))
        if seen.count((1, 1)) == 1 and seen[-1] == (1, 1):
            raise ValueError("not now")

    await env.queue().batch(1).limit(4).consume(handle)
    assert seen == [(0, 1), (1, 1), (1, 2), (2, 1)], seen


@case("consume with four workers")
async def consume_concurrent(env):
    for partition in range(8):
        await env.queue().partition(f"p{partition}").push([{"data": {"p": partition, "n": n}} for n in range(10)])
    seen = defaultdict(list)

    async def handle(messages):
        await asyncio.sleep(0.01)
        for message in messages if isinstance(messages, list) else [messages]:
            seen[message["data"]["p"]].append(message["data"]["n"])

    await consume_until(
        env.queue().batch(3).concurrency(4).consume(handle), lambda: sum(map(len, seen.values())) >= 80
    )
    assert dict(seen) == {partition: list(range(10)) for partition in range(8)}, dict(seen)


@case("consumer groups")
async def groups(env):
    await env.queue().push(numbered(4))
    for group in ("one", "two"):
        messages = await pop(env.queue().group(group).subscription_mode("all"), 9)
        assert data(messages) == [{"n": n} for n in range(4)] and messages[0]["consumerGroup"] == group, messages
        acked = await env.client.ack(messages, True, {"group": group})
        assert acked["success"] is True, acked
        assert await pop(env.queue().group(group), 9) == []
    assert len(await pop(env.queue(), 9)) == 4, "groups took the messages of the queue itself"


@case("subscription mode new")
async def subscription_new(env):
    await env.queue().push(numbered(2))
    assert await pop(env.queue().group("late").subscription_mode("new"), 9) == []
    await env.queue().push(numbered(1, start=2))
    await env.queue().partition("fresh").push(numbered(1, start=3))
    found = data(await pop(env.queue().group("late"), 9)) + data(await pop(env.queue().group("late"), 9))
    assert sorted(item["n"] for item in found) == [2, 3], found
    assert await pop(env.queue().group("late").subscription_mode("all"), 9) == [], "the mode is not sticky"


@case("subscription from an instant")
async def subscription_from(env):
    await env.queue().push(numbered(2))
    await asyncio.sleep(0.3)
    # By the broker's clock: the instant a message was stored, plus a little.
    (first, *_) = await pop(env.queue(), 2)
    stored = datetime.fromisoformat(first["createdAt"].replace("Z", "+00:00"))
    instant = (stored + timedelta(milliseconds=150)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    await env.queue().push(numbered(2, start=2))
    messages = await pop(env.queue().group("later").subscription_from(instant), 9)
    assert data(messages) == [{"n": 2}, {"n": 3}], messages


@case("consume as a group")
async def consume_group(env):
    await env.queue().push(numbered(3))
    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    await env.queue().group("workers").subscription_mode("all").batch(1).limit(3).consume(handle)
    assert seen == [0, 1, 2], seen
    assert await pop(env.queue().group("workers"), 9) == []


@case("group list, seek and delete")
async def group_admin(env):
    await env.queue().push(numbered(3))
    builder = env.queue().group(env.queue_name).subscription_mode("all")
    messages = await pop(builder, 9)
    assert (await env.client.ack(messages, True, {"group": env.queue_name}))["success"] is True
    listed = await env.client.admin.list_consumer_groups()
    assert env.queue_name in [group["name"] for group in listed], listed
    await env.client.admin.seek_consumer_group(
        env.queue_name, env.queue_name, {"timestamp": "2000-01-01T00:00:00Z"}
    )
    assert len(await pop(env.queue().group(env.queue_name), 9)) == 3, "seek did not move the group"
    await env.client.delete_consumer_group(env.queue_name)
    assert len(await pop(env.queue().group(env.queue_name).subscription_mode("all"), 9)) == 3


@case("buffered push, flushed by count and by hand")
async def buffered(env):
    options = {"message_count": 10, "time_millis": 60000}
    for n in range(25):
        result = await env.queue().buffer(options).push([{"data": {"n": n}}])
        assert result == {"buffered": True, "count": 1}, result
    await env.client.flush_all_buffers()
    messages = await pop(env.queue(), 50)
    assert sorted(item["n"] for item in data(messages)) == list(range(25)), messages
    assert env.client.get_buffer_stats()["totalBufferedMessages"] == 0


@case("buffered push, flushed by time")
async def buffered_time(env):
    for n in range(3):
        await env.queue().buffer({"message_count": 100, "time_millis": 200}).push([{"data": {"n": n}}])
    messages = await asyncio.wait_for(env.queue().batch(9).wait(True).pop(), 5)
    assert data(messages) == [{"n": 0}, {"n": 1}, {"n": 2}], messages


@case("buffered push, flushed by close")
async def buffered_close(env):
    other = env.another_client()
    env.queue()
    await other.queue(env.queue_name).buffer({"message_count": 100, "time_millis": 60000}).push(numbered(2))
    assert await pop(env.queue(), 9) == []
    await other.close()
    assert data(await pop(env.queue(), 9)) == [{"n": 0}, {"n": 1}]


@case("conflation", majors=(2,))
async def conflation(env):
    await env.queue().push(numbered(20))

    def builder():
        return env.queue().group("last").subscription_mode("all").conflation()

    messages = await pop(builder(), 9)
    assert data(messages) == [{"n": 19}], messages
    result = await env.client.ack(messages[0], True, {"group": "last"})
    assert result["success"] is True and result["conflated"] == 19, result
    assert await pop(builder(), 9) == []


@case("reads by offset", majors=(2,))
async def offset_reads(env):
    await env.queue().partition("a").push(numbered(5))
    await env.queue().partition("b").push(numbered(1))
    read = await env.queue().fetch(["a", "b"], offsets={"a": 3})
    assert [record["payload"] for record in read["a"]["records"]] == [{"n": 3}, {"n": 4}], read
    assert read["a"]["highWatermark"] == 5 and read["b"]["nextOffset"] == 1, read
    changed = await env.queue().changed_since()
    assert [partition["name"] for partition in changed["partitions"]] == ["a", "b"], changed
    assert changed["safeTime"], changed
    assert len(await pop(env.queue().partition("a"), 9)) == 5, "a read moved a cursor"


@case("two hundred pushes at once")
async def many_pushes(env):
    began = time.monotonic()
    results = await asyncio.gather(*(awaited_push(env, n) for n in range(200)))
    assert sorted(result[0]["offset"] for result in results) == list(range(200))
    assert time.monotonic() - began < 20
    messages = await pop(env.queue(), 500)
    assert sorted(item["n"] for item in data(messages)) == list(range(200))


async def awaited_push(env, n):
    return await env.queue().push([{"data": {"n": n}}])
