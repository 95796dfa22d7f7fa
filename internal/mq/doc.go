// Package mq holds the nouns of the broker and the rules that need no I/O:
// names and their limits, identifiers, queue options, push items, deliveries,
// acknowledgements and error kinds.
//
// It is the leaf every other package points at, so it imports the standard
// library only. Nothing here knows HTTP, SQL or the wire's key names; values
// are what the use cases exchange with a store below and a transport above.
package mq
