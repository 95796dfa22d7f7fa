// Package history keeps what clients of a fleet did and saw, and decides from that alone whether the fleet kept its
// promises. A history is a file of JSON lines: first the run, then one line for every request sent, retries
// included, then the end. All instants are of one monotonic clock, that of the process that drove the fleet.
//
// An operation is ok (it happened as answered), fail (it did not happen), or unknown: the answer was lost, so that
// it took effect at some moment after it was sent, or never. No check assumes anything else about an unknown one.
//
// # Why each check is what it is
//
// Most promises of a broker name their own order, and then no search is needed. A partition's log tells the offset
// of each message: the offsets are the only linearization there can be, and it remains to compare them with real
// time, with each other, and with what each group received. So the checks of loss and invention (O1), of order (O2),
// of one message per id (dedup), of cursors that only advance (cursor), and of effects that happen once and
// entirely (O4) are written by hand. They run in the time of a sort, and what they find names the message at fault.
//
// Leases (O3) are locks that end by themselves, and a client knows the instant of a grant only as an interval. The
// check asks whether any instants within the intervals make two grants legal. It is by hand too, because time is what
// it is about, and a model of a lock without time would have to accept every overlap.
//
// Three objects give answers that do not tell their order: a counter, a register with conditional writes, and a
// timer that is replaced, cancelled and fired at once. For them the question is whether any order explains all the
// answers, with operations of unknown outcome anywhere after they were sent or not at all. That is linearizability,
// and github.com/anishathalye/porcupine decides it, key by key. An operation that may never have happened is given
// no end: an order may put it behind everything else, where nobody sees it.
//
// What a history cannot show: a message of which every push had an unknown outcome and which nobody received is
// neither lost nor stored as far as anybody can tell, and an effect outside of the fleet is not in it.
package history
