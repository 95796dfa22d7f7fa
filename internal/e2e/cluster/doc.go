// Package cluster runs a whole installation on the loopback interface, each
// part a process of its own, and breaks it: PostgreSQL with a streaming
// standby, PgBouncer, Redis, brokers built from this tree, and nginx with the
// configuration of deploy/ in front. Every connection passes through a Link
// that can lose, delay and cut what it carries.
//
// Faults are drawn from a seed, so a failure can be run again with the same
// ones at about the same times. docs/testing.md says how to read one.
//
// The package is test-only and needs Linux: children end with their parent,
// and disks of a limited size, by what its kernel offers.
package cluster
