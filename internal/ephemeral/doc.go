// Package ephemeral keeps queues that need no history in Redis: push, pop with
// leases, ack, groups, bounds and request/reply at memory speed, shared by all
// brokers. Declarations live in the database, contents in Redis only.
//
// Every operation is one server-side script, see scripts/lib.lua for the keys.
// Redis' clock decides. A queue belongs to one of a fixed number of buckets, and
// all keys of a bucket share a hash slot, so a cluster spreads the buckets.
// Notifications wake parked pops; losing every one of them costs latency only.
package ephemeral
