"""Uses a store as Python programs do; its argument is the address. Prints "ok", or fails."""

import sys

from pymemcache.client.base import Client

client = Client((sys.argv[1], 11211), timeout=120)
client.flush_all(noreply=False)
large = bytes(range(256)) * 3000
assert client.set("large", large, noreply=False)
assert client.get("large") == large
assert client.set_many({f"k{i}": str(i) * i for i in range(200)}, noreply=False) == []
many = client.get_many([f"k{i}" for i in range(250)])
assert many == {f"k{i}": (str(i) * i).encode() for i in range(200)}, many
assert client.add("n", "5", noreply=False)
assert not client.add("n", "6", noreply=False)
assert client.incr("n", 10) == 15 and client.decr("n", 100) == 0
assert client.append("k1", "b", noreply=False) and client.prepend("k1", "a", noreply=False)
value, cas = client.gets("k1")
assert value == b"a1b"
assert client.cas("k1", "c", cas) is True and client.cas("k1", "d", cas) is False
assert client.cas("none", "d", cas) is None
assert client.touch("k1", 100, noreply=False) and not client.touch("none", noreply=False)
assert client.delete("k1", noreply=False) and client.get("k1") is None
client.set("quiet", "x", noreply=True)
assert client.get("quiet") == b"x"
stats = client.stats()
assert stats[b"cmd_get"] > 250 and stats[b"curr_items"] > 200, stats
assert client.version().startswith(b"1.6")
print("ok")
