package mq

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxKVKeyBytes bounds a key.
const MaxKVKeyBytes = 512

// Limits of a getPrefix.
const (
	DefaultKVPage = 100
	MaxKVPage     = 1000
)

// KVLimits bounds a call.
type KVLimits struct {
	Ops, Keys   int
	ValueBytes  int
	Transaction bool
}

// DefaultKVLimits are those of a call of its own.
var DefaultKVLimits = KVLimits{Ops: 256, Keys: 1024, ValueBytes: 65536}

// InTransaction are the limits of a call that is part of a transaction.
func (l KVLimits) InTransaction() KVLimits {
	return KVLimits{Ops: min(l.Ops, 64), Keys: min(l.Keys, 256), ValueBytes: l.ValueBytes, Transaction: true}
}

// KVInvalid refuses a call to the store. The code is the stable reason.
func KVInvalid(reason, format string, args ...any) *Error {
	e := Invalid("", format, args...)
	e.Code = reason
	return e
}

func kvTooLarge(reason, message string) *Error {
	return &Error{Kind: KindTooLarge, Code: reason, Message: message}
}

// CheckKVNamespace refuses what no namespace may be.
func CheckKVNamespace(ns string) *Error {
	ok := ns != "" && len(ns) <= 64
	for i := 0; ok && i < len(ns); i++ {
		c := ns[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 0 && (c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return KVInvalid("kv_bad_namespace", "ns must be 1 to 64 of a-z, 0-9, '.', '_' and '-', and begin with a letter or a digit")
	}
	return nil
}

func checkKVKey(what, key string) *Error {
	switch {
	case key == "" && what == "prefix":
		return KVInvalid("kv_prefix_required", "prefix is required")
	case key == "":
		return KVInvalid("kv_bad_key", "%s is required", what)
	case len(key) > MaxKVKeyBytes:
		return kvTooLarge("kv_key_too_large", what+" is longer than "+strconv.Itoa(MaxKVKeyBytes)+" bytes")
	case strings.IndexByte(key, 0) >= 0 || !utf8.ValidString(key):
		return KVInvalid("kv_bad_key", "%s holds a NUL or is not UTF-8", what)
	}
	return nil
}

// Check judges an operation by itself. Lifetimes are judged where they are
// decoded: here an operation has one already.
func (o *KVOp) Check(l KVLimits) *Error {
	if err := CheckKVNamespace(o.Namespace); err != nil {
		return err
	}
	switch o.Verb {
	case KVGetMany:
		for _, k := range o.Keys {
			if err := checkKVKey("each of keys", k); err != nil {
				return err
			}
		}
		return nil
	case KVGetPrefix:
		if l.Transaction {
			return KVInvalid("kv_get_prefix_not_allowed_in_transaction", "getPrefix is not allowed in a transaction")
		}
		if strings.IndexByte(o.After, 0) >= 0 {
			return KVInvalid("kv_bad_key", "after holds a NUL")
		}
		return checkKVKey("prefix", o.Prefix)
	}
	if err := checkKVKey("key", o.Key); err != nil {
		return err
	}
	if len(o.Value) > l.ValueBytes {
		return kvTooLarge("kv_value_too_large", "value takes "+strconv.Itoa(len(o.Value))+" bytes, the limit is "+strconv.Itoa(l.ValueBytes))
	}
	return nil
}

// CheckKVOps judges the operations of a call together, each being right by
// itself.
func CheckKVOps(ops []KVOp, l KVLimits) *Error {
	written := map[KVAddress]bool{}
	keys := 0
	for i := range ops {
		o := &ops[i]
		if o.Verb.Writes() {
			if written[o.KVAddress] {
				return KVInvalid("kv_duplicate_key_in_call", "operations[%d] writes a key that another operation of the call writes", i)
			}
			written[o.KVAddress] = true
		}
		switch o.Verb {
		case KVGetMany:
			keys += len(o.Keys)
		case KVGetPrefix:
			keys += o.Limit
		default:
			keys++
		}
	}
	if keys > l.Keys {
		return KVInvalid("kv_too_many_keys", "the call names %d keys, the limit is %d", keys, l.Keys)
	}
	return nil
}
