"""The libzmq side of the tests: peer.py MODE ENDPOINT [ARGUMENT]. It prints one line when
ready or done, and exits with an exception when something is not as it must be."""

import hashlib
import os
import random
import sys
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

SIZES = [0, 1, 2, 254, 255, 256, 257, 8191, 8192, 8193, 65534, 65535, 65536, 65537, 300000]


def say(*words):
    print(*words, flush=True)


def dealer(ctx, endpoint, **options):
    s = ctx.socket(zmq.DEALER)
    s.linger = 0
    s.rcvtimeo = s.sndtimeo = 60000
    for name, value in options.items():
        setattr(s, name, value)
    s.connect(endpoint)
    return s


def dealers(ctx, endpoint, count):
    """count DEALERs, messages of all shapes in flight at once, each echoed in order."""
    rnd = random.Random(7)
    socks = [dealer(ctx, endpoint, identity=b"peer-%d" % i) for i in range(int(count))]
    for _ in range(5):
        sent = []
        for s in socks:
            batch = []
            for _ in range(4):
                batch.append([rnd.randbytes(rnd.choice(SIZES)) for _ in range(rnd.randint(1, 6))])
                s.send_multipart(batch[-1])
            sent.append(batch)
        for s, batch in zip(socks, sent):
            for want in batch:
                assert s.recv_multipart() == want
    say("ok")


def router(ctx, endpoint, _):
    """A ROUTER that echoes until one of its peers says stop."""
    s = ctx.socket(zmq.ROUTER)
    s.linger = 5000
    s.rcvtimeo = 60000
    s.bind(endpoint)
    say(s.last_endpoint.decode().rstrip("\0"))
    while True:
        frames = s.recv_multipart(copy=False)
        if bytes(frames[1].buffer[:4]) == b"stop":
            break
        if bytes(frames[1].buffer[:4]) == b"who?":
            frames[1:] = [frames[0].bytes]
        s.send_multipart(frames, copy=False)


def big(ctx, endpoint, size):
    """One big payload with its checksum there and back."""
    payload = random.Random(1).randbytes(1 << 20) * (int(size) >> 20)
    digest = hashlib.sha256(payload).digest()
    s = dealer(ctx, endpoint)
    s.send_multipart([b"big", digest, payload], copy=False)
    name, back, payload = s.recv_multipart(copy=False)
    assert name.bytes == b"big" and back.bytes == digest
    assert hashlib.sha256(payload.buffer).digest() == digest
    say("ok")


def flood(ctx, endpoint, _):
    """Big frames for ever; killed in the middle of one."""
    s = dealer(ctx, endpoint)
    payload = bytes(64 << 20)
    say("ready")
    while True:
        s.send_multipart([b"flood", payload], copy=False)


def pings(ctx, endpoint, _):
    """A PING every millisecond, also between the big frames of a message."""
    s = dealer(ctx, endpoint, heartbeat_ivl=1, heartbeat_timeout=60000, sndhwm=4)
    parts = [os.urandom(1 << 20)] * 24
    for _ in range(3):
        s.send_multipart(parts, copy=False)
    for _ in range(3):
        assert s.recv_multipart() == parts
    say("ok")


def heartbeat(ctx, endpoint, _):
    """Idle but for PINGs until our input ends, which is when the peer has answered some. The
    answers are right if the connection stays and works."""
    s = ctx.socket(zmq.DEALER)
    s.linger, s.rcvtimeo = 0, 60000
    s.heartbeat_ivl, s.heartbeat_timeout = 10, 60000
    monitor = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    s.connect(endpoint)
    s.send(b"hello")
    assert s.recv() == b"hello"
    sys.stdin.read()
    s.send(b"still here")
    assert s.recv() == b"still here"
    assert not monitor.poll(0), "disconnected"
    say("ok")


def again(ctx, endpoint, _):
    """A DEALER whose server hangs up connects again."""
    s = dealer(ctx, endpoint, reconnect_ivl=10)
    s.send(b"first")
    monitor = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    say("sent")
    assert monitor.poll(60000), "no disconnect seen"
    s.send(b"second")
    assert s.recv() == b"second"
    say("ok")


def refused(ctx, endpoint, kind):
    """A socket that we must refuse; libzmq sees the handshake fail."""
    s = ctx.socket(zmq.DEALER if kind == "PLAIN" else getattr(zmq, kind))
    s.linger = 0
    if kind == "PLAIN":
        s.plain_username, s.plain_password = b"u", b"p"
    events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    monitor = s.get_monitor_socket(events)
    s.connect(endpoint)
    assert monitor.poll(60000), "no failure seen"
    recv_monitor_message(monitor)
    say("ok")


def idle(ctx, endpoint, _):
    """Says hello and leaves at end of input."""
    s = dealer(ctx, endpoint, identity=b"worker-7")
    s.send(b"hello")
    assert s.recv() == b"hello"
    say(os.getpid())
    sys.stdin.read()


if __name__ == "__main__":
    mode, endpoint = sys.argv[1:3]
    with zmq.Context() as ctx:
        try:
            globals()[mode](ctx, endpoint, sys.argv[3] if len(sys.argv) > 3 else None)
        finally:
            ctx.destroy(linger=5000 if mode == "router" else 0)
