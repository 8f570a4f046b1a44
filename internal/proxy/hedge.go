package proxy

import "time"

// hedge sends a second copy of the request to another node because the first has not
// begun to answer for long (Options.Hedge). Whoever has a first event first wins; the
// other's connection is closed, which makes its engine stop, and nothing of it has
// reached the client. Without another node, or without budget, the first goes on.
func (c *call) hedge() (progress, *failure) {
	c.hedged = true
	first, second := c.ex, c.startHedge()
	if second == nil {
		return moved, nil
	}
	first.arm(time.Time{})
	done := make(chan outcome, 2)
	for _, ex := range [...]*exchange{first, second} {
		go func() {
			v, f := ex.await()
			done <- outcome{ex, v, f}
		}()
	}
	win := <-done
	if win.v != replyReady {
		win = <-done // the other one is the only hope; its failure is as good as any
	} else {
		c.hangUpOther(win.ex.i)
		<-done
	}
	lose := first
	if win.ex == first {
		lose = second
	}
	lose.close()
	lose.reset()
	exchanges.Put(lose)
	c.use(win.ex)
	return c.decide(win.v, win.f)
}

// outcome is how one side of a hedge ended.
type outcome struct {
	ex *exchange
	v  verdict
	f  *failure
}

// startHedge picks another node and sends the request there. It returns nil when
// there is none.
func (c *call) startHedge() *exchange {
	if c.ntried >= len(c.tried)-1 || !c.p.budget.spend() {
		return nil
	}
	first := c.ex
	second := exchanges.Get().(*exchange)
	second.c, second.i = c, 1-first.i
	c.tried[c.ntried] = first.node
	c.ntried++
	c.ex = second
	ok := c.choose(true)
	c.ntried--
	if ok {
		v, _ := second.attempt(false)
		ok = v == replyReady
	}
	if !ok {
		second.close()
		second.reset()
		exchanges.Put(second)
		second = nil
	}
	c.use(first)
	return second
}

// hangUpOther closes the connection of the exchange that is not number i.
func (c *call) hangUpOther(i int) {
	c.mu.Lock()
	e := c.engines[1-i]
	c.mu.Unlock()
	if e != nil {
		e.Close()
	}
}

// use makes ex the call's exchange.
func (c *call) use(ex *exchange) {
	c.ex = ex
	c.node, c.rank, c.reason = ex.node, ex.slot.Rank(), ex.reason
}
