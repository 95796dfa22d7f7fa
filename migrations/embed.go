// Package migrations carries the numbered schema steps inside the binary, so
// that `queen migrate` needs no files beside it and a test migrates with the
// very text a release ships. It holds DDL only; package migrate applies it.
package migrations

import "embed"

// FS holds every step, named NNNNN_verb_noun.sql.
//
//go:embed *.sql
var FS embed.FS
