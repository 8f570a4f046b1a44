package prewarm

import (
	"strings"
	"testing"
	"time"
)

func TestClockJumps(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a)
	d.run(10 * time.Minute)
	sent := a.requests()
	c.advance(-3 * time.Hour)
	d.run(20 * time.Minute)
	if a.requests() == sent {
		t.Error("no touch after the clock went back: it would wait for three hours")
	}
	if got := d.kinds(); got != "clock:" {
		t.Errorf("alarms %q", got)
	}
	sent = a.requests()
	c.advance(5 * time.Hour)
	d.step()
	if got := a.requests() - sent; got != 1 || a.colds() != 1 {
		t.Errorf("%d requests and %d cold prefills after the clock went ahead, want one touch", got, a.colds())
	}
}

func TestClockJumpOverADeadlineAlarmsOnce(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop(", deadline: 2026-11-11 20:00")), a)
	d.run(time.Minute)
	c.advance(2 * time.Hour)
	d.run(5 * time.Minute)
	c.advance(-90 * time.Minute)
	d.run(5 * time.Minute)
	if got := d.kinds(); strings.Count(got, "missed") != 1 {
		t.Errorf("%s", got)
	}
	if got := d.states(d.s); got != "alpha@a:warm" {
		t.Errorf("%s", got)
	}
}
