package mq

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

// UUID is a 128-bit identifier in its binary form.
type UUID [16]byte

// DefaultTenant owns everything while tenancy is off.
var DefaultTenant = UUID{15: 1}

// IsZero reports whether u is the all-zero identifier.
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns the canonical lower-case 8-4-4-4-12 form.
func (u UUID) String() string {
	var b [36]byte
	u.encode(b[:])
	return string(b[:])
}

// Append adds the canonical form to dst.
func (u UUID) Append(dst []byte) []byte {
	var b [36]byte
	u.encode(b[:])
	return append(dst, b[:]...)
}

func (u UUID) encode(b []byte) {
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
}

// ParseUUID reads the canonical 36-character form in either case.
func ParseUUID(s string) (UUID, bool) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, false
	}
	var h [32]byte
	n := copy(h[:], s[0:8])
	n += copy(h[n:], s[9:13])
	n += copy(h[n:], s[14:18])
	n += copy(h[n:], s[19:23])
	copy(h[n:], s[24:36])
	if _, err := hex.Decode(u[:], h[:]); err != nil {
		return UUID{}, false
	}
	return u, true
}

// idSource hands out UUIDv7 values that rise within the process: the 12 bits
// after the millisecond count the ids of that millisecond, the rest is random.
type idSource struct {
	mu     sync.Mutex
	lastMS int64
	seq    uint16
	pool   [512]byte
	left   int
}

var ids idSource

// NewID mints a version-7 UUID for a message or a lease.
func NewID() UUID { return ids.next(time.Now().UnixMilli()) }

func (s *idSource) next(ms int64) UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var u UUID
	if s.left < 10 {
		// crypto/rand.Read never fails: it aborts the process when the
		// system has no randomness to give.
		_, _ = rand.Read(s.pool[:])
		s.left = len(s.pool)
	}
	r := s.pool[len(s.pool)-s.left:]
	s.left -= 10
	if ms <= s.lastMS {
		ms = s.lastMS
		s.seq++
		if s.seq > 0x0fff {
			ms, s.seq = ms+1, 0
		}
	} else {
		// Start low so that a busy millisecond rarely borrows from the next.
		s.seq = binary.BigEndian.Uint16(r) & 0x07ff
	}
	s.lastMS = ms
	copy(u[8:], r[2:10])
	u[0], u[1], u[2] = byte(ms>>40), byte(ms>>32), byte(ms>>24)
	u[3], u[4], u[5] = byte(ms>>16), byte(ms>>8), byte(ms)
	u[6] = 0x70 | byte(s.seq>>8)
	u[7] = byte(s.seq)
	u[8] = 0x80 | u[8]&0x3f
	return u
}

// PartitionID names a partition of a queue. On the wire it is a version-8
// UUID that carries both numbers, so any broker of the fleet can address the
// queue's data from an acknowledgement without looking anything up. Numbers
// are never reused: a queue that is deleted and made again has new ones.
type PartitionID struct {
	Queue     int64 // below 2^60
	Partition int64 // below 2^62
}

// UUID packs the two numbers.
func (p PartitionID) UUID() UUID {
	var u UUID
	q := uint64(p.Queue)
	binary.BigEndian.PutUint64(u[0:8], (q>>12)<<16|0x8000|q&0x0fff)
	binary.BigEndian.PutUint64(u[8:16], 1<<63|uint64(p.Partition))
	return u
}

// String returns the wire form.
func (p PartitionID) String() string { return p.UUID().String() }

// ParsePartitionID reads the wire form. Anything we cannot have minted is
// refused, so a foreign UUID is an unknown partition and never an error.
func ParsePartitionID(s string) (PartitionID, bool) {
	u, ok := ParseUUID(s)
	if !ok {
		return PartitionID{}, false
	}
	hi, lo := binary.BigEndian.Uint64(u[0:8]), binary.BigEndian.Uint64(u[8:16])
	if hi&0xf000 != 0x8000 || lo>>62 != 2 {
		return PartitionID{}, false
	}
	return PartitionID{
		Queue:     int64(hi>>16<<12 | hi&0x0fff),
		Partition: int64(lo & (1<<62 - 1)),
	}, true
}

// QueueUUID is the public form of a queue number: a partition id without a
// partition.
func QueueUUID(queue int64) UUID { return PartitionID{Queue: queue}.UUID() }

// IDHash is what the id index keeps of a transaction id.
type IDHash struct {
	Key  UUID  // 128 bits: the dedup key
	Mark int64 // 64 further bits: combined with XOR into a batch fingerprint
}

// HashID hashes a transaction id: the first 16 bytes of its SHA-256 are the
// key, the next 8 the mark. queen.push computes the same in SQL.
func HashID(transactionID string) IDHash {
	sum := sha256.Sum256([]byte(transactionID))
	var h IDHash
	copy(h.Key[:], sum[:16])
	h.Mark = int64(binary.BigEndian.Uint64(sum[16:24]))
	return h
}
