// Uses a store as Go programs do; its argument is the address. Prints "ok", or what went wrong.
package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	client := memcache.New(os.Args[1])
	client.MaxIdleConns = 8
	// Not half a second: the machine may be busy.
	client.Timeout = 2 * time.Minute
	check(client.FlushAll())
	large := bytes.Repeat([]byte("0123456789abcdef"), 50_000)
	check(client.Set(&memcache.Item{Key: "large", Value: large, Flags: 7}))
	item, err := client.Get("large")
	check(err)
	expect(bytes.Equal(item.Value, large) && item.Flags == 7, "the large value")
	check(client.Add(&memcache.Item{Key: "n", Value: []byte("41")}))
	expect(client.Add(&memcache.Item{Key: "n", Value: []byte("0")}) == memcache.ErrNotStored, "add twice")
	number, err := client.Increment("n", 1)
	check(err)
	expect(number == 42, "increment")
	number, err = client.Decrement("n", 50)
	check(err)
	expect(number == 0, "decrement")
	item, err = client.Get("n")
	check(err)
	check(client.Set(&memcache.Item{Key: "n", Value: []byte("1")}))
	item.Value = []byte("2")
	expect(client.CompareAndSwap(item) == memcache.ErrCASConflict, "compare and swap")
	check(client.Touch("n", 100))
	check(client.Delete("n"))
	expect(client.Delete("n") == memcache.ErrCacheMiss, "delete twice")
	check(client.Ping())

	var group sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		worker := worker
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < 200; round++ {
				keys := make([]string, 10)
				for i := range keys {
					keys[i] = fmt.Sprintf("%d/%d", worker, i)
					value := []byte(fmt.Sprintf("%s at %d", keys[i], round))
					check(client.Set(&memcache.Item{Key: keys[i], Value: value}))
				}
				items, err := client.GetMulti(keys)
				check(err)
				for _, key := range keys {
					expect(string(items[key].Value) == fmt.Sprintf("%s at %d", key, round), key)
				}
			}
		}()
	}
	group.Wait()
	fmt.Println("ok")
}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func expect(holds bool, what string) {
	if !holds {
		fmt.Println("wrong:", what)
		os.Exit(1)
	}
}
