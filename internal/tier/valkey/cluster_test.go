package valkey

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// owner is the node that serves the object's slot.
func owner(t *testing.T, s *Store, nodes []*testserver.RedisServer, o tier.Object) (node int, slot string) {
	t.Helper()
	slot = nodes[0].Do("CLUSTER", "KEYSLOT", s.name(o.Key))
	for i, node := range nodes {
		if _, err := node.Try("EXISTS", s.name(o.Key)); err == nil {
			return i, slot
		}
	}
	t.Fatalf("nobody serves slot %s", slot)
	return 0, ""
}

// TestClusterSlotMoves: objects of a slot on its way to another node, and after, are found, put
// and deleted.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisCluster(t, 3)
	s := open(t, Options{Addresses: addresses(nodes...)})
	o, other := object(1, 50_000), object(2, 50_000)
	put(t, s, o, other)
	at, slot := owner(t, s, nodes, o)
	from, to := nodes[at], nodes[(at+1)%3]
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do("CLUSTER", "MYID"))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do("CLUSTER", "MYID"))
	host, port, _ := strings.Cut(to.Addr, ":")
	from.Do("MIGRATE", host, port, s.name(o.Key), "0", "5000")
	if err := errors.Join(get(t, s, o), get(t, s, other)); err != nil {
		t.Errorf("while the slot moves: %v", err)
	}
	put(t, s, o)
	for _, node := range nodes {
		node.Do("CLUSTER", "SETSLOT", slot, "NODE", to.Do("CLUSTER", "MYID"))
	}
	if err := errors.Join(get(t, s, o), get(t, s, other)); err != nil || !exists(t, s, o) {
		t.Errorf("after the slot has moved: %v", err)
	}
	if err := s.Delete(bg, []tier.Key{o.Key})[0]; err != nil {
		t.Error(err)
	}
	put(t, s, o)
	if to.Do("EXISTS", s.name(o.Key)) != "1" {
		t.Error("the object is not where its slot is")
	}
}

// TestClusterNodeDies: the objects of a dead node fail for now, those of the others do not.
func TestClusterNodeDies(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisCluster(t, 3)
	s := open(t, Options{Addresses: addresses(nodes...)})
	var objs []tier.Object
	var at []int
	for i := range 30 {
		objs = append(objs, object(i, 1000))
		node, _ := owner(t, s, nodes, objs[i])
		at = append(at, node)
	}
	put(t, s, objs...)
	nodes[2].Kill()
	dead := 0
	for i, o := range objs {
		err := get(t, s, o)
		if at[i] == 2 {
			dead++
			if !tier.IsPassing(err) {
				t.Errorf("an object of the dead node: %v", err)
			}
		} else if err != nil {
			t.Errorf("an object of a living node: %v", err)
		}
	}
	if dead == 0 || dead == len(objs) {
		t.Fatalf("%d objects of %d are of one node", dead, len(objs))
	}
	if _, err := s.Exists(bg, []tier.Key{objs[0].Key, objs[1].Key}); err != nil && !tier.IsPassing(err) {
		t.Error(err)
	}
}

// TestSentinel: when the master dies, the store goes on at the one that the sentinels choose.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := testserver.Redis(t)
	_, port, _ := strings.Cut(master.Addr, ":")
	replica := testserver.Redis(t, "--replicaof", "127.0.0.1 "+port, "--repl-diskless-sync-delay", "0")
	testserver.Await(t, "replication", func() bool { return strings.Contains(replica.Do("INFO", "replication"), "master_link_status:up") })
	sentinel := testserver.RedisSentinel(t, master, "kv")
	testserver.Await(t, "the sentinel knowing the replica", func() bool {
		return strings.Contains(sentinel.Do("INFO", "sentinel"), "slaves=1")
	})
	s := open(t, Options{Addresses: addresses(sentinel), Sentinel: "kv"})
	o := object(1, 50_000)
	put(t, s, o)
	if n, err := strconv.Atoi(master.Do("WAIT", "1", "10000")); err != nil || n != 1 {
		t.Fatalf("%d replicas have the object, %v", n, err)
	}
	// A replica that is elected must have all, which WAIT on another connection does not promise.
	testserver.Await(t, "the object on the replica", func() bool { return replica.Do("EXISTS", s.name(o.Key)) == "1" })
	master.Kill()
	sentinel.Do("SENTINEL", "SET", "kv", "down-after-milliseconds", "1000")
	testserver.Await(t, "going on at the other server", func() bool { return get(t, s, o) == nil })
	put(t, s, object(2, 1000))
	if replica.Do("EXISTS", s.name(object(2, 1000).Key)) != "1" {
		t.Error("the put went elsewhere")
	}
}
