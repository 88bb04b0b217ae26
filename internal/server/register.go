package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// Bounds on a registration, beyond those of the layout.
const (
	maxModelName = 1024 // bytes
	maxWorld     = 1024 // ranks; an object key has 8 bits for them
)

func serveNothing(*conn, *scratch, *message) (result, error) { return nothing, nil }

func serveNoop(_ *conn, _ *scratch, m *message) (result, error) {
	m.out = msgp.AppendString(m.out, "OK")
	return result{value: m.out}, nil
}

func serveChunkSize(c *conn, _ *scratch, m *message) (result, error) {
	m.out = msgp.AppendUint64(m.out, uint64(c.s.cfg.ChunkSize))
	return result{value: m.out}, nil
}

// serveExperimental: without a payload it is GET_EXPERIMENTAL of either numbering, and
// there are no experiments; with one it is another operation, of an unknown reply type.
func serveExperimental(_ *conn, _ *scratch, m *message) (result, error) {
	if m.came > 0 {
		return nothing, nil
	}
	m.out = msgp.AppendArrayHeader(m.out, 0)
	return result{value: m.out}, nil
}

// servePing answers true, except to a worker that this server life does not know: the
// first false makes a stock client register again.
func servePing(c *conn, _ *scratch, m *message) (result, error) {
	pong := true
	if m.came == 1 && !msgp.IsNil(m.arg(0)) {
		id, err := decodeInstance(m.arg(0))
		if err != nil {
			return nothing, err
		}
		now := c.s.cfg.Now()
		c.s.with(func(r *registry) { pong = r.ping(id, now) || !c.s.pings.first(id) })
	}
	m.out = msgp.AppendBool(m.out, pong)
	return result{value: m.out}, nil
}

// serveRegisterDevice is for transfers over device IPC. The reply has no room for a
// refusal (wire specification §5.4), so people are told.
func serveRegisterDevice(c *conn, _ *scratch, m *message) (result, error) {
	if !c.deviceTold {
		c.deviceTold = true
		c.s.setup.Tell(c.s.cfg.Now(), func(n int) {
			c.log.Error("a worker asks for device IPC, which this server does not have: nothing will be cached for it; "+
				"set lmcache.mp.mp_transfer_mode=engine_driven", "op", m.row.name, "not_logged", n)
		})
	}
	return nothing, nil
}

func refuseDeviceCopy(*conn, *scratch, *message) (result, error) {
	return nothing, fmt.Errorf("%w: device IPC is not served; set lmcache.mp.mp_transfer_mode=engine_driven", errRefused)
}

func serveHello(c *conn, _ *scratch, m *message) (result, error) {
	m.out = c.s.greeting().Append(m.out)
	return result{value: m.out}, nil
}

func serveRegister(c *conn, _ *scratch, m *message) (result, error) {
	var reg lmcache.Registration
	if err := reg.Decode(m.arg(0)); err != nil {
		return nothing, err
	}
	reply := c.s.register(c, &reg)
	m.out = reply.Append(m.out)
	return result{value: m.out}, nil
}

// register makes an instance known, or says why not.
func (s *Server) register(c *conn, reg *lmcache.Registration) lmcache.RegistrationReply {
	p, now := c.process(), s.cfg.Now()
	sh, err := s.shapeFor(reg)
	var verdicts []verdict
	var differs bool
	s.with(func(r *registry) {
		if err != nil {
			verdicts = r.refuse(reg.Instance, p)
			return
		}
		s.pings.forget(reg.Instance)
		verdicts, differs, err = r.register(reg.Instance, sh, c.id, p, now)
	})
	s.carryOut(verdicts)
	if err != nil {
		s.setup.Tell(s.cfg.Now(), func(n int) {
			c.log.Error("registration refused, nothing will be cached for this worker",
				"instance", reg.Instance, "model", reg.Model, "reason", err, "not_logged", n)
		})
		return lmcache.RegistrationReply{Error: err.Error()}
	}
	if differs {
		c.log.Warn("a model is registered with two layouts; lookups follow the newest",
			"model", sh.model, "world_size", sh.world, "layout", sh.name)
	}
	s.joined.Tell(now, func(n int) {
		c.log.Info("worker registered", "instance", reg.Instance, "model", sh.model, "world_size", sh.world,
			"chunk", sh.name, "shared_memory", s.shared(), "not_logged", n)
	})
	if !s.shared() {
		return lmcache.RegistrationReply{}
	}
	return lmcache.RegistrationReply{ShmName: s.cfg.Pool.Name(), PoolSize: s.cfg.Pool.Size()}
}

// shapeFor says what the instance's objects look like, or why they are not served.
func (s *Server) shapeFor(reg *lmcache.Registration) (*shape, error) {
	if len(reg.Model) > maxModelName {
		return nil, fmt.Errorf("%w: model name of %d bytes, at most %d", errRefused, len(reg.Model), maxModelName)
	}
	if reg.World < 1 || reg.World > maxWorld {
		return nil, fmt.Errorf("%w: world_size %d, at least 1 and at most %d", errRefused, reg.World, maxWorld)
	}
	layouts, err := reg.ChunkLayouts(s.cfg.ChunkSize)
	if err != nil {
		return nil, err
	}
	if len(layouts) == 0 {
		return nil, fmt.Errorf("%w: no tensors", lmcache.ErrLayout)
	}
	sh := &shape{model: reg.Model, world: reg.World, layouts: layouts, onePlane: reg.OnePlane}
	names := make([]string, len(layouts))
	for i, l := range layouts {
		size, err := l.Bytes()
		if err != nil {
			return nil, errors.Join(lmcache.ErrLayout, err)
		}
		if size > s.cfg.Pool.Size() {
			return nil, fmt.Errorf("%w: one chunk is %d bytes, the pool has %d; give the server a larger --l1-size-gb",
				errRefused, size, s.cfg.Pool.Size())
		}
		sh.sizes = append(sh.sizes, size)
		names[i] = l.String()
	}
	sh.name = strings.Join(names, ";")
	return sh, nil
}

func serveUnregister(c *conn, _ *scratch, m *message) (result, error) {
	id, err := decodeInstance(m.arg(0))
	if err != nil {
		return nothing, err
	}
	p := c.process()
	var verdicts []verdict
	c.s.with(func(r *registry) { verdicts = r.unregister(id, p) })
	c.s.carryOut(verdicts)
	return nothing, nil
}
