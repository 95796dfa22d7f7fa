// Package httpapi is the public HTTP face of the broker: routes, strict
// decoding, validation, encoding, limits, and the one table from error kinds
// to statuses.
//
// Whatever is wrong with a request is found here, before any use case runs, so
// nothing hostile reaches the store. A payload is opaque: it is the raw slice
// of the request body on the way in and raw stored bytes on the way out, never
// parsed into a value and never written again.
//
// The use cases are declared in broker.go as the interface the handlers call.
package httpapi
