package park

import "time"

// Glance is what a look says of a line.
type Glance struct {
	Due  bool          // worth a probe
	Next time.Duration // as in Result
}

// maxLook is how many lines share a look.
const maxLook = 256

// lookPause is the rest between looks, in which overdue lines gather. They have
// waited for so long that it makes no difference.
const lookPause = 50 * time.Millisecond

// ask puts a line among those to be looked at. The lock is held.
func (l *Lot[K, T, R, A]) ask(ln *line[K, R, A]) {
	ln.timer = nil
	l.overdue = append(l.overdue, ln)
	if !l.looking {
		l.looking = true
		l.probes.Add(1)
		go l.look()
	}
}

// look takes the overdue lines, those that became so during a look in the next
// one, and probes the ones for which there is something.
func (l *Lot[K, T, R, A]) look() {
	defer l.probes.Done()
	for {
		lines, keys := l.takeOverdue()
		if len(lines) == 0 {
			return
		}
		glances, err := l.cfg.Look(keys)
		l.mu.Lock()
		for i, ln := range lines {
			switch {
			case l.lines[ln.key] != ln || ln.busy || ln.timer != nil:
				// Gone, or somebody else has looked meanwhile.
			case err != nil:
				l.rest(ln, -1)
			case glances[i].Due:
				l.start(ln)
			default:
				l.rest(ln, glances[i].Next)
			}
		}
		l.mu.Unlock()
		select {
		case <-time.After(lookPause):
		case <-l.drained:
		}
	}
}

// takeOverdue returns lines to look at; none when the work is done.
func (l *Lot[K, T, R, A]) takeOverdue() (lines []*line[K, R, A], keys []K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(lines) == 0 && len(l.overdue) > 0 {
		n := min(len(l.overdue), maxLook)
		for _, ln := range l.overdue[:n] {
			if l.lines[ln.key] == ln && !ln.busy && ln.timer == nil {
				lines, keys = append(lines, ln), append(keys, ln.key)
			}
		}
		l.overdue = l.overdue[n:]
	}
	if len(lines) == 0 {
		l.overdue, l.looking = nil, false
	}
	return lines, keys
}
