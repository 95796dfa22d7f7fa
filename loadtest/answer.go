package main

// delivery is one message of a pop answer. The byte slices point into the answer's buffer and live until the
// worker's next request.
type delivery struct {
	transactionID []byte
	partitionID   []byte
	partition     []byte
	leaseID       []byte
	offset        int64 // -1 when the broker sends none
	attempt       int64 // 1 when the broker sends none
	stamp         stamp
}

// stamp is what the producer wrote into the payload.
type stamp struct {
	run  int64
	lane int64
	seq  int64
	at   int64 // nanoseconds since the start of the run
	ok   bool
}

// stored is one item of a push answer.
type stored struct {
	status []byte
	offset int64 // -1 when absent
}

// scanPop reads a pop answer into out, reusing its memory.
func scanPop(body []byte, out []delivery) ([]delivery, error) {
	out = out[:0]
	s := scanner{b: body}
	err := s.object(func(key []byte) error {
		if string(key) != "messages" {
			return s.skip(0)
		}
		out = out[:0]
		return s.array(func(int) error {
			d := delivery{offset: -1, attempt: 1}
			if err := s.message(&d); err != nil {
				return err
			}
			out = append(out, d)
			return nil
		})
	})
	if err != nil {
		return out, err
	}
	return out, s.end()
}

func (s *scanner) message(d *delivery) error {
	return s.object(func(key []byte) error {
		switch string(key) {
		case "transactionId":
			return s.text(&d.transactionID)
		case "partitionId":
			return s.text(&d.partitionID)
		case "partition":
			return s.text(&d.partition)
		case "leaseId":
			return s.text(&d.leaseID)
		case "offset":
			return s.number(&d.offset, -1)
		case "deliveryAttempt":
			return s.number(&d.attempt, 1)
		case "data":
			d.stamp = stamp{}
			if s.peek() != '{' {
				return s.skip(0)
			}
			return s.stamp(&d.stamp)
		default:
			return s.skip(0)
		}
	})
}

// stamp walks the payload in any key order, because some brokers store payloads as jsonb and reorder them.
func (s *scanner) stamp(out *stamp) error {
	var found int
	take := func(to *int64) error {
		n, ok, err := s.integer()
		if ok {
			*to = n
			found++
		}
		return err
	}
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "r":
			return take(&out.run)
		case "l":
			return take(&out.lane)
		case "s":
			return take(&out.seq)
		case "t":
			return take(&out.at)
		default:
			return s.skip(0)
		}
	})
	out.ok = found == 4
	return err
}

func (s *scanner) text(to *[]byte) error {
	*to = nil
	if s.peek() != '"' {
		return s.skip(0)
	}
	b, err := s.str()
	*to = b
	return err
}

func (s *scanner) number(to *int64, absent int64) error {
	*to = absent
	n, ok, err := s.integer()
	if ok {
		*to = n
	}
	return err
}

// scanPush reads a push answer into out, reusing its memory.
func scanPush(body []byte, out []stored) ([]stored, error) {
	out = out[:0]
	s := scanner{b: body}
	err := s.array(func(int) error {
		item := stored{offset: -1}
		err := s.object(func(key []byte) error {
			switch string(key) {
			case "status":
				return s.text(&item.status)
			case "offset":
				return s.number(&item.offset, -1)
			default:
				return s.skip(0)
			}
		})
		out = append(out, item)
		return err
	})
	if err != nil {
		return out, err
	}
	return out, s.end()
}

// scanAck counts what an ack answer accepted and keeps the first refusal's text.
func scanAck(body []byte) (accepted, refused int, reason string, err error) {
	s := scanner{b: body}
	err = s.array(func(int) error {
		var ok bool
		var text []byte
		err := s.object(func(key []byte) error {
			var err error
			switch string(key) {
			case "success":
				ok, err = s.boolean()
			case "error":
				err = s.text(&text)
			default:
				err = s.skip(0)
			}
			return err
		})
		if ok {
			accepted++
			return err
		}
		refused++
		if reason == "" {
			reason = string(text)
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	return accepted, refused, reason, err
}
