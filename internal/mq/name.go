package mq

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of names and ids, in bytes of UTF-8.
const (
	// MaxNameBytes bounds tenant (36) + queue + the longer of partition and group.
	MaxNameBytes = 447
	// MaxTransactionIDBytes bounds a transaction id.
	MaxTransactionIDBytes = 65535
	// MaxPayloadDepth is how deep arrays and objects of a payload may nest.
	MaxPayloadDepth = 512
	// MaxErrorBytes is where the error text of a dead letter is cut.
	MaxErrorBytes = 4096
)

// DefaultPartition is used when a push names no partition.
const DefaultPartition = "Default"

// QueueMode is the reserved group of callers that name no consumer group.
const QueueMode = "__QUEUE_MODE__"

// GroupOrDefault maps an absent group to the reserved one.
func GroupOrDefault(group string) string {
	if group == "" {
		return QueueMode
	}
	return group
}

// CheckName refuses what no name may hold: bytes that are not UTF-8, NUL and
// the other C0 controls. The field is named in the error.
func CheckName(field, name string) error {
	if !utf8.ValidString(name) {
		return Invalid(field, "%s is not valid UTF-8", field)
	}
	for i := range len(name) {
		if name[i] < 0x20 {
			return Invalid(field, "%s holds a control character", field)
		}
	}
	return nil
}

// CheckNameLengths enforces the combined limit on a queue and a partition or
// group name.
func CheckNameLengths(field, queue, other string) error {
	if n := 36 + len(queue) + len(other); n > MaxNameBytes {
		return &Error{
			Kind: KindTooLarge, Code: CodeNameTooLong, Field: field,
			Message: "names are too long: tenant, queue and partition or group together take " +
				strconv.Itoa(n) + " bytes, the limit is " + strconv.Itoa(MaxNameBytes),
		}
	}
	return nil
}

// DeriveLabels gives the namespace and task of a queue created by its first
// use: the text before the first dot (the whole name without one) and the
// text between the first and the second.
func DeriveLabels(queue string) (namespace, task string) {
	namespace, rest, found := strings.Cut(queue, ".")
	if !found {
		return namespace, ""
	}
	task, _, _ = strings.Cut(rest, ".")
	return namespace, task
}

// CleanErrorText makes an application's error text storable: NUL is removed,
// what is not UTF-8 replaced, and the rest cut at MaxErrorBytes on a character
// boundary.
func CleanErrorText(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if len(s) <= MaxErrorBytes {
		return s
	}
	cut := MaxErrorBytes
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
