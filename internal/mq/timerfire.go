package mq

import "time"

// Place is where messages go.
type Place struct {
	Tenant    UUID
	Queue     string
	Partition string
}

// DueTimer is a timer that is to be fired. The message id tells it from one
// that replaced it.
type DueTimer struct {
	TimerID
	Partition string
	MessageID UUID
	Size      int // of the payload, bytes
}

// Place is the timer's destination.
func (t *DueTimer) Place() Place { return Place{t.Tenant, t.Queue, t.Partition} }

// DueTimers is what a store has to fire.
type DueTimers struct {
	Timers []DueTimer    // oldest first
	Next   time.Duration // until the next one after these; negative: not soon
}

// Fired is what one transaction fired.
type Fired struct {
	Done    int       // timers that are gone
	Hints   []Hint    // where messages were appended
	Missing []Place   // places that are to be made, then fired into again
	Late    time.Time // deliverAt of the oldest of the timers that are gone; zero when none is
}
